"""Memory-mapped token ids, checked against the manifest."""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate, chain
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
from numpy.typing import NDArray

from dragoman.corpus.manifest import FIX, SIDES, find_damage, read_manifest
from dragoman.corpus.order import keyed_hash, keyed_permutation
from dragoman.corpus.subwords import Subwords
from dragoman.corpus.text import normalize
from dragoman.errors import UserError
from dragoman.files import find_file_damage, flush_to_disk

Tokens = NDArray[np.unsignedinteger[Any]]
Offsets = NDArray[np.int64]

_PAIRS_PER_BUCKET = 250_000
_MOST_BUCKETS = 200  # Each has four open files, and many systems allow 1,024.


@dataclass(frozen=True)
class SideTokens:
    """The token ids of many lines end to end; line i is tokens[offsets[i]:offsets[i + 1]]."""

    tokens: Tokens
    offsets: Offsets

    def __len__(self) -> int:
        return len(self.offsets) - 1

    def line(self, index: int) -> Tokens:
        """Token ids of one line, the end mark included."""
        return self.tokens[self.offsets[index] : self.offsets[index + 1]]

    def lines(self, start: int, stop: int) -> "SideTokens":
        """A copy of consecutive lines, in memory."""
        offsets = np.array(self.offsets[start : stop + 1])
        return SideTokens(np.array(self.tokens[offsets[0] : offsets[-1]]), offsets - offsets[0])

    def view(self, start: int, stop: int) -> "SideTokens":
        """Consecutive lines where they lie."""
        return SideTokens(self.tokens, self.offsets[start : stop + 1])

    def take(self, order: NDArray[np.int64]) -> "SideTokens":
        """A copy of the lines in another order."""
        starts = self.offsets[order]
        lengths = self.offsets[order + 1] - starts
        offsets = offsets_of(lengths)
        places = np.repeat(starts - offsets[:-1], lengths) + np.arange(offsets[-1])
        return SideTokens(self.tokens[places], offsets)


def offsets_of(lengths: NDArray[np.int64]) -> Offsets:
    """Where each line begins, and where the last one ends."""
    offsets = np.zeros(len(lengths) + 1, dtype=np.int64)
    np.cumsum(lengths, out=offsets[1:])
    return offsets


@dataclass(frozen=True)
class PairTokens:
    """Both sides of parallel text."""

    source: SideTokens
    target: SideTokens

    def __len__(self) -> int:
        return len(self.source)

    def view(self, start: int, stop: int) -> "PairTokens":
        """Consecutive pairs where they lie."""
        return PairTokens(self.source.view(start, stop), self.target.view(start, stop))

    def lines(self, start: int, stop: int) -> "PairTokens":
        """A copy of consecutive pairs, in memory, up to `stop` or the end."""
        return PairTokens(self.source.lines(start, stop), self.target.lines(start, stop))

    def take(self, order: NDArray[np.int64]) -> "PairTokens":
        """A copy of the pairs in another order."""
        return PairTokens(self.source.take(order), self.target.take(order))


@dataclass(frozen=True)
class EvaluationSet:
    """A validation or test set: raw text for BLEU, tokens for the loss."""

    name: str
    source: tuple[str, ...]
    target: tuple[str, ...]
    tokens: PairTokens
    tag: str = ""


