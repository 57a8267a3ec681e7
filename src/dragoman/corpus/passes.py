"""The passes over all text: clean, sample, encode; on all cores, in bounded memory."""

import heapq
import os
import signal
from collections import Counter, deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future, ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from itertools import accumulate, compress, islice
from multiprocessing import get_context
from pathlib import Path
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

from dragoman.child_process import die_with_parent
from dragoman.console import Progress
from dragoman.corpus.clean import (
    SAMPLES_KEPT,
    Cleaning,
    Dropped,
    clean_chunk,
    first_occurrences,
)
from dragoman.corpus.store import PairTokens, Shuffler, pack_lines
from dragoman.corpus.subwords import Subwords
from dragoman.corpus.text import TextFiles, read_chunks
from dragoman.errors import SystemFault

LINES_PER_CHUNK = 5_000

Item = TypeVar("Item")
Result = TypeVar("Result")


@dataclass(frozen=True)
class CleanText:
    """Cleaned text on disk, one pair a line, and which of its lines are no duplicates."""

    source: Path
    target: Path
    keep: NDArray[np.bool_]
    removed: Counter[str]
    raw_pairs: int
    raw_bytes: tuple[int, int]
    lines: list[int]  # Of each part, before duplicates are left out.
    dropped: dict[str, list[Dropped]]  # A sample of what each filter took.


@dataclass(frozen=True)
class Part:
    """A training text that is kept apart: its tag, and what shuffles it."""

    tag: str
    shuffler: Shuffler


@dataclass(frozen=True)
class TextChunk:
    """Consecutive cleaned pairs of one part, on their way to a worker."""

    part: int
    tag: str
    source: list[bytes]
    target: list[bytes]


@dataclass(frozen=True)
class EncodedChunk:
    """The tokens of the pairs that are not too long."""

    part: int
    pairs: PairTokens
    too_long: int
    dropped: list[Dropped]
    source_bytes: int
    target_bytes: int


def clean_pass(
    texts: Sequence[TextFiles],
    cleaning: Cleaning,
    folder: Path,
    processes: int,
    parts: int = 1,
) -> CleanText:
    """Filter all raw text into two files."""
    paths = folder / "clean.source", folder / "clean.target"
    packed_bytes = sum(path.stat().st_size for files in texts for path in files.paths)
    chunks = (chunk for files in texts for chunk in read_chunks(files, LINES_PER_CHUNK))
    removed: Counter[str] = Counter()
    raw_pairs, raw_bytes, lines = 0, [0, 0], [0] * parts
    hashes, near_hashes = [], []
    dropped: dict[str, list[Dropped]] = {}
    with (
        worker_pool(processes) as pool,
        Progress("cleaning", packed_bytes, "bytes") as progress,
        open(paths[0], "wb") as source,
        open(paths[1], "wb") as target,
    ):
        clean = partial(clean_chunk, cleaning=cleaning)
        for chunk in ordered_map(pool, clean, chunks, processes):
            source.write(chunk.source)
            target.write(chunk.target)
            hashes.append(chunk.hashes)
            near_hashes.append(chunk.near_hashes)
            for name, samples in chunk.dropped.items():
                known = dropped.get(name, [])
                dropped[name] = heapq.nsmallest(SAMPLES_KEPT, [*known, *samples])
            removed += chunk.removed
            raw_pairs += chunk.raw_pairs
            lines[chunk.part] += len(chunk.hashes)
            raw_bytes[0] += chunk.raw_source_bytes
            raw_bytes[1] += chunk.raw_target_bytes
            progress.advance(chunk.packed_bytes)
    pair_hashes = np.concatenate(hashes) if hashes else np.zeros(0, np.uint64)
    keep = np.ones(len(pair_hashes), dtype=bool)
    if cleaning.settings.drop_duplicates:
        keep = first_occurrences(pair_hashes)
        removed["duplicate"] = int(len(keep) - keep.sum())
        dropped["duplicate"] = _sample_lines(paths, np.flatnonzero(~keep))
    if cleaning.settings.drop_near_duplicates:
        kept = np.flatnonzero(keep)
        near = kept[~first_occurrences(np.concatenate(near_hashes)[kept])]
        keep[near] = False
        removed["near_duplicate"] = len(near)
        dropped["near_duplicate"] = _sample_lines(paths, near)
    return CleanText(*paths, keep, removed, raw_pairs, (raw_bytes[0], raw_bytes[1]), lines, dropped)


def _sample_lines(paths: tuple[Path, Path], places: NDArray[np.int64]) -> list[Dropped]:
    """A few of these lines of the clean text, which has no line numbers of its own."""
    if not len(places):
        return []
    chosen = places[np.linspace(0, len(places) - 1, min(SAMPLES_KEPT, len(places))).astype(int)]
    sides = []
    for path in paths:
        with open(path, "rb") as lines:
            wanted = np.zeros(chosen[-1] + 1, dtype=bool)
            wanted[chosen] = True
            sides.append([line.decode().rstrip("\n") for line in compress(lines, wanted)])
    return [Dropped(0, "", 0, *pair) for pair in zip(*sides, strict=True)]


