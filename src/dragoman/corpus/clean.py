"""The filters, each with a name and a count."""

import hashlib
import re
from collections import Counter
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from dragoman.config import CleaningSettings
from dragoman.corpus.text import RawChunk, decode, normalize

# In the order they are applied; a pair counts for the first that catches it.
FILTERS = {
    "invalid_utf8": "a side is not UTF-8",
    "empty_side": "a side is empty",
    "control_characters": "control characters",
    "too_many_words": "too many words",
    "length_ratio": "one side much longer than the other",
    "identical_sides": "source equals target",
    "duplicate": "seen before",
    "too_many_tokens": "too many subwords",
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


@dataclass(frozen=True)
class CleanChunk:
    """What is left of a raw chunk: text with plain line ends, and a hash of each pair."""

    source: bytes
    target: bytes
    hashes: NDArray[np.uint64]
    removed: Counter[str]
    raw_pairs: int
    raw_source_bytes: int
    raw_target_bytes: int
    packed_bytes: int
    part: int


def clean_chunk(chunk: RawChunk, settings: CleaningSettings) -> CleanChunk:
    """Decode, normalise and filter; runs in a worker process."""
    skip = settings.invalid_utf8 == "skip"
    paths = chunk.files.paths
    sources, targets = (
        decode(lines, path, chunk.first_line, skip=skip, advice=SKIP_ADVICE)
        for lines, path in ((chunk.source, paths[0]), (chunk.target, paths[-1]))
    )
    removed: Counter[str] = Counter()
    kept_sources, kept_targets, digests = [], [], []
    for source, target in zip(sources, targets, strict=True):
        if source is None or target is None:
            removed["invalid_utf8"] += 1
            continue
        source = normalize(source, settings.normalize_punctuation).strip()
        target = normalize(target, settings.normalize_punctuation).strip()
        if reason := reason_to_drop(source, target, settings):
            removed[reason] += 1
            continue
        source_bytes, target_bytes = source.encode(), target.encode()
        kept_sources.append(source_bytes)
        kept_targets.append(target_bytes)
        # What is the same in two languages is no duplicate.
        pair = source_bytes + b"\n" + target_bytes + chunk.files.tag.encode()
        digests.append(hashlib.blake2b(pair, digest_size=8).digest())
    return CleanChunk(
        source=b"".join(line + b"\n" for line in kept_sources),
        target=b"".join(line + b"\n" for line in kept_targets),
        hashes=np.frombuffer(b"".join(digests), dtype="<u8"),
        removed=removed,
        raw_pairs=len(chunk.source),
        raw_source_bytes=sum(map(len, chunk.source)),
        raw_target_bytes=sum(map(len, chunk.target)),
        packed_bytes=chunk.packed_bytes,
        part=chunk.files.part,
    )


def reason_to_drop(source: str, target: str, settings: CleaningSettings) -> str | None:
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
    if settings.drop_identical and source == target:
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
