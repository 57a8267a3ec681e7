"""metrics.jsonl -> what happened: steps and evaluations that count, work that was lost."""

import math
from collections.abc import Collection, Sequence
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from dragoman.records import (
    BEGINNINGS,
    Beginning,
    Calibration,
    CheckpointFailed,
    CheckpointSaved,
    End,
    Evaluation,
    Event,
    Link,
    MachineChange,
)
from dragoman.report.evidence.json_lines import describe_damage, repair_clock
from dragoman.report.evidence.series import NAN, Bools, Floats
from dragoman.report.evidence.step_series import (
    TRAIN_COLUMNS,
    Evaluations,
    TrainSteps,
    evaluations_of,
)
from dragoman.runs.metrics_reader import Logged, Metrics, read_metrics
from dragoman.thresholds import SHORTEST_GAP, UNEXPLAINED_GAP, UNEXPLAINED_SHARE

SECONDS_COLUMN = TRAIN_COLUMNS.index(("seconds",))

OneEvent = TypeVar("OneEvent", bound=Event)
OneRecord = TypeVar("OneRecord", Link, Calibration, CheckpointSaved)


@dataclass(frozen=True)
class Attempt:
    """From a start, resume or restart to the next one or the end."""

    kind: str
    time: float
    step: int
    began: Beginning
    previous_line: float | None  # When the attempt before was last heard of, but for its failing.


@dataclass(frozen=True)
class History:
    """All of metrics.jsonl; what a resume made void is kept apart."""

    train: TrainSteps
    lost: TrainSteps
    evaluations: tuple[Evaluations, ...]
    # Also those before the first step, and of sets of the run that this one started from.
    all_evaluations: tuple[Logged[Evaluation], ...]
    lost_evaluation_seconds: float
    checkpoints: tuple[Logged[CheckpointSaved], ...]
    failed_checkpoints: tuple[Logged[CheckpointFailed], ...]
    attempts: tuple[Attempt, ...]
    links: tuple[Link, ...]
    calibration: Calibration | None
    machines_lost: tuple[Logged[MachineChange], ...]
    end: End | None
    first_time: float
    last_time: float
    clock_was_set: bool
    gaps: tuple[tuple[float, float], ...]  # From when to when nothing explains what happened.

    @property
    def attempt(self) -> Attempt | None:
        """The latest attempt that made steps, or else the latest."""
        if not self.attempts:
            return None
        return self.attempts[(_latest_attempt(self.train) or len(self.attempts)) - 1]

    @property
    def latest_steps(self) -> TrainSteps:
        """The steps of every attempt with the same workers as the latest."""
        hosts = self.attempt.began.hosts if self.attempt else ()
        same = [number for number, one in enumerate(self.attempts, 1) if one.began.hosts == hosts]
        return self.train.take(np.isin(self.train.attempt, same)) if same else self.train

    @property
    def have_workers_changed(self) -> bool:
        """Whether some steps were made by others than the latest workers."""
        return len(self.latest_steps) < len(self.train)


@dataclass(frozen=True)
class _Log:
    """The lines as they stand in the file, with times that only go forward."""

    steps: TrainSteps
    step_places: NDArray[np.int64]  # The place of each step among all lines.
    events: Sequence[tuple[int, Logged[Event]]]  # All other lines with their places.
    clock: Floats
    explained: Floats  # Seconds that each line accounts for.
    clock_was_set: bool


