"""Adds up what workers found, in memory that does not grow with the corpus."""

import heapq
import zlib
from collections import Counter
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from dragoman.corpus.inputs import Inputs, set_sentences
from dragoman.corpus.text import RawChunk
from dragoman.inspection.chunk import BARS, ChunkFound, show
from dragoman.inspection.findings import (
    BY_LANGUAGE,
    EXAMPLES,
    KINDS,
    Example,
    Finding,
    Inspection,
    LanguagesChecked,
    SetOverlap,
    SideSize,
    wilson,
)

MOST_KEYS = 200_000  # Of pairs that are remembered to find their near duplicates.


class _Ranked(NamedTuple):
    """An example; those of the lowest rank are an even sample of all."""

    rank: int
    example: Example


class NearDuplicates:
    """Counts pairs that are nearly those before them, remembering a part of all keys at most."""

    def __init__(self, most_keys: int = MOST_KEYS) -> None:
        self.part = 1  # Every such key is looked at.
        self._most = most_keys
        self._seen: dict[int, int] = {}  # Different pairs of each key.
        self._key_of: dict[int, int] = {}  # Of each different pair.

    def add(self, near: int, exact: int) -> bool:
        """Take note of a pair; whether a nearly equal one came before."""
        if near % self.part or exact in self._key_of:
            return False
        self._key_of[exact] = near
        self._seen[near] = self._seen.get(near, 0) + 1
        is_second = self._seen[near] > 1
        if len(self._key_of) > self._most:
            self._forget()
        return is_second

    @property
    def count(self) -> int:
        """Near duplicates among the keys that are looked at."""
        return len(self._key_of) - len(self._seen)

    def _forget(self) -> None:
        self.part *= 2
        self._seen = {key: count for key, count in self._seen.items() if key % self.part == 0}
        self._key_of = {one: key for one, key in self._key_of.items() if key % self.part == 0}


@dataclass
class Tally:
    """What was found so far."""

    pairs: int = 0
    sampled: int = 0
    counts: Counter[tuple[str, str]] = field(default_factory=Counter)
    examples: dict[tuple[str, str], list[_Ranked]] = field(default_factory=dict)
    leaked: tuple[set[int], set[int]] = field(default_factory=lambda: (set(), set()))
    near: NearDuplicates = field(default_factory=NearDuplicates)
    lengths: NDArray[np.int64] = field(default_factory=lambda: np.zeros((2, BARS), np.int64))
    words: list[int] = field(default_factory=lambda: [0, 0])
    characters: list[int] = field(default_factory=lambda: [0, 0])
    scripts: tuple[Counter[str], Counter[str]] = field(
        default_factory=lambda: (Counter(), Counter())
    )

    def add(self, chunk: RawChunk, found: ChunkFound) -> None:
        """Add one chunk, whose lines give the examples."""
        self.pairs += found.pairs
        self.sampled += found.sampled
        self.lengths += found.lengths
        for number in range(2):
            self.words[number] += found.words[number]
            self.characters[number] += found.characters[number]
            self.scripts[number].update(found.scripts[number])
        for number, key in found.leaked:
            self.leaked[number].add(key)
        places = dict(found.places)
        near = [
            place
            for place, keys in enumerate(
                zip(found.near.tolist(), found.exact.tolist(), strict=True)
            )
            if self.near.add(*keys)
        ]
        if near:
            places["near_duplicate", "both"] = [found.filled[place] for place in near]
        for what, lines in places.items():
            self.counts[what] += len(lines)
            self._keep_examples(what, lines, chunk)

    def _keep_examples(self, what: tuple[str, str], places: list[int], chunk: RawChunk) -> None:
        ranks = ((zlib.crc32(b"%d" % (chunk.first_line + place)), place) for place in places)
        ranked = [
            _Ranked(
                rank,
                Example(
                    chunk.files.source.name,
                    chunk.first_line + place,
                    show(chunk.source[place]),
                    show(chunk.target[place]),
                ),
            )
            for rank, place in heapq.nsmallest(EXAMPLES, ranks)
        ]
        known = self.examples.get(what, [])
        # Lines of several texts may have one number, and examples no order.
        self.examples[what] = heapq.nsmallest(EXAMPLES, [*known, *ranked], key=lambda one: one.rank)

    def findings(self) -> tuple[Finding, ...]:
        """What matters, the worst first."""
        sides = ("both", "source", "target")
        found = (self._finding(name, side) for name in KINDS for side in sides)
        return tuple(one for one in found if one)

    def _finding(self, name: str, side: str) -> Finding | None:
        hits = self.counts[name, side]
        tried, part = self.pairs, 1
        if name in BY_LANGUAGE:
            tried = self.sampled
        elif name == "near_duplicate" and hits:
            hits, part = self.near.count, self.near.part
            tried = max(hits, self.pairs // part)
        if not hits:
            return None
        rate = hits / tried
        interval = wilson(hits, tried) if tried < self.pairs else None
        if (interval[0] if interval else rate) < KINDS[name].least_rate:
            return None
        kind = KINDS[name]
        return Finding(
            id=name,
            side=side,
            count=round(rate * self.pairs),
            rate=rate,
            interval=interval,
            examples=tuple(one.example for one in self.examples[name, side]),
            setting=kind.setting if kind.value is True else kind.remedy,
        )

    def overlaps(self, inputs: Inputs) -> tuple[SetOverlap, ...]:
        """How many sentences of each evaluation set stand in the training text, on either side."""
        known, found = Counter[str](), Counter[str]()
        for sentences, seen in zip(set_sentences(inputs), self.leaked, strict=True):
            known.update(name for names in sentences.values() for name in names)
            found.update(name for key in seen for name in sentences[key])
        return tuple(SetOverlap(name, known[name], found[name]) for name in known)

    def inspection(
        self,
        inputs: Inputs,
        languages: tuple[str, str],
        checked: LanguagesChecked,
        unchecked: str,
    ) -> Inspection:
        """All of it."""
        source, target = (
            SideSize(
                self.words[number],
                self.characters[number],
                tuple(self.lengths[number].tolist()),
                {
                    script: count / self.scripts[number].total()
                    for script, count in self.scripts[number].most_common(5)
                },
            )
            for number in range(2)
        )
        return Inspection(
            pairs=self.pairs,
            sampled=self.sampled,
            languages=languages,
            languages_checked=checked,
            languages_unchecked=unchecked,
            sides=(source, target),
            overlaps=self.overlaps(inputs),
            findings=self.findings(),
        )
