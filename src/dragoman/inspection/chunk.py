"""What a worker process finds in a few thousand consecutive lines of a text."""

import hashlib
import unicodedata
import zlib
from collections import Counter
from dataclasses import dataclass, field, replace
from functools import cache

import numpy as np
from numpy.typing import NDArray

from dragoman.config import CleaningSettings
from dragoman.corpus.alignment import out_of_step
from dragoman.corpus.clean import reason_to_drop
from dragoman.corpus.languages import PairLanguages
from dragoman.corpus.suspects import (
    has_markup,
    is_copied,
    is_mojibake,
    near_key,
    numbers_differ,
    telling_key,
)
from dragoman.corpus.text import RawChunk, decode, normalize

WORDS_PER_BAR, BARS = 5, 21  # Of the histogram of lengths; the last bar holds all that is longer.

Places = list[int]  # Lines of the chunk, from 0.


@dataclass(frozen=True)
class Watched:
    """What lines are compared with."""

    languages: tuple[str, str] | None  # Of texts without a tag; None if nothing can tell them.
    share: float  # Of the lines, whose language and script are looked at.
    set_keys: tuple[frozenset[int], frozenset[int]]  # Of sentences of validation and test sets.
    cleaning: CleaningSettings


@dataclass
class ChunkFound:
    """What was found in a chunk; places by finding and side."""

    pairs: int
    sampled: int = 0
    places: dict[tuple[str, str], Places] = field(default_factory=dict)
    leaked: list[tuple[int, int]] = field(default_factory=list)  # Side and key.
    filled: Places = field(default_factory=list)  # Lines with two sides, as the next two have them.
    near: NDArray[np.uint64] = field(default_factory=lambda: np.zeros(0, np.uint64))
    exact: NDArray[np.uint64] = field(default_factory=lambda: np.zeros(0, np.uint64))
    lengths: NDArray[np.int64] = field(default_factory=lambda: np.zeros((2, BARS), np.int64))
    words: list[int] = field(default_factory=lambda: [0, 0])
    characters: list[int] = field(default_factory=lambda: [0, 0])
    scripts: tuple[Counter[str], Counter[str]] = field(
        default_factory=lambda: (Counter(), Counter())
    )

    def add(self, identity: str, side: str, place: int) -> None:
        """Take note of a line."""
        self.places.setdefault((identity, side), []).append(place)


def show(line: bytes) -> str:
    """A line as it is inspected, or with marks where it is not UTF-8."""
    return normalize(line.decode(errors="replace"), False).strip()


def inspect_chunk(chunk: RawChunk, watched: Watched) -> ChunkFound:
    """Look at every pair; runs in a worker process."""
    found = ChunkFound(len(chunk.source))
    sides = _read_lines(chunk, found)
    unreadable = {place for places in found.places.values() for place in places}
    expected = watched.languages if chunk.files.languages_are_known else None
    languages = PairLanguages(*expected) if expected else None
    lengths = [np.fromiter(map(len, side), np.int64, len(side)) for side in sides]
    shifted = out_of_step(*lengths)
    for place in np.flatnonzero(shifted).tolist():
        found.add("misaligned", "both", place)
    cleaning = replace(watched.cleaning, drop_identical=False)  # Copies are told apart.
    near, exact = [], []
    for place, (source, target) in enumerate(zip(*sides, strict=True)):
        if place not in unreadable and reason_to_drop(source, target, cleaning):
            found.add("unusable", "both", place)
        if not source or not target:
            continue
        copied = is_copied(source, target)
        if copied:
            found.add("copied", "both", place)
        # What follows from lines out of step is not wrong a second time.
        if not shifted[place] and numbers_differ(source, target):
            found.add("numbers_differ", "both", place)
        _look_at_sides(found, place, source, target)
        keys = telling_key(source), telling_key(target)
        _look_for_leaks(found, place, keys, watched)
        digest = hashlib.blake2b(f"{source}\n{target}".encode(), digest_size=8).digest()
        found.filled.append(place)
        exact.append(int.from_bytes(digest, "little"))
        near.append(near_key(*keys, digest))
        if zlib.crc32(b"%d" % (chunk.first_line + place)) < watched.share * 2**32:
            # A copy is one thing that is wrong, not two.
            _look_at_languages(found, place, (source, target), None if copied else languages)
    found.near, found.exact = (np.array(keys, dtype=np.uint64) for keys in (near, exact))
    _measure(found, sides)
    return found


def _read_lines(chunk: RawChunk, found: ChunkFound) -> tuple[list[str], list[str]]:
    """Both sides as they are inspected; what is not UTF-8 is found, and empty from then on."""
    paths = chunk.files.paths
    sources, targets = (
        decode(lines, path, chunk.first_line, skip=True)
        for lines, path in ((chunk.source, paths[0]), (chunk.target, paths[-1]))
    )
    for place, (source, target) in enumerate(zip(sources, targets, strict=True)):
        if source is None or target is None:
            side = "target" if source is not None else "source" if target is not None else "both"
            found.add("invalid_utf8", side, place)
    return _plain(sources), _plain(targets)


def _plain(lines: list[str | None]) -> list[str]:
    return [normalize(line or "", False).strip() for line in lines]


def _look_at_sides(found: ChunkFound, place: int, source: str, target: str) -> None:
    for side, line in (("source", source), ("target", target)):
        if is_mojibake(line):
            found.add("mojibake", side, place)
        if has_markup(line):
            found.add("markup", side, place)


def _look_for_leaks(
    found: ChunkFound, place: int, keys: tuple[int | None, int | None], watched: Watched
) -> None:
    leaked = [
        (number, key)
        for number, (key, known) in enumerate(zip(keys, watched.set_keys, strict=True))
        if key is not None and key in known
    ]
    if leaked:
        found.leaked += leaked
        side = "both" if len(leaked) == 2 else ("source", "target")[leaked[0][0]]
        found.add("leaked", side, place)


def _look_at_languages(
    found: ChunkFound, place: int, sides: tuple[str, str], languages: PairLanguages | None
) -> None:
    found.sampled += 1
    for scripts, line in zip(found.scripts, sides, strict=True):
        scripts.update(map(_script, filter(str.isalpha, line)))
    if languages is None:
        return
    judged = languages.judge(*sides)
    if judged.is_swapped:
        found.add("swapped_sides", "both", place)
    for side in judged.wrong_sides:
        found.add("wrong_language", side, place)


@cache
def _script(letter: str) -> str:
    """The script of a letter, which its name begins with."""
    return unicodedata.name(letter, "OTHER").split()[0].capitalize()


def _measure(found: ChunkFound, sides: tuple[list[str], list[str]]) -> None:
    for number, lines in enumerate(sides):
        words = np.fromiter((len(line.split()) for line in lines), np.int64, len(lines))
        bars = np.minimum(words // WORDS_PER_BAR, BARS - 1)
        found.lengths[number] = np.bincount(bars, minlength=BARS)
        found.words[number] = int(words.sum())
        found.characters[number] = sum(map(len, lines))
