"""How the rows of a step are split: evenly, or in proportion to each worker's speed.

All workers know the same measurements and come to the same shares at the same step, so that every
row is used once; the global batch and its order do not depend on them.
"""

from collections.abc import Sequence
from itertools import accumulate, pairwise

from dragoman.corpus.rows import StepRows

WEIGHT_OF_A_STEP = 0.05  # Of what was known of a worker's speed before.
STEPS_BETWEEN_CORRECTIONS = 16
LEAST_GAIN = 0.02  # Of a step's time: less is noise.
# A recorded step takes as long for a micro-batch that is not full, so shares are whole ones: of so
# many a step has, small enough to balance by and large enough to keep a GPU busy.
MICRO_BATCHES = 16


def micro_batch_rows(rows: int) -> int:
    """Rows of a micro-batch where a step is recorded and balanced."""
    return max(1, rows // MICRO_BATCHES)


class RowShares:
    """The shares of all workers, corrected while they train if they are to be balanced."""

    def __init__(
        self, rows: int, workers: int, worker: int, *, is_balanced: bool, unit: int = 1
    ) -> None:
        self._rows, self._worker, self._is_balanced = rows, worker, is_balanced
        # Shares are multiples of it, where everyone can have one.
        self._unit = unit if rows >= workers * unit else 1
        self._bounds = [rows * place // workers for place in range(workers + 1)]
        self._speeds: list[float] = []  # Rows a second.
        self._steps = 0

    @property
    def rows_by_worker(self) -> tuple[int, ...]:
        """Rows of each worker, by rank."""
        return tuple(last - first for first, last in pairwise(self._bounds))

    def own(self, batch: StepRows) -> StepRows:
        """Give this worker its rows of a step that has all of them."""
        first, last = self._bounds[self._worker : self._worker + 2]
        return batch.part(first, last)

    def start(self, seconds_by_worker: Sequence[float]) -> None:
        """Share rows out by what computing a step took each worker, measured with shares as now."""
        if self._is_balanced:
            self._speeds = self._speeds_of(self.rows_by_worker, seconds_by_worker)
            self._bounds = self._balanced_bounds()

    def note(self, rows_by_worker: Sequence[int], seconds_by_worker: Sequence[float]) -> None:
        """Take note of how long everyone's rows of a step took; correct the shares now and then."""
        if not self._is_balanced:
            return
        latest = self._speeds_of(rows_by_worker, seconds_by_worker)
        self._speeds = [
            known + WEIGHT_OF_A_STEP * (new - known)
            for known, new in zip(self._speeds, latest, strict=True)
        ]
        self._steps += 1
        if self._steps % STEPS_BETWEEN_CORRECTIONS == 0:
            bounds = self._balanced_bounds()
            if self._seconds(bounds) < (1 - LEAST_GAIN) * self._seconds(self._bounds):
                self._bounds = bounds

    def _seconds(self, bounds: Sequence[int]) -> float:
        """What the slowest worker takes."""
        rows = (last - first for first, last in pairwise(bounds))
        return max(count / speed for count, speed in zip(rows, self._speeds, strict=True))

    def _balanced_bounds(self) -> list[int]:
        """Cut a step in proportion to the speeds; everyone gets something."""
        units = self._rows // self._unit
        spare = units - len(self._speeds)
        total = sum(self._speeds)
        ends = [0.0, *accumulate(self._speeds)]
        bounds = [place + round(spare * end / total) for place, end in enumerate(ends)]
        return [*(self._unit * bound for bound in bounds[:-1]), self._rows]

    @staticmethod
    def _speeds_of(rows: Sequence[int], seconds: Sequence[float]) -> list[float]:
        return [count / max(took, 1e-9) for count, took in zip(rows, seconds, strict=True)]
