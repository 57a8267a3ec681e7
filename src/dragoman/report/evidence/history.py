"""metrics.jsonl -> what happened: steps and evaluations that count, work that was lost."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from dragoman.report.evidence.json_lines import decode_object, describe_damage, repair_clock
from dragoman.report.evidence.line_table import numbers_of, read_table
from dragoman.report.evidence.records import (
    TRAIN_COLUMNS,
    CalibrationLine,
    CheckpointWrite,
    Evaluations,
    Incident,
    Life,
    Line,
    Link,
    Record,
    TrainSteps,
    evaluations_of,
    explained_seconds,
    life_of,
    read_record,
    step_of,
    time_of,
)
from dragoman.report.series import NAN, Bools, Floats
from dragoman.report.thresholds import SHORTEST_GAP, UNEXPLAINED_GAP, UNEXPLAINED_SHARE

BEGINNINGS = ("start", "resume", "restart")

TRAIN_PREFIX = b'{"kind": "train"'  # As MetricsLog writes them.
SECONDS_COLUMN = TRAIN_COLUMNS.index(("seconds",))


@dataclass(frozen=True)
class History:
    """All of metrics.jsonl; what a resume made void is kept apart."""

    train: TrainSteps
    lost: TrainSteps
    evaluations: tuple[Evaluations, ...]
    lost_evaluation_seconds: float
    checkpoints: tuple[CheckpointWrite, ...]
    failed_checkpoints: tuple[CheckpointWrite, ...]
    lives: tuple[Life, ...]
    links: tuple[Link, ...]
    calibration: CalibrationLine | None
    machines_lost: tuple[Incident, ...]
    stop: Incident | None
    first_time: float
    last_time: float
    clock_was_set: bool
    gaps: tuple[tuple[float, float], ...]  # From when to when nothing explains what happened.

    @property
    def life(self) -> Life | None:
        """The latest life that made steps, or else the latest."""
        return self.lives[(_latest_life(self.train) or len(self.lives)) - 1] if self.lives else None

    @property
    def latest_steps(self) -> TrainSteps:
        """The steps of every life with the same workers as the latest."""
        hosts = self.life.hosts if self.life else ()
        same = [number for number, life in enumerate(self.lives, 1) if life.hosts == hosts]
        return self.train.take(np.isin(self.train.life, same)) if same else self.train


@dataclass(frozen=True)
class _Log:
    """The lines as they stand in the file, with times that only go forward."""

    steps: TrainSteps
    step_places: NDArray[np.int64]  # The place of each step among all lines.
    events: Sequence[tuple[int, Line]]  # All other lines with their places.
    clock: Floats
    explained: Floats  # Seconds that each line accounts for.
    clock_was_set: bool


def read_history(path: Path, missing: list[str]) -> History:
    """Read the log of a run, be it finished, alive or dead."""
    log = _read_log(path, missing)
    gaps = _unexplained_gaps(path.name, log, missing)
    kept, void, lost_evaluation_seconds = _apply_resumes(log)

    def of_kind(*kinds: str) -> list[Line]:
        return [line for line in kept if line.get("kind") in kinds]

    def records(record: type[Record], lines: Sequence[Line]) -> tuple[Record, ...]:
        return tuple(read_record(record, line) for line in lines)

    train = _without_doubles(log.steps.take(~void), missing)
    measured = _up_to_latest_life(kept, train)
    calibrations = [line for line in measured if line["kind"] == "calibration"]
    endings = of_kind("stop", *BEGINNINGS)[-1:]
    return History(
        train=train,
        lost=log.steps.take(void),
        evaluations=evaluations_of(of_kind("eval")),
        lost_evaluation_seconds=lost_evaluation_seconds,
        checkpoints=records(CheckpointWrite, of_kind("checkpoint")),
        failed_checkpoints=records(CheckpointWrite, of_kind("checkpoint_failed")),
        lives=tuple(
            life_of(line, float(log.clock[place - 1]) if place else None)
            for place, line in log.events
            if line.get("kind") in BEGINNINGS
        ),
        links=records(Link, _latest_links(measured)),
        calibration=read_record(CalibrationLine, calibrations[-1]) if calibrations else None,
        machines_lost=records(Incident, of_kind("lost")),
        stop=next((end for end in records(Incident, endings) if end.kind == "stop"), None),
        first_time=float(log.clock[0]) if len(log.clock) else NAN,
        last_time=float(log.clock[-1]) if len(log.clock) else NAN,
        clock_was_set=log.clock_was_set,
        gaps=gaps,
    )


def _read_log(path: Path, missing: list[str]) -> _Log:
    if not path.is_file():
        missing.append(f"{path.name} is missing: there is no history of the run")
        return _set_clock(path.name, np.zeros((len(TRAIN_COLUMNS), 0)), [], [], missing)
    table = read_table(path, TRAIN_COLUMNS, TRAIN_PREFIX)
    events, late_steps, damaged = _decode_others(table.others)
    damaged = sorted(table.damaged + damaged)
    missing += describe_damage(path.name, damaged, table.line_count, cut_short=table.is_cut_short)
    # Train lines that were written in another style than ours join the others here.
    values = np.column_stack((table.values, *(numbers for _, numbers in late_steps)))
    lines = np.append(table.lines, [line for line, _ in late_steps])
    order = np.argsort(lines, kind="stable")
    order = order[np.isfinite(values[0, order])]  # A step has a number.
    return _set_clock(path.name, values[:, order], lines[order].tolist(), events, missing)


def _decode_others(
    others: Sequence[tuple[int, bytes]],
) -> tuple[list[tuple[int, Line]], list[tuple[int, list[float]]], list[int]]:
    """Events, train lines and damaged lines among those that do not begin like a train line."""
    events: list[tuple[int, Line]] = []
    late_steps: list[tuple[int, list[float]]] = []
    damaged: list[int] = []
    for number, text in others:
        line = decode_object(text)
        if line is None:
            damaged += [number] if text.strip() else []
        elif line.get("kind") == "train":
            late_steps.append((number, numbers_of(line, TRAIN_COLUMNS)))
        else:
            events.append((number, line))
    return events, late_steps, damaged


def _set_clock(
    name: str,
    values: Floats,
    lines: Sequence[int],
    events: Sequence[tuple[int, Line]],
    missing: list[str],
) -> _Log:
    """Put all lines on one clock that only goes forward, and count their lives."""
    order = np.argsort([*lines, *(number for number, _ in events)], kind="stable")
    places = np.empty_like(order)
    places[order] = np.arange(len(order))
    step_places, event_places = places[: len(lines)], places[len(lines) :]
    times = np.append(values[1], [time_of(line) for _, line in events])[order]
    seconds = np.nan_to_num(values[SECONDS_COLUMN])
    explained = np.append(seconds, [explained_seconds(line) for _, line in events])[order]
    jumps: list[str] = []
    clock = repair_clock(name, "line", times, explained, jumps)
    missing += jumps
    values[1] = clock[step_places]
    timed = [
        (int(place), {**line, "time": float(clock[place])})
        for place, (_, line) in zip(event_places, events, strict=True)
    ]
    begun = [place for place, line in timed if line.get("kind") in BEGINNINGS]
    lives = np.searchsorted(begun, step_places).astype(np.float64)
    steps = TrainSteps(*np.vstack((values, lives)))
    return _Log(steps, step_places, timed, clock, explained, clock_was_set=bool(jumps))


def _apply_resumes(log: _Log) -> tuple[list[Line], Bools, float]:
    """Apply the rule of docs/run-folder.md: going on from step N voids what lay beyond it.

    A second start is one more beginning from step 0.
    """
    void = np.zeros(len(log.steps), dtype=bool)
    kept: list[Line] = []
    lost_evaluation_seconds = 0.0
    for place, line in log.events:
        if line.get("kind") in BEGINNINGS:
            step = step_of(line)
            void |= (log.step_places < place) & (log.steps.step > step)
            lost = [other for other in kept if _lies_beyond(other, step)]
            lost_evaluation_seconds += sum(map(explained_seconds, lost))
            kept = [other for other in kept if not _lies_beyond(other, step)]
        if "kind" in line:
            kept.append(line)
    return kept, void, lost_evaluation_seconds


def _lies_beyond(line: Line, step: int) -> bool:
    return line["kind"] in ("eval", "checkpoint") and step_of(line) > step


def _latest_life(train: TrainSteps) -> int:
    """The number of the last life whose steps count, from 1; 0 if there is none."""
    return int(np.max(train.life, initial=0))


def _up_to_latest_life(lines: Sequence[Line], train: TrainSteps) -> Sequence[Line]:
    """Without the lives after the last step: what they measured says nothing about any step."""
    begun = [place for place, line in enumerate(lines) if line["kind"] in BEGINNINGS]
    number = _latest_life(train)
    return lines[: begun[number]] if 0 < number < len(begun) else lines


def _latest_links(lines: Sequence[Line]) -> list[Line]:
    """The links as last measured: those that follow the latest start that measured any."""
    latest: list[Line] = []
    fresh = True
    for line in lines:
        if line["kind"] in BEGINNINGS:
            fresh = True
        elif line["kind"] == "link":
            latest = [line] if fresh else [*latest, line]
            fresh = False
    return latest


def _without_doubles(steps: TrainSteps, missing: list[str]) -> TrainSteps:
    """Sort by step and keep the last line of each, should a resume line be lost."""
    if not (np.diff(steps.step) <= 0).any():
        return steps
    _, last = np.unique(steps.step[::-1], return_index=True)
    missing.append(
        f"metrics.jsonl: {len(steps) - len(last):,} train lines repeat a step without a resume "
        "line before them; the last of each counts"
    )
    return steps.take(len(steps) - 1 - last)


def _unexplained_gaps(name: str, log: _Log, missing: list[str]) -> tuple[tuple[float, float], ...]:
    """Long silences inside one life of the run, from when to when."""
    gaps = np.diff(log.clock, prepend=log.clock[:1]) - log.explained
    for place, line in log.events:
        # A pause before a beginning is a pause; the line after it may compile for long.
        if line.get("kind") in (*BEGINNINGS, "link", "calibration"):
            gaps[place : place + 2] = 0
    wall = float(np.ptp(log.clock)) if len(log.clock) else 0.0
    much = max(SHORTEST_GAP.value, UNEXPLAINED_SHARE.value * wall)
    found = np.flatnonzero(gaps > min(UNEXPLAINED_GAP.value, much))
    missing += [
        f"{name}: {gaps[place]:,.0f} s passed before line {place + 1:,} that nothing in the log "
        "explains (the clock was set, or the machine stood still); counted as waiting"
        for place in found[:5]
    ]
    ends = log.clock - log.explained
    return tuple((float(ends[place] - gaps[place]), float(ends[place])) for place in found)
