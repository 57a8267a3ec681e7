"""The filters, each with a name and a count."""

import hashlib
import heapq
import re
import zlib
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

from dragoman.config import CleaningSettings
from dragoman.corpus.alignment import out_of_step
from dragoman.corpus.languages import PairLanguages
from dragoman.corpus.suspects import (
    has_markup,
    is_mojibake,
    is_same,
    near_key,
    numbers_differ,
    telling_key,
)
from dragoman.corpus.text import RawChunk, decode, normalize

FilterName = Literal[
    "invalid_utf8",
    "empty_side",
    "control_characters",
    "too_many_words",
    "length_ratio",
    "identical_sides",
    "misaligned",
    "leaked",
    "mojibake",
    "markup",
    "numbers_differ",
    "swapped_sides",
    "wrong_language",
    "duplicate",
    "near_duplicate",
    "too_many_tokens",
]


@dataclass(frozen=True)
class Filter:
    """What a filter is called, and the setting that asks for it if it is off otherwise."""

    words: str
    setting: str = ""


# In the order they are applied; a pair counts for the first that catches it.
FILTERS: Mapping[str, Filter] = {
    "invalid_utf8": Filter("a side is not UTF-8"),
    "empty_side": Filter("a side is empty"),
    "control_characters": Filter("control characters"),
    "too_many_words": Filter("too many words"),
    "length_ratio": Filter("one side much longer than the other"),
    "identical_sides": Filter("source equals target"),
    "misaligned": Filter("misaligned lines", "drop_misaligned"),
    "leaked": Filter("contains a validation or test sentence", "drop_leaked"),
    "mojibake": Filter("decoded with the wrong encoding", "drop_mojibake"),
    "markup": Filter("HTML or boilerplate", "drop_markup"),
    "numbers_differ": Filter("different numbers on the two sides", "drop_differing_numbers"),
    "swapped_sides": Filter("source and target swapped", "drop_swapped_sides"),
    "wrong_language": Filter("a side in another language", "drop_wrong_language"),
    "duplicate": Filter("seen before"),
    "near_duplicate": Filter("near-duplicate of an earlier pair", "drop_near_duplicates"),
    "too_many_tokens": Filter("too many subwords"),
}

# Tabs are ordinary blanks; noncharacters are reserved for our own use in subwords.py.
_LAST_OF_PLANES = "".join(f"{chr(end - 1)}{chr(end)}" for end in range(0xFFFF, 0x110000, 0x10000))
CONTROL_CHARACTERS = re.compile(f"[\x00-\x08\x0a-\x1f\x7f-\x9f\ufdd0-\ufdef{_LAST_OF_PLANES}]")
# Scripts written without blanks: every character counts as a word.
UNSPACED_CHARACTERS = re.compile(
    "[\u0e00-\u0eff\u1000-\u109f\u1780-\u17ff\u3040-\u30ff\u3400-\u9fff]"
)

SKIP_ADVICE = 'convert the file, or set cleaning.invalid_utf8 = "skip"'

PAIRS_SORTED_AT_ONCE = 4_000_000
SAMPLES_KEPT = 20  # Of what each filter dropped.


def filters_of(settings: CleaningSettings) -> list[str]:
    """The filters that are on, or cannot be switched off by a setting of their own."""
    return [
        name for name, one in FILTERS.items() if not one.setting or getattr(settings, one.setting)
    ]


def language_filters_of(settings: CleaningSettings) -> list[str]:
    """The settings that are on and drop pairs by their languages."""
    names = ("drop_swapped_sides", "drop_wrong_language")
    return [f"cleaning.{name}" for name in names if getattr(settings, name)]


@dataclass(frozen=True)
class Cleaning:
    """All that decides whether a pair is kept."""

    settings: CleaningSettings
    languages: tuple[str, str] = ("", "")
    set_keys: frozenset[int] = frozenset()  # Of the sentences of validation and test sets.


class Dropped(NamedTuple):
    """A pair that a filter took; those of the lowest rank are kept as a sample."""

    rank: int
    file: str
    line: int
    source: str
    target: str


@dataclass(frozen=True)
class CleanChunk:
    """What is left of a raw chunk: text with plain line ends, and a hash of each pair."""

    source: bytes
    target: bytes
    hashes: NDArray[np.uint64]
    near_hashes: NDArray[np.uint64]  # Empty unless near duplicates are dropped.
    dropped: Mapping[str, list[Dropped]]
    removed: Counter[str]
    raw_pairs: int
    raw_source_bytes: int
    raw_target_bytes: int
    packed_bytes: int
    part: int


@dataclass
class _Sieve:
    """What the filters take out of a chunk."""

    chunk: RawChunk
    removed: Counter[str] = field(default_factory=Counter)
    dropped: dict[str, list[Dropped]] = field(default_factory=dict)

    def drop(self, reason: FilterName, place: int, source: str, target: str) -> None:
        self.removed[reason] += 1
        line, path = self.chunk.first_line + place, self.chunk.files.source
        one = Dropped(zlib.crc32(b"%d" % line), str(path), line, source, target)
        self.dropped.setdefault(reason, []).append(one)

    def samples(self) -> dict[str, list[Dropped]]:
        return {name: heapq.nsmallest(SAMPLES_KEPT, every) for name, every in self.dropped.items()}


