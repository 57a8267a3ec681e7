"""Pairs packed into fixed rows: deterministic, resumable, independent of the number of workers.

An epoch visits the corpus in blocks of consecutive pairs, the blocks in random order. Some blocks
make a window; the pairs of a window are packed into rows, and the rows are shuffled. A step is the
next `rows_per_step` rows. All of it is a pure function of (seed, epoch), so that a position of
three numbers is enough to go on exactly where a run stopped, and any worker can tell its share.
`mix.py` makes steps out of several corpora, each of which is walked like this.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, fields, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dragoman.corpus.order import keyed_permutation, keyed_seed
from dragoman.corpus.store import PairTokens, SideTokens, concatenate
from dragoman.corpus.subword_dropout import SubwordDropout
from dragoman.records import CorpusStep

PAIRS_PER_BLOCK = 512  # Small reads stay sequential on disk...
BLOCKS_PER_WINDOW = 16  # ...while every window mixes distant parts of the corpus.

Slots = NDArray[np.int32]  # [rows, slots]


@dataclass(frozen=True)
class Rows:
    """Packed pairs, all arrays [rows, slots]; segment 0 is padding, pairs count from 1."""

    source: Slots
    source_segments: Slots
    source_positions: Slots
    target_input: Slots
    target: Slots
    target_segments: Slots
    target_positions: Slots

    def __len__(self) -> int:
        return len(self.source)

    def __getitem__(self, rows: slice) -> "Rows":
        return Rows(*(array[rows] for array in self.arrays()))

    def take(self, order: NDArray[np.int64]) -> "Rows":
        """A copy of some rows, in another order."""
        return Rows(*(array[order] for array in self.arrays()))

    def arrays(self) -> list[Slots]:
        """All arrays, in the order of the fields."""
        return [getattr(self, field.name) for field in fields(self)]

    @property
    def target_tokens(self) -> int:
        """Real target tokens, end marks included."""
        return int(np.count_nonzero(self.target_segments))

    @property
    def source_tokens(self) -> int:
        """Real source tokens, end marks included."""
        return int(np.count_nonzero(self.source_segments))

    @property
    def pairs(self) -> int:
        """How many pairs the rows hold."""
        return int(self.target_segments.max(axis=1, initial=0).sum())


@dataclass(frozen=True)
class Position:
    """Where the next step begins: a row of a window of an epoch."""

    epoch: int = 0
    window: int = 0
    row: int = 0
    # Of a mix alone: the place in each corpus after the first, and the steps made so far.
    others: tuple["Position", ...] = ()
    step: int = 0


@dataclass(frozen=True)
class StepRows:
    """The rows of a step, or one worker's share of them, and the counts of the whole step."""

    rows: Rows
    target_tokens: int
    source_tokens: int
    pairs: int
    slots: int
    next: Position
    epoch: float
    corpora: Mapping[str, CorpusStep] | None = None  # What each corpus of a mix gave.

    def part(self, first: int, last: int) -> "StepRows":
        """Some of the rows; the counts stay those of the whole step."""
        return replace(self, rows=self.rows[first:last])

    def share(self, worker: int, workers: int) -> "StepRows":
        """An equal share for each worker, up to a row."""
        return self.part(*(len(self.rows) * place // workers for place in (worker, worker + 1)))


class RowStream:
    """Cuts a corpus into steps, forever."""

    def __init__(
        self,
        pairs: PairTokens,
        row_tokens: int,
        rows_per_step: int,
        begin: int,
        seed: int,
        dropout: SubwordDropout | None = None,
    ):
        self.pairs = pairs
        self.row_tokens = row_tokens
        self.rows_per_step = rows_per_step
        self.begin = begin
        self.seed = seed
        self.dropout = dropout
        self.blocks = -(-len(pairs) // PAIRS_PER_BLOCK)
        self.windows = -(-self.blocks // BLOCKS_PER_WINDOW)

    def steps(self, position: Position) -> Iterator[StepRows]:
        """Yield one step after the other."""
        walk = RowWalk(self, position)
        while True:
            step = join(walk.take(self.rows_per_step))
            yield StepRows(
                rows=step,
                target_tokens=step.target_tokens,
                source_tokens=step.source_tokens,
                pairs=step.pairs,
                slots=step.target.size,
                next=walk.position,
                epoch=walk.epoch,
            )

    def window(self, epoch: int, window: int) -> Rows:
        """Pack one window of an epoch."""
        order = keyed_permutation(self.blocks, self.seed, epoch, 0)
        blocks = order[window * BLOCKS_PER_WINDOW : (window + 1) * BLOCKS_PER_WINDOW]
        starts = (PAIRS_PER_BLOCK * blocks).tolist()
        parts = [self.pairs.lines(start, start + PAIRS_PER_BLOCK) for start in starts]
        pairs = concatenate(parts)
        if self.dropout:
            pairs = self.dropout.cut(pairs, keyed_seed(self.seed, epoch, 3, window))
        mixed = keyed_permutation(len(pairs), self.seed, epoch, 1, window)
        rows = pack(pairs.take(mixed), self.row_tokens, self.begin)
        return rows.take(keyed_permutation(len(rows), self.seed, epoch, 2, window))

    def blocks_before(self, window: int, share: float) -> float:
        """Blocks of an epoch behind a place in a window; the last window may be a short one."""
        first = window * BLOCKS_PER_WINDOW
        return first + share * min(BLOCKS_PER_WINDOW, self.blocks - first)


class RowWalk:
    """Takes the rows of one corpus one after the other, from a position on."""

    def __init__(self, stream: RowStream, position: Position) -> None:
        self.position = position
        self._stream = stream
        self._window: Rows | None = None  # Packed when its first row is asked for.

    def take(self, count: int) -> list[Rows]:
        """The next rows; those of different windows apart."""
        parts: list[Rows] = []
        while count:
            place, window = self.position, self._packed()
            if place.row == len(window):
                is_last = place.window + 1 == self._stream.windows
                epoch, following = place.epoch + is_last, 0 if is_last else place.window + 1
                self.position, self._window = Position(epoch, following), None
                continue
            parts.append(window[place.row : place.row + count])
            count -= len(parts[-1])
            self.position = Position(place.epoch, place.window, place.row + len(parts[-1]))
        return parts

    def _packed(self) -> Rows:
        if self._window is None:
            self._window = self._stream.window(self.position.epoch, self.position.window)
        return self._window

    @property
    def epoch(self) -> float:
        """Passes over the corpus so far."""
        place = self.position
        share = place.row / len(self._packed()) if place.row else 0.0
        done = self._stream.blocks_before(place.window, share)
        return place.epoch + done / self._stream.blocks


def pack(pairs: PairTokens, row_tokens: int, begin: int) -> Rows:
    """Pack pairs into as few rows as they need, the longest first."""
    lengths = [np.diff(side.offsets) for side in (pairs.source, pairs.target)]
    assert max(part.max(initial=0) for part in lengths) <= row_tokens, "a pair exceeds a row"
    places = _place(lengths[0].tolist(), lengths[1].tolist(), row_tokens)
    rows = int(places.row.max(initial=-1)) + 1
    source = _lay_out(
        pairs.source, places.row, places.source_start, places.segment, rows, row_tokens
    )
    target = _lay_out(
        pairs.target, places.row, places.target_start, places.segment, rows, row_tokens
    )
    shifted = np.roll(target[0], 1, axis=1)
    starts = (target[2] == 0) & (target[1] > 0)
    target_input = np.where(starts, np.int32(begin), np.where(target[1] > 0, shifted, 0))
    return Rows(*source, target_input.astype(np.int32), *target)


@dataclass(frozen=True)
class _Places:
    """Where each pair goes: its row, its first slot on each side, its number in the row."""

    row: NDArray[np.int64]
    source_start: NDArray[np.int64]
    target_start: NDArray[np.int64]
    segment: NDArray[np.int64]


def _place(source: list[int], target: list[int], room: int) -> _Places:
    """Best fit, longest first: the row with the least room on the target side that will do."""
    order = sorted(range(len(source)), key=lambda pair: source[pair] + target[pair], reverse=True)
    rows_by_room: list[list[int]] = [[] for _ in range(room + 1)]
    rooms = 0  # Bit i is set while some row has i target slots left.
    source_used: list[int] = []
    segments: list[int] = []
    places = np.zeros((4, len(source)), dtype=np.int64)
    chosen: list[tuple[int, int, int, int]] = []
    for pair in order:
        source_tokens, target_tokens = source[pair], target[pair]
        most_used = room - source_tokens
        candidates = rooms >> target_tokens << target_tokens
        while candidates:
            left = (candidates & -candidates).bit_length() - 1
            with_room = rows_by_room[left]
            row = next((row for row in with_room if source_used[row] <= most_used), -1)
            if row >= 0:
                with_room.remove(row)
                if not with_room:
                    rooms ^= 1 << left
                break
            candidates &= candidates - 1
        else:
            row, left = len(source_used), room
            source_used.append(0)
            segments.append(0)
        segments[row] += 1
        chosen.append((row, source_used[row], room - left, segments[row]))
        source_used[row] += source_tokens
        left -= target_tokens
        if left and source_used[row] < room:
            rows_by_room[left].append(row)
            rooms |= 1 << left
    if chosen:
        places[:, order] = np.array(chosen).T
    return _Places(*places)


def _lay_out(
    side: SideTokens,
    row: NDArray[np.int64],
    start: NDArray[np.int64],
    segment: NDArray[np.int64],
    rows: int,
    row_tokens: int,
) -> tuple[Slots, Slots, Slots]:
    """Copy the tokens of one side to their slots; also segments and positions."""
    lengths = np.diff(side.offsets)
    positions = np.arange(len(side.tokens)) - np.repeat(side.offsets[:-1], lengths)
    slots = np.repeat(row * row_tokens + start, lengths) + positions
    laid_out = np.zeros((3, rows * row_tokens), dtype=np.int32)
    laid_out[0, slots] = side.tokens
    laid_out[1, slots] = np.repeat(segment, lengths)
    laid_out[2, slots] = positions
    tokens, segments, restarted = laid_out.reshape(3, rows, row_tokens)
    return tokens, segments, restarted


def join(parts: list[Rows]) -> Rows:
    """Put rows behind each other."""
    if len(parts) == 1:
        return parts[0]
    columns: Any = zip(*(part.arrays() for part in parts), strict=True)
    return Rows(*(np.concatenate(arrays) for arrays in columns))
