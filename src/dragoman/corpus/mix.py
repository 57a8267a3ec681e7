"""Steps from several corpora: each has its own epochs and is read as often as its weight says.

Every row holds pairs of one corpus. Which corpus gives row number n of a run is a pure function of
n and of the weights of the stage that its step lies in, so that a position in each corpus and the
number of steps are enough to go on exactly, and any worker can tell its share.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from dragoman.config import Config, corpus_names
from dragoman.corpus.order import keyed_seed
from dragoman.corpus.rows import Position, Rows, RowStream, RowWalk, StepRows, join
from dragoman.corpus.store import PairTokens
from dragoman.records import CorpusStep

# Multiples of the golden ratio fill an interval as evenly as any sequence: every corpus gets its
# share of each step to within a row or two, and exactly in the long run.
_GOLDEN = np.uint64(0x9E3779B97F4A7C15)


@dataclass(frozen=True)
class Stage:
    """Which part of the rows each corpus gives, from a step on."""

    from_step: int  # The first step of a run is step 1.
    shares: tuple[float, ...]


def plan_stages(config: Config, slots: Sequence[int]) -> tuple[Stage, ...]:
    """The stages of a run; a corpus is as large as the slots that one pass over it takes."""
    names, corpus = corpus_names(config.corpus), config.corpus
    weights = {name: text.weight for name, text in zip(names, corpus.train, strict=True)}
    sizes = [size ** (1 / corpus.temperature) for size in slots]
    planned = [(1, weights)]
    planned += [(stage.from_step, {**weights, **stage.weights}) for stage in config.stages]
    return tuple(
        Stage(
            first,
            _normalized([by_name[name] * size for name, size in zip(names, sizes, strict=True)]),
        )
        for first, by_name in planned
    )


def _normalized(parts: Sequence[float]) -> tuple[float, ...]:
    return tuple(part / sum(parts) for part in parts)


def slots_of(pairs: PairTokens) -> int:
    """Slots that the pairs fill on the side that needs more; rows are packed almost full."""
    return max(int(side.offsets[-1] - side.offsets[0]) for side in (pairs.source, pairs.target))


class MixedStream:
    """Cuts several corpora into steps, forever; of stages that have begun, the last one counts."""

    def __init__(
        self,
        streams: Mapping[str, RowStream],
        stages: Sequence[Stage],
        rows_per_step: int,
        seed: int,
    ) -> None:
        self.streams = dict(streams)
        self.stages = stages
        self.rows_per_step = rows_per_step
        self._offset = np.uint64(keyed_seed(seed, 3))
        sizes = [slots_of(stream.pairs) for stream in self.streams.values()]
        self._sizes = [size / sum(sizes) for size in sizes]

    def steps(self, position: Position) -> Iterator[StepRows]:
        """Yield one step after the other."""
        begins = position.others or (Position(),) * (len(self.streams) - 1)
        places = (Position(position.epoch, position.window, position.row), *begins)
        walks = [RowWalk(*pair) for pair in zip(self.streams.values(), places, strict=True)]
        step = position.step
        while True:
            step += 1
            corpora = self.corpora_of(step)
            taken = [
                walk.take(int(count))
                for walk, count in zip(
                    walks, np.bincount(corpora, minlength=len(walks)), strict=True
                )
            ]
            yield self._step(step, corpora, taken, walks)

    def corpora_of(self, step: int) -> NDArray[np.int64]:
        """The number of the corpus that each row of a step comes from."""
        stage = next(one for one in reversed(self.stages) if one.from_step <= step)
        ends = np.cumsum(stage.shares)[:-1] * 2.0**64
        first = (step - 1) * self.rows_per_step
        rows = np.arange(first, first + self.rows_per_step, dtype=np.uint64)
        places = rows * _GOLDEN + self._offset  # Modulo 2^64.
        return np.searchsorted(ends, places.astype(np.float64), side="right")

    def _step(
        self,
        step: int,
        corpora: NDArray[np.int64],
        taken: Sequence[list[Rows]],
        walks: Sequence[RowWalk],
    ) -> StepRows:
        """Put the rows of all corpora into the order of the step, and count them."""
        by_corpus = [join(parts) if parts else None for parts in taken]
        counts = {
            name: CorpusStep(
                pairs=rows.pairs if rows else 0,
                target_tokens=rows.target_tokens if rows else 0,
                epoch=walk.epoch,
            )
            for name, rows, walk in zip(self.streams, by_corpus, walks, strict=True)
        }
        one_after_the_other = join([rows for rows in by_corpus if rows])
        # Row i of the step is the next one of its corpus that is not used yet.
        order = np.argsort(np.argsort(corpora, kind="stable"), kind="stable")
        first, *others = (walk.position for walk in walks)
        epochs = zip(self._sizes, counts.values(), strict=True)
        return StepRows(
            rows=one_after_the_other.take(order),
            target_tokens=sum(one.target_tokens for one in counts.values()),
            source_tokens=one_after_the_other.source_tokens,
            pairs=sum(one.pairs for one in counts.values()),
            slots=one_after_the_other.target.size,
            next=Position(first.epoch, first.window, first.row, tuple(others), step),
            epoch=sum(size * one.epoch for size, one in epochs),
            corpora=counts,
        )
