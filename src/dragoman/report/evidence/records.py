"""What the lines of metrics.jsonl say, as records; docs/run-folder.md is the agreement."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from dragoman.report.evidence.json_lines import number_or_none, whole_number
from dragoman.report.evidence.line_table import FieldPath
from dragoman.report.series import NAN, Bools, Floats

Line = Mapping[str, Any]
Record = TypeVar("Record")


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
    life: Floats  # Which start, resume or restart the step belongs to, from 1.

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


@dataclass(frozen=True)
class Life:
    """From a start, resume or restart to the next one or the end."""

    kind: str
    time: float
    step: int
    workers: int
    hosts: tuple[str, ...]  # Of each worker.
    device: str
    device_name: str
    precision: str
    rows_per_device: int
    previous_line: float | None  # When the life before wrote its last line.


@dataclass(frozen=True)
class CheckpointWrite:
    """A checkpoint that became whole, or the reason why it did not."""

    step: int
    bytes: int
    seconds_blocking: float
    reason: str


@dataclass(frozen=True)
class Link:
    """What was measured between two machines."""

    hosts: tuple[str, ...]
    interface: str
    goodput_bytes_per_second: float | None
    latency_seconds: float | None


@dataclass(frozen=True)
class CalibrationLine:
    """What was measured before the first step."""

    seconds_compute: float | None
    seconds_all_reduce: float | None
    bytes_per_step: float | None
    parameters: float | None
    compression: str
    arithmetic_per_token: float | None
    peak_flops: float | None

    @property
    def exchange_alone(self) -> float | None:
        """Seconds of an exchange, if what was summed is what an exchange of the run sums."""
        return None if self.compression == "powersgd" else self.seconds_all_reduce


@dataclass(frozen=True)
class Incident:
    """A machine that left or came, or the end of the run."""

    kind: str
    step: int
    host: str
    reason: str
    detail: str

    @property
    def is_finish(self) -> bool:
        """Whether the run came to an end of its own."""
        return self.kind == "stop" and self.reason not in ("error", "signal")


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


def _text(value: Any) -> str:
    return "" if value is None else str(value)


_READERS: dict[Any, Callable[[Any], Any]] = {
    str: _text,
    int: whole_number,
    float: lambda value: number_or_none(value) or 0.0,
    float | None: number_or_none,
    tuple[str, ...]: lambda value: tuple(map(str, value)) if isinstance(value, list) else (),
}


def read_record(kind: type[Record], line: Line) -> Record:
    """Fill every field of a record from the line's value of that name."""
    columns = fields(kind)  # type: ignore[arg-type]
    return kind(**{item.name: _READERS[item.type](line.get(item.name)) for item in columns})


def life_of(line: Line, previous_line: float | None) -> Life:
    """Read a line of kind start, resume or restart."""
    life = read_record(Life, {**line, "previous_line": previous_line})
    return replace(life, workers=life.workers or len(life.hosts) or 1)


def evaluations_of(lines: Sequence[Line]) -> tuple[Evaluations, ...]:
    """One series for each validation set, in the order in which they appear."""
    by_set: dict[str, dict[int, Line]] = {}
    for line in lines:
        by_set.setdefault(_text(line.get("set")) or "validation", {})[step_of(line)] = line
    series = []
    for name, by_step in by_set.items():
        ordered = [by_step[step] for step in sorted(by_step)]
        columns = {
            column: np.array([_number_or_nan(line.get(column)) for line in ordered])
            for column in _EVALUATION_COLUMNS
        }
        signature = _text(ordered[-1].get("signature"))
        series.append(Evaluations(name=name, signature=signature, **columns))
    return tuple(series)


def _number_or_nan(value: Any) -> float:
    number = number_or_none(value)
    return NAN if number is None else number


def explained_seconds(line: Line) -> float:
    """Seconds of training that the line itself says were spent on it."""
    name = {"eval": "seconds", "checkpoint": "seconds_blocking"}.get(str(line.get("kind")), "")
    return number_or_none(line.get(name)) or 0.0


def time_of(line: Line) -> float:
    """When a line was written, NaN if it does not say."""
    return _number_or_nan(line.get("time"))


def step_of(line: Line) -> int:
    """The step of a line."""
    return whole_number(line.get("step"))