def read_history(path: Path, missing: list[str]) -> History:
    """Read the log of a run, be it finished, alive or dead."""
    log = _read_log(path, missing)
    late = _noticed_late(log)
    gaps = _unexplained_gaps(path.name, log, late, missing)
    kept, void, lost_evaluation_seconds = _apply_resumes(log)
    train = _without_doubles(log.steps.take(~void), missing)
    measured = _up_to_latest_attempt(kept, train)
    calibrations = _of_type(Calibration, measured)
    evaluated = _of_type(Evaluation, kept)
    ends = [line.event for line in kept if line.kind in ("stop", *BEGINNINGS)][-1:]
    return History(
        train=train,
        lost=log.steps.take(void),
        evaluations=evaluations_of([one for one in evaluated if one.step and not one.event.is_old]),
        all_evaluations=tuple(evaluated),
        lost_evaluation_seconds=lost_evaluation_seconds,
        checkpoints=tuple(
            replace(line, event=_zero_unknown(line.event))
            for line in _of_type(CheckpointSaved, kept)
        ),
        failed_checkpoints=tuple(_of_type(CheckpointFailed, kept)),
        attempts=tuple(
            _attempt_of(line, _last_activity(log, late, place))
            for place, one in log.events
            for line in _of_type(Beginning, [one])
        ),
        links=tuple(_zero_unknown(link) for link in _latest_links(measured)),
        calibration=_zero_unknown(calibrations[-1].event) if calibrations else None,
        machines_lost=tuple(line for line in _of_type(MachineChange, kept) if line.kind == "lost"),
        end=next((end for end in ends if isinstance(end, End)), None),
        first_time=float(log.clock[0]) if len(log.clock) else NAN,
        last_time=float(log.clock[-1]) if len(log.clock) else NAN,
        clock_was_set=log.clock_was_set,
        gaps=gaps,
    )


def _of_type(kind: type[OneEvent], lines: Sequence[Logged[Event]]) -> list[Logged[OneEvent]]:
    return [line for line in lines if isinstance(line.event, kind)]  # type: ignore[misc]


def _last_activity(log: _Log, late: Collection[int], place: int) -> float | None:
    """When the last line before one was written, but for those that were late."""
    before = place - 1
    while before in late:
        before -= 1
    return float(log.clock[before]) if before >= 0 else None


def _noticed_late(log: _Log) -> set[int]:
    """The places of errors, which may be noticed long after, and of what was noted with them."""
    events = {place: line.event for place, line in log.events}
    late = set()
    for place, event in events.items():
        if isinstance(event, End) and event.reason == "error":
            late.add(place)
            while isinstance(events.get(place - 1), CheckpointSaved | CheckpointFailed):
                place -= 1
                late.add(place)
    return late


def _zero_unknown(record: OneRecord) -> OneRecord:
    """Let zero stand for what a line does not say, so that nobody divides by it unawares."""
    unknown: dict[str, Any] = {
        item.name: 0.0
        for item in fields(record)
        if isinstance(value := getattr(record, item.name), float) and math.isnan(value)
    }
    return replace(record, **unknown)


def _attempt_of(line: Logged[Beginning], previous_line: float | None) -> Attempt:
    began = line.event
    began = replace(began, workers=began.workers or len(began.hosts) or 1)
    return Attempt(line.kind, line.time, line.step, began, previous_line)


def _explained_seconds(event: Event) -> float:
    """Seconds of training that the line itself says were spent on it."""
    seconds = 0.0
    if isinstance(event, Evaluation):
        seconds = event.seconds
    elif isinstance(event, CheckpointSaved):
        seconds = event.seconds_blocking
    return seconds if math.isfinite(seconds) else 0.0


def _read_log(path: Path, missing: list[str]) -> _Log:
    if not path.is_file():
        missing.append(f"{path.name} is missing: there is no history of the run")
        nothing = np.zeros((len(TRAIN_COLUMNS), 0)), np.zeros(0, dtype=np.int64)
        return _set_clock(path.name, Metrics(*nothing, [], [], 0, is_cut_short=False), missing)
    metrics = read_metrics(path, TRAIN_COLUMNS)
    missing += describe_damage(
        path.name, metrics.damaged, metrics.line_count, cut_short=metrics.is_cut_short
    )
    return _set_clock(path.name, metrics, missing)


def _set_clock(name: str, metrics: Metrics, missing: list[str]) -> _Log:
    """Put all lines on one clock that only goes forward, and count their attempts."""
    values, events = metrics.steps, metrics.events
    lines = np.append(metrics.step_lines, [event.line for event in events])
    order = np.argsort(lines, kind="stable")
    places = np.empty_like(order)
    places[order] = np.arange(len(order))
    step_places, event_places = places[: values.shape[1]], places[values.shape[1] :]
    times = np.append(values[1], [event.time for event in events])[order]
    seconds = np.nan_to_num(values[SECONDS_COLUMN])
    spent = [_explained_seconds(one.event) for one in events]
    explained = np.append(seconds, spent)[order]
    jumps: list[str] = []
    clock = repair_clock(name, "line", times, explained, jumps)
    missing += jumps
    values[1] = clock[step_places]
    timed = [
        (int(place), replace(event, time=float(clock[place])))
        for place, event in zip(event_places, events, strict=True)
    ]
    begun = [place for place, event in timed if event.kind in BEGINNINGS]
    attempts = np.searchsorted(begun, step_places).astype(np.float64)
    steps = TrainSteps(*np.vstack((values, attempts)))
    return _Log(steps, step_places, timed, clock, explained, clock_was_set=bool(jumps))


