"""Steps and evaluations as columns, and how they are read from the lines of metrics.jsonl."""

from collections.abc import Sequence
from dataclasses import dataclass, fields, replace

import numpy as np
from numpy.typing import NDArray

from dragoman.records import Evaluation
from dragoman.report.series import NAN, Bools, Floats
from dragoman.runs.line_table import FieldPath
from dragoman.runs.metrics_reader import Logged


@dataclass(frozen=True)
class TrainSteps:
    """One entry a step; seconds as in docs/run-folder.md, NaN where a line says nothing."""

    step: Floats
    time: Floats
    loss: Floats
    learning_rate: Floats
    gradient_norm: Floats
    target_tokens: Floats
    slots: Floats
    epoch: Floats
    seconds: Floats
    seconds_data: Floats
    seconds_compute: Floats
    seconds_exposed_communication: Floats
    seconds_optimizer: Floats
    seconds_other: Floats
    skipped: Floats
    slowest_worker: Floats
    slowest_seconds: Floats
    fastest_worker: Floats
    fastest_seconds: Floats
    attempt: Floats  # Which start, resume or restart the step belongs to, from 1.

    def __len__(self) -> int:
        return len(self.step)

    def take(self, which: Bools | NDArray[np.int64]) -> "TrainSteps":
        """Some of the steps."""
        return TrainSteps(**{item.name: getattr(self, item.name)[which] for item in fields(self)})

    @property
    def begins(self) -> Floats:
        """When each step began."""
        begins: Floats = self.time - np.nan_to_num(self.seconds)
        return begins

    @property
    def last_step(self) -> int:
        """The highest step, 0 if there is none."""
        return int(np.max(self.step, initial=0.0))


@dataclass(frozen=True)
class Evaluations:
    """The evaluations of one validation set that count."""

    name: str
    signature: str  # How BLEU was computed.
    step: Floats
    time: Floats
    seconds: Floats
    loss: Floats
    train_sample_loss: Floats
    bleu: Floats

    def __len__(self) -> int:
        return len(self.step)

    @property
    def lowest_loss(self) -> float:
        """The lowest that is a number; NaN if none is."""
        return float(min(self.loss[np.isfinite(self.loss)], default=NAN))

    @property
    def best_bleu(self) -> float:
        """The highest that is known; NaN if none is."""
        return float(max(self.bleu[np.isfinite(self.bleu)], default=NAN))

    def take(self, which: Bools) -> "Evaluations":
        """Some of the evaluations."""
        return replace(self, **{name: getattr(self, name)[which] for name in _EVALUATION_COLUMNS})


# Where each column of TrainSteps stands in a train line; the last one is not in it.
_ELSEWHERE: dict[str, FieldPath] = {
    "slowest_worker": ("slowest", "worker"),
    "slowest_seconds": ("slowest", "seconds"),
    "fastest_worker": ("fastest", "worker"),
    "fastest_seconds": ("fastest", "seconds"),
}
TRAIN_COLUMNS: tuple[FieldPath, ...] = tuple(
    _ELSEWHERE.get(item.name, (item.name,)) for item in fields(TrainSteps)[:-1]
)
_EVALUATION_COLUMNS = tuple(item.name for item in fields(Evaluations)[2:])
_SCORE_COLUMNS = _EVALUATION_COLUMNS[2:]  # All but step and time.


def evaluations_of(lines: Sequence[Logged[Evaluation]]) -> tuple[Evaluations, ...]:
    """One series for each validation set, in the order in which they appear."""
    by_set: dict[str, dict[int, Logged[Evaluation]]] = {}
    for line in lines:
        by_set.setdefault(line.event.set or "validation", {})[line.step] = line
    series = []
    for name, by_step in by_set.items():
        ordered = [by_step[step] for step in sorted(by_step)]
        rows = [
            [line.step, line.time, *(getattr(line.event, column) for column in _SCORE_COLUMNS)]
            for line in ordered
        ]
        columns = np.array(rows, dtype=np.float64).T
        series.append(Evaluations(name, ordered[-1].event.signature, *columns))
    return tuple(series)