def clean_chunk(chunk: RawChunk, cleaning: Cleaning) -> CleanChunk:
    """Decode, normalise and filter; runs in a worker process."""
    settings = cleaning.settings
    skip = settings.invalid_utf8 == "skip"
    paths = chunk.files.paths
    sources, targets = (
        decode(lines, path, chunk.first_line, skip=skip, advice=SKIP_ADVICE)
        for lines, path in ((chunk.source, paths[0]), (chunk.target, paths[-1]))
    )
    shifted = _shifted(sources, targets, settings)
    judge = _Judge(cleaning, languages_are_known=chunk.files.languages_are_known)
    sieve = _Sieve(chunk)
    kept_sources, kept_targets, digests, near = [], [], [], []
    for place, (source, target) in enumerate(zip(sources, targets, strict=True)):
        if source is None or target is None:
            sieve.drop("invalid_utf8", place, source or "", target or "")
            continue
        source = normalize(source, settings.normalize_punctuation).strip()
        target = normalize(target, settings.normalize_punctuation).strip()
        reason = reason_to_drop(source, target, settings)
        reason = reason or ("misaligned" if shifted[place] else judge.reason(source, target))
        if reason:
            sieve.drop(reason, place, source, target)
            continue
        source_bytes, target_bytes = source.encode(), target.encode()
        kept_sources.append(source_bytes)
        kept_targets.append(target_bytes)
        # What is the same in two languages is no duplicate.
        pair = source_bytes + b"\n" + target_bytes + chunk.files.tag.encode()
        digests.append(hashlib.blake2b(pair, digest_size=8).digest())
        if settings.drop_near_duplicates:
            near.append(near_key(telling_key(source), telling_key(target), digests[-1]))
    return CleanChunk(
        source=b"".join(line + b"\n" for line in kept_sources),
        target=b"".join(line + b"\n" for line in kept_targets),
        hashes=np.frombuffer(b"".join(digests), dtype="<u8"),
        near_hashes=np.array(near, dtype=np.uint64),
        dropped=sieve.samples(),
        removed=sieve.removed,
        raw_pairs=len(chunk.source),
        raw_source_bytes=sum(map(len, chunk.source)),
        raw_target_bytes=sum(map(len, chunk.target)),
        packed_bytes=chunk.packed_bytes,
        part=chunk.files.part,
    )


def _shifted(
    sources: list[str | None], targets: list[str | None], settings: CleaningSettings
) -> NDArray[np.bool_]:
    if not settings.drop_misaligned:
        return np.zeros(len(sources), dtype=bool)
    lengths = [np.array([len(line or "") for line in side]) for side in (sources, targets)]
    return out_of_step(*lengths)


class _Judge:
    """The filters that are off unless asked for."""

    def __init__(self, cleaning: Cleaning, *, languages_are_known: bool) -> None:
        self._settings = settings = cleaning.settings
        self._set_keys = cleaning.set_keys if settings.drop_leaked else frozenset()
        by_language = languages_are_known and language_filters_of(settings)
        self._languages = PairLanguages(*cleaning.languages) if by_language else None

    def reason(self, source: str, target: str) -> FilterName | None:
        """Name the first of them that catches a pair."""
        settings, sides = self._settings, (source, target)
        if self._set_keys and not self._set_keys.isdisjoint(map(telling_key, sides)):
            return "leaked"
        if settings.drop_mojibake and any(map(is_mojibake, sides)):
            return "mojibake"
        if settings.drop_markup and any(map(has_markup, sides)):
            return "markup"
        if settings.drop_differing_numbers and numbers_differ(source, target):
            return "numbers_differ"
        if self._languages:
            found = self._languages.judge(source, target)
            if settings.drop_swapped_sides and found.is_swapped:
                return "swapped_sides"
            if settings.drop_wrong_language and found.wrong_sides:
                return "wrong_language"
        return None


def reason_to_drop(source: str, target: str, settings: CleaningSettings) -> FilterName | None:
    """Name the first filter that catches a normalised pair."""
    if not source or not target:
        return "empty_side"
    if settings.drop_control_characters and (
        CONTROL_CHARACTERS.search(source) or CONTROL_CHARACTERS.search(target)
    ):
        return "control_characters"
    source_words, target_words = count_words(source), count_words(target)
    shorter, longer = sorted((source_words, target_words))
    if longer > settings.max_words:
        return "too_many_words"
    if longer > settings.max_length_ratio * shorter:
        return "length_ratio"
    if settings.drop_identical and is_same(source, target):
        return "identical_sides"
    return None


def count_words(text: str) -> int:
    """Count blank-separated words, and single characters of scripts without blanks."""
    words = len(text.split())
    return words if text.isascii() else words + len(UNSPACED_CHARACTERS.findall(text))


def first_occurrences(
    hashes: NDArray[np.uint64], pairs_at_once: int = PAIRS_SORTED_AT_ONCE
) -> NDArray[np.bool_]:
    """Mark the first pair of each hash, in memory that does not grow with the sort."""
    is_first = np.zeros(len(hashes), dtype=bool)
    groups = -(-len(hashes) // pairs_at_once)
    for group in range(groups):
        members = np.concatenate(
            [
                start + np.flatnonzero(hashes[start : start + pairs_at_once] % groups == group)
                for start in range(0, len(hashes), pairs_at_once)
            ]
        )
        _, first = np.unique(hashes[members], return_index=True)
        is_first[members[first]] = True
    return is_first