def _apply_resumes(log: _Log) -> tuple[list[Logged[Event]], Bools, float]:
    """Apply the rule of docs/run-folder.md: going on from step N voids what lay beyond it.

    A second start is one more beginning from step 0.
    """
    void = np.zeros(len(log.steps), dtype=bool)
    kept: list[Logged[Event]] = []
    lost_evaluation_seconds = 0.0
    for place, line in log.events:
        if line.kind in BEGINNINGS:
            void |= (log.step_places < place) & (log.steps.step > line.step)
            lost = [other for other in kept if _lies_beyond(other, line.step)]
            lost_evaluation_seconds += sum(_explained_seconds(other.event) for other in lost)
            kept = [other for other in kept if not _lies_beyond(other, line.step)]
        kept.append(line)
    return kept, void, lost_evaluation_seconds


def _lies_beyond(line: Logged[Event], step: int) -> bool:
    return line.kind in ("eval", "checkpoint") and line.step > step


def _latest_attempt(train: TrainSteps) -> int:
    """The number of the last attempt whose steps count, from 1; 0 if there is none."""
    return int(np.max(train.attempt, initial=0))


def _up_to_latest_attempt(
    lines: Sequence[Logged[Event]], train: TrainSteps
) -> Sequence[Logged[Event]]:
    """Without the attempts after the last step: what they measured says nothing about any step."""
    begun = [place for place, line in enumerate(lines) if line.kind in BEGINNINGS]
    number = _latest_attempt(train)
    return lines[: begun[number]] if 0 < number < len(begun) else lines


def _latest_links(lines: Sequence[Logged[Event]]) -> list[Link]:
    """The links as last measured: those that follow the latest start that measured any."""
    latest: list[Link] = []
    fresh = True
    for line in lines:
        if line.kind in BEGINNINGS:
            fresh = True
        elif isinstance(line.event, Link):
            latest = [line.event] if fresh else [*latest, line.event]
            fresh = False
    return latest


def _without_doubles(steps: TrainSteps, missing: list[str]) -> TrainSteps:
    """Sort by step and keep the last line of each, should a resume line be lost."""
    if not (np.diff(steps.step) <= 0).any():
        return steps
    _, last = np.unique(steps.step[::-1], return_index=True)
    missing.append(
        f"metrics.jsonl: {len(steps) - len(last):,} train lines repeat a step without a "
        "preceding resume line; the last one of each step counts"
    )
    return steps.take(len(steps) - 1 - last)


def _unexplained_gaps(
    name: str, log: _Log, late: Collection[int], missing: list[str]
) -> tuple[tuple[float, float], ...]:
    """Long silences inside one attempt of the run, from when to when."""
    gaps = np.diff(log.clock, prepend=log.clock[:1]) - log.explained
    gaps[sorted(late)] = 0
    for place, line in log.events:
        # A pause before a beginning is a pause; the line after it may compile for long.
        if line.kind in (*BEGINNINGS, "link", "calibration"):
            gaps[place : place + 2] = 0
    wall = float(np.ptp(log.clock)) if len(log.clock) else 0.0
    much = max(SHORTEST_GAP.value, UNEXPLAINED_SHARE.value * wall)
    found = np.flatnonzero(gaps > min(UNEXPLAINED_GAP.value, much))
    missing += [
        f"{name}: {gaps[place]:,.0f} s before line {place + 1:,} are not explained by the log "
        "(the clock was set, or the machine hung); counted as waiting"
        for place in found[:5]
    ]
    ends = log.clock - log.explained
    return tuple((float(ends[place] - gaps[place]), float(ends[place])) for place in found)