def sample_pass(text: CleanText, sides: Sequence[Path], pairs: int) -> Iterator[bytes]:
    """Read an even sample of at most `pairs` pairs, the given sides one after the other."""
    kept = np.flatnonzero(text.keep)
    chosen = np.zeros(len(text.keep), dtype=bool)
    chosen[kept[np.linspace(0, len(kept) - 1, min(pairs, len(kept))).astype(np.int64)]] = True
    for side in sides:
        with open(side, "rb") as lines:
            yield from compress(lines, chosen)


def encode_pass(
    text: CleanText,
    models: Sequence[Path],
    max_tokens: int,
    dtype: str,
    parts: Sequence[Part],
    processes: int,
) -> tuple[int, tuple[int, int]]:
    """Turn text into tokens; return how many pairs were too long and the bytes of the rest."""
    too_long, source_bytes, target_bytes = 0, 0, 0
    samples = text.dropped.setdefault("too_many_tokens", [])
    kept = int(text.keep.sum())
    with (
        worker_pool(processes, models) as pool,
        Progress("encoding", kept, "pairs") as progress,
    ):
        encode = partial(_encode_chunk, max_tokens=max_tokens, dtype=dtype)
        for chunk in ordered_map(pool, encode, _kept_chunks(text, parts), processes):
            parts[chunk.part].shuffler.add(chunk.pairs)
            too_long += chunk.too_long
            if len(samples) < SAMPLES_KEPT:
                samples += chunk.dropped[: SAMPLES_KEPT - len(samples)]
            source_bytes += chunk.source_bytes
            target_bytes += chunk.target_bytes
            progress.advance(len(chunk.pairs) + chunk.too_long)
    return too_long, (source_bytes, target_bytes)


def _kept_chunks(text: CleanText, parts: Sequence[Part]) -> Iterator[TextChunk]:
    ends = accumulate(text.lines)
    with open(text.source, "rb") as source, open(text.target, "rb") as target:
        for number, (end, lines, part) in enumerate(zip(ends, text.lines, parts, strict=True)):
            for start in range(end - lines, end, LINES_PER_CHUNK):
                keep = text.keep[start : min(start + LINES_PER_CHUNK, end)]
                sides = [
                    [line[:-1] for line in compress(islice(file, len(keep)), keep)]
                    for file in (source, target)
                ]
                yield TextChunk(number, part.tag, *sides)


_models: list[Subwords] = []  # Of a worker process, loaded once when it starts.


def _start_worker(parent: int, paths: Sequence[Path]) -> None:
    die_with_parent(parent)
    _models.extend(Subwords(path.read_bytes()) for path in paths)


def _encode_chunk(chunk: TextChunk, max_tokens: int, dtype: str) -> EncodedChunk:
    sides = chunk.source, chunk.target
    encoded = [
        model.encode([line.decode() for line in side], tag)
        for model, side, tag in zip((_models[0], _models[-1]), sides, (chunk.tag, ""), strict=True)
    ]
    fits = [
        len(source) <= max_tokens and len(target) <= max_tokens
        for source, target in zip(*encoded, strict=True)
    ]
    pairs = PairTokens(*(pack_lines(list(compress(side, fits)), dtype) for side in encoded))
    # One byte more for the line end, so that sizes compare with files on disk.
    source_bytes, target_bytes = (
        sum(len(line) + 1 for line in compress(side, fits)) for side in sides
    )
    dropped = [
        Dropped(0, "", 0, *(line.decode() for line in pair))
        for pair, fit in zip(zip(*sides, strict=True), fits, strict=True)
        if not fit
    ]
    too_long = len(fits) - sum(fits)
    return EncodedChunk(
        chunk.part, pairs, too_long, dropped[:SAMPLES_KEPT], source_bytes, target_bytes
    )


@contextmanager
def worker_pool(processes: int, models: Sequence[Path] = ()) -> Iterator[ProcessPoolExecutor]:
    """Processes that end with this one, each with its own copy of the vocabularies."""
    start = partial(_start_worker, os.getpid(), models)
    pool = ProcessPoolExecutor(processes, get_context("spawn"), start)
    try:
        with _ending_in_order():
            yield pool
    except BrokenProcessPool:
        raise SystemFault(
            "a worker process was killed, possibly out of memory; try again with fewer, for "
            "example --processes 1"
        ) from None
    finally:
        pool.shutdown(cancel_futures=True)


@contextmanager
def _ending_in_order() -> Iterator[None]:
    """Let SIGTERM end a block as Ctrl-C does, so that the pool is taken down."""

    def leave(number: int, _: object) -> None:
        raise SystemExit(128 + number)

    before = signal.signal(signal.SIGTERM, leave)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


@contextmanager
def _interrupts_held() -> Iterator[None]:
    """Keep Ctrl-C from processes that start here, for good; it is this process that ends them."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGINT])
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def ordered_map(
    pool: ProcessPoolExecutor,
    function: Callable[[Item], Result],
    items: Iterable[Item],
    processes: int,
) -> Iterator[Result]:
    """Results in the order of the items, with only a few chunks under way at a time."""
    under_way: deque[Future[Result]] = deque()
    for item in items:
        with _interrupts_held():
            under_way.append(pool.submit(function, item))
        if len(under_way) > 2 * processes:
            yield under_way.popleft().result()
    while under_way:
        yield under_way.popleft().result()
