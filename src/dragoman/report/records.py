"""What the lines of metrics.jsonl say, as records; docs/run-folder.md is the agreement."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dragoman.report.intervals import Floats
from dragoman.report.json_lines import number_or_nan, number_or_none
from dragoman.report.line_table import FieldPath

Bools = NDArray[np.bool_]

NAN = float("nan")


@dataclass(frozen=True)
class TrainSteps:
    """One entry a step; seconds as in docs/run-folder.md, NaN where a line says nothing."""

    step: Floats
    time: Floats
    loss: Floats
    nll: Floats
    learning_rate: Floats
    gradient_norm: Floats
    target_tokens: Floats
    source_tokens: Floats
    pairs: Floats
    slots: Floats
    epoch: Floats
    seconds: Floats
    seconds_data: Floats
    seconds_compute: Floats
    seconds_exposed_communication: Floats
    seconds_optimizer: Floats
    seconds_other: Floats
    skipped: Floats
    repeated: Floats
    slowest_worker: Floats
    slowest_seconds: Floats
    fastest_seconds: Floats
    life: Floats  # Which start, resume or restart the step belongs to, from 1.

    def __len__(self) -> int:
        return len(self.step)

    def take(self, which: Bools | NDArray[np.int64]) -> "TrainSteps":
        """Some of the steps."""
        return TrainSteps(**{item.name: getattr(self, item.name)[which] for item in fields(self)})


@dataclass(frozen=True)
class Evaluations:
    """The evaluations of one validation set that count."""

    name: str
    step: Floats
    time: Floats
    seconds: Floats
    pairs: Floats
    loss: Floats
    nll: Floats
    train_sample_loss: Floats
    bleu: Floats
    chrf: Floats
    signature: str

    def __len__(self) -> int:
        return len(self.step)

    def take(self, which: Bools) -> "Evaluations":
        """Some of the evaluations."""
        return replace(
            self,
            **{
                item.name: getattr(self, item.name)[which]
                for item in fields(self)
                if item.name not in ("name", "signature")
            },
        )


@dataclass(frozen=True)
class Life:
    """From a start, resume or restart to the next one or the end."""

    kind: str
    time: float
    step: int
    workers: int
    hosts: tuple[str, ...]
    device: str
    device_name: str
    precision: str
    rows_per_device: int | None
    reason: str
    previous_line: float | None  # When the life before wrote its last line.


@dataclass(frozen=True)
class CheckpointWrite:
    """A checkpoint that became whole, or failed to."""

    step: int
    time: float
    name: str
    bytes: int
    seconds_blocking: float
    seconds_background: float
    failure: str


@dataclass(frozen=True)
class Link:
    """What was measured between two machines."""

    hosts: tuple[str, ...]
    interface: str
    speed_mbit: float | None
    goodput_bytes_per_second: float | None
    latency_seconds: float | None


@dataclass(frozen=True)
class CalibrationLine:
    """What was measured before the first step."""

    seconds_compute: float | None
    seconds_all_reduce: float | None
    bytes_per_step: float | None
    gradient_bytes: float | None
    parameters: float | None
    compression: str
    arithmetic_per_token: float | None
    peak_flops: float | None


@dataclass(frozen=True)
class Incident:
    """A machine lost or joined, or the end of the run."""

    kind: str
    time: float
    step: int
    host: str
    reason: str
    detail: str


# Where each column of TrainSteps stands in a train line; the last one is not in it.
_ELSEWHERE: dict[str, FieldPath] = {
    "slowest_worker": ("slowest", "worker"),
    "slowest_seconds": ("slowest", "seconds"),
    "fastest_seconds": ("fastest", "seconds"),
}
TRAIN_COLUMNS: tuple[FieldPath, ...] = tuple(
    _ELSEWHERE.get(item.name, (item.name,)) for item in fields(TrainSteps)[:-1]
)


def explained_seconds(line: Mapping[str, Any]) -> float:
    """Seconds of training that the line itself says were spent on it."""
    name = {"eval": "seconds", "checkpoint": "seconds_blocking"}.get(str(line.get("kind")), "")
    return number_or_none(line.get(name)) or 0.0


def step_of(line: Mapping[str, Any]) -> int:
    """The step of a line."""
    return int(number_or_none(line.get("step")) or 0)


def _text(value: Any) -> str:
    return "" if value is None else str(value)


def life_of(line: Mapping[str, Any], previous_line: float | None) -> Life:
    """Read a line of kind start, resume or restart."""
    hosts = line.get("hosts")
    rows = number_or_none(line.get("rows_per_device"))
    names = tuple(map(str, hosts)) if isinstance(hosts, list) else ()
    return Life(
        kind=str(line["kind"]),
        time=float(line["time"]),
        step=step_of(line),
        workers=int(number_or_none(line.get("workers")) or len(names) or 1),
        hosts=names,
        device=_text(line.get("device")),
        device_name=_text(line.get("device_name")),
        precision=_text(line.get("precision")),
        rows_per_device=None if rows is None else int(rows),
        reason=_text(line.get("reason")),
        previous_line=previous_line,
    )


def evaluations_of(lines: Sequence[Mapping[str, Any]]) -> tuple[Evaluations, ...]:
    """One series for each validation set, in the order in which they appear."""
    by_set: dict[str, dict[int, Mapping[str, Any]]] = {}
    for line in lines:
        by_set.setdefault(_text(line.get("set")) or "validation", {})[step_of(line)] = line
    series = []
    for name, by_step in by_set.items():
        ordered = [by_step[step] for step in sorted(by_step)]
        columns = {
            item.name: np.array([number_or_nan(line.get(item.name)) for line in ordered])
            for item in fields(Evaluations)
            if item.name not in ("name", "signature")
        }
        signature = _text(ordered[-1].get("signature"))
        series.append(Evaluations(name=name, signature=signature, **columns))
    return tuple(series)


def checkpoint_of(line: Mapping[str, Any]) -> CheckpointWrite:
    """Read a line of kind checkpoint or checkpoint_failed."""
    return CheckpointWrite(
        step=step_of(line),
        time=float(line["time"]),
        name=_text(line.get("name")),
        bytes=int(number_or_none(line.get("bytes")) or 0),
        seconds_blocking=number_or_none(line.get("seconds_blocking")) or 0.0,
        seconds_background=number_or_none(line.get("seconds_background")) or 0.0,
        failure=_text(line.get("reason")) if line["kind"] == "checkpoint_failed" else "",
    )


def link_of(line: Mapping[str, Any]) -> Link:
    """Read a line of kind link."""
    hosts = line.get("hosts")
    return Link(
        hosts=tuple(map(str, hosts)) if isinstance(hosts, list) else (),
        interface=_text(line.get("interface")),
        speed_mbit=number_or_none(line.get("speed_mbit")),
        goodput_bytes_per_second=number_or_none(line.get("goodput_bytes_per_second")),
        latency_seconds=number_or_none(line.get("latency_seconds")),
    )


def calibration_of(line: Mapping[str, Any]) -> CalibrationLine:
    """Read a line of kind calibration."""
    numbers = {
        item.name: number_or_none(line.get(item.name))
        for item in fields(CalibrationLine)
        if item.name != "compression"
    }
    return CalibrationLine(compression=_text(line.get("compression")) or "none", **numbers)


def incident_of(line: Mapping[str, Any]) -> Incident:
    """Read a line of kind lost, joined or stop."""
    return Incident(
        kind=str(line["kind"]),
        time=float(line["time"]),
        step=step_of(line),
        host=_text(line.get("host")),
        reason=_text(line.get("reason")),
        detail=_text(line.get("detail")),
    )