class PreparedCorpus:
    """A prepared corpus on disk, opened for reading."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.manifest = read_manifest(folder)
        self._data = folder / self.manifest.data
        self._refuse_damage(find_damage(folder, self.manifest, contents=False))
        self.train = self._pairs("train")

    def train_parts(self) -> dict[str, PairTokens]:
        """The corpora of a mix, which lie one after the other; empty if the text is not mixed."""
        counts = self.manifest.corpora or {}
        ends = accumulate(one.pairs for one in counts.values())
        return {
            name: self.train.view(end - one.pairs, end)
            for (name, one), end in zip(counts.items(), ends, strict=True)
        }

    def train_sample(self, pairs: int) -> PairTokens:
        """A fair sample of the training text: each corpus is shuffled, so its first pairs do."""
        parts = list(self.train_parts().values()) or [self.train]
        share = min(1.0, pairs / len(self.train))
        return concatenate([part.lines(0, max(1, round(share * len(part)))) for part in parts])

    def check_contents(self) -> None:
        """Refuse the corpus if any byte is not as it was prepared; reads all of it."""
        self._refuse_damage(find_damage(self.folder, self.manifest, contents=True))

    def _refuse_damage(self, damage: str | None) -> None:
        if damage:
            raise UserError(f"{self._data} is damaged: {damage}; {FIX}")

    @property
    def identity(self) -> str:
        """Checksum of everything training reads; equal on machines with an equal corpus."""
        return self.manifest.identity

    def subwords(self) -> tuple[Subwords, Subwords]:
        """The vocabularies of source and target; one and the same if joint."""
        source, *rest = (Subwords(self.read(name)) for name in self.manifest.vocabulary.files)
        return source, rest[0] if rest else source

    def evaluation_sets(self, kind: str) -> list[EvaluationSet]:
        """All sets of a kind ("validation" or "test"), in the order of the config."""
        texts = getattr(self.manifest.settings.corpus, kind)
        return [
            self._evaluation_set(f"{kind}.{name}", name, texts[name].tag)
            for name in self.manifest.sets[kind]
        ]

    def old_sets(self) -> list[EvaluationSet]:
        """The validation sets of the run whose vocabulary this is, as `old.NAME`."""
        old = self.manifest.old
        tags = old.tags if old else {}
        return [
            self._evaluation_set(f"old.{name}", f"old.{name}", tag) for name, tag in tags.items()
        ]

    def _evaluation_set(self, stem: str, name: str, tag: str) -> EvaluationSet:
        source, target = (
            # As bytes: a text file's reader would take a lone \r for the end of a line.
            tuple(self.read(f"{stem}.{side}.txt").decode().split("\n")[:-1])
            for side in SIDES
        )
        return EvaluationSet(name, source, target, self._pairs(stem), tag)

    def read(self, name: str) -> bytes:
        """The bytes of a small file, as they were prepared."""
        path, file = self._data / name, self.manifest.files[name]
        self._refuse_damage(find_file_damage(path, file.bytes, file.sha256))
        return path.read_bytes()

    def _pairs(self, stem: str) -> PairTokens:
        dtype = self.manifest.vocabulary.dtype
        return PairTokens(
            *(
                SideTokens(
                    _map(self._data / f"{stem}.{side}.tokens", dtype),
                    _map(self._data / f"{stem}.{side}.offsets", "int64"),
                )
                for side in SIDES
            )
        )


def _map(path: Path, dtype: str) -> NDArray[Any]:
    # An empty file cannot be mapped.
    return np.memmap(path, dtype, mode="r") if path.stat().st_size else np.zeros(0, dtype)


class PairWriter:
    """Writes tokens and offsets of both sides, line after line."""

    def __init__(self, folder: Path, stem: str) -> None:
        self._files = [
            (
                open(folder / f"{stem}.{side}.tokens", "wb"),
                open(folder / f"{stem}.{side}.offsets", "wb"),
            )
            for side in SIDES
        ]
        self.pairs = 0
        self.tokens = [0, 0]
        for _, offsets in self._files:
            np.zeros(1, dtype=np.int64).tofile(offsets)

    def append(self, pairs: PairTokens) -> None:
        """Add consecutive pairs."""
        self.pairs += len(pairs)
        for index, side in enumerate((pairs.source, pairs.target)):
            tokens, offsets = self._files[index]
            tokens.write(side.tokens.tobytes())
            offsets.write((side.offsets[1:] + self.tokens[index]).tobytes())
            self.tokens[index] += len(side.tokens)

    def close(self) -> None:
        """Finish all files; their bytes are safe on the disk afterwards."""
        for files in self._files:
            for file in files:
                flush_to_disk(file)
                file.close()

    def __enter__(self) -> "PairWriter":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class Shuffler:
    """Shuffles more pairs than memory holds: spread at random over buckets, then each by itself."""

    def __init__(
        self, folder: Path, pairs: int, dtype: str, seed: int, part: int = 0, parts: int = 1
    ) -> None:
        self._dtype = dtype
        self._seed = seed
        self._seen = 0
        buckets = max(1, min(_MOST_BUCKETS // parts, -(-pairs // _PAIRS_PER_BUCKET)))
        self._buckets = [
            [open(folder / f"bucket-{part}-{bucket}.{file}", "w+b") for file in range(4)]
            for bucket in range(buckets)
        ]

    def add(self, pairs: PairTokens) -> None:
        """Spread consecutive pairs over the buckets."""
        numbers = np.arange(self._seen, self._seen + len(pairs), dtype=np.uint64)
        self._seen += len(pairs)
        bucket = keyed_hash(numbers, self._seed, 0) % np.uint64(len(self._buckets))
        order = np.argsort(bucket, kind="stable")
        borders = np.searchsorted(bucket[order], np.arange(len(self._buckets) + 1))
        for side_index, side in enumerate((pairs.source, pairs.target)):
            sorted_side = side.take(order)
            lengths = np.diff(sorted_side.offsets).astype(np.uint32)
            for files, start, stop in zip(self._buckets, borders, borders[1:], strict=False):
                tokens = sorted_side.tokens[sorted_side.offsets[start] : sorted_side.offsets[stop]]
                files[2 * side_index].write(tokens.tobytes())
                files[2 * side_index + 1].write(lengths[start:stop].tobytes())

    def write(self, writer: PairWriter) -> None:
        """Write everything added, in its random order, and drop the buckets."""
        for number, files in enumerate(self._buckets):
            pairs = PairTokens(self._read(*files[:2]), self._read(*files[2:]))
            writer.append(pairs.take(keyed_permutation(len(pairs), self._seed, 1, number)))
            for file in files:
                file.close()
                Path(file.name).unlink()

    def _read(self, tokens: BinaryIO, lengths: BinaryIO) -> SideTokens:
        for file in (tokens, lengths):
            file.seek(0)
        line_lengths = np.fromfile(lengths, np.uint32).astype(np.int64)
        return SideTokens(np.fromfile(tokens, self._dtype), offsets_of(line_lengths))


def concatenate(parts: Sequence[PairTokens]) -> PairTokens:
    """Pairs of several places behind each other, in memory."""
    sides = ([part.source for part in parts], [part.target for part in parts])
    return PairTokens(*map(_concatenate_side, sides))


def _concatenate_side(sides: Sequence[SideTokens]) -> SideTokens:
    tokens = np.concatenate([side.tokens for side in sides])
    lengths = np.concatenate([np.diff(side.offsets) for side in sides])
    return SideTokens(tokens, offsets_of(lengths))


def pack_lines(lines: Sequence[Sequence[int]], dtype: str) -> SideTokens:
    """Lay lists of token ids end to end."""
    lengths = np.fromiter(map(len, lines), dtype=np.int64, count=len(lines))
    offsets = offsets_of(lengths)
    tokens = np.fromiter(chain.from_iterable(lines), dtype, count=offsets[-1])
    return SideTokens(tokens, offsets)


def encode_pairs(
    models: tuple[Subwords, Subwords],
    sides: tuple[Sequence[str], Sequence[str]],
    normalize_punctuation: bool,
    tag: str,
    dtype: str,
) -> PairTokens:
    """Lines of source and target in subwords; the tag goes before every source line."""
    normal = ([normalize(line, normalize_punctuation).strip() for line in side] for side in sides)
    encoded = (
        model.encode(lines, before)
        for model, lines, before in zip(models, normal, (tag, ""), strict=True)
    )
    return PairTokens(*(pack_lines(lines, dtype) for lines in encoded))
