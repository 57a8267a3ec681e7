"""metrics.jsonl -> what happened: steps and evaluations that count, work that was lost."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dragoman.report.clock import repair_clock
from dragoman.report.intervals import Floats
from dragoman.report.json_lines import decode_object, describe_damage, number_or_nan
from dragoman.report.line_table import numbers_of, read_table
from dragoman.report.records import (
    NAN,
    TRAIN_COLUMNS,
    CalibrationLine,
    CheckpointWrite,
    Evaluations,
    Incident,
    Life,
    Link,
    TrainSteps,
    calibration_of,
    checkpoint_of,
    evaluations_of,
    explained_seconds,
    incident_of,
    life_of,
    link_of,
    step_of,
)
from dragoman.report.thresholds import UNEXPLAINED_GAP

BEGINNINGS = ("start", "resume", "restart")

Line = Mapping[str, Any]

TRAIN_PREFIX = b'{"kind": "train"'  # As MetricsLog writes them.
SECONDS_COLUMN = TRAIN_COLUMNS.index(("seconds",))
_NOWHERE = np.zeros(0, dtype=np.int64)
_NO_TIMES = (np.zeros(0), np.zeros(0))


@dataclass(frozen=True)
class History:
    """All of metrics.jsonl; what a resume made void is kept apart."""

    train: TrainSteps
    lost: TrainSteps
    evaluations: tuple[Evaluations, ...]
    lost_evaluation_seconds: float
    checkpoints: tuple[CheckpointWrite, ...]
    lives: tuple[Life, ...]
    links: tuple[Link, ...]
    calibration: CalibrationLine | None
    incidents: tuple[Incident, ...]
    stop: Incident | None
    first_time: float
    last_time: float


@dataclass(frozen=True)
class _Log:
    """The lines as they stand in the file, with times that only go forward."""

    steps: TrainSteps
    step_places: NDArray[np.int64]  # The place of each step among all lines.
    events: Sequence[tuple[int, Line]]  # All other lines with their places.
    clock: Floats
    explained: Floats  # Seconds that each line accounts for.


def read_history(path: Path, missing: list[str]) -> History:
    """Read the log of a run, be it finished, alive or dead."""
    log = _read_log(path, missing)
    missing += _unexplained_gaps(path.name, log)
    kept, void, lost_evaluation_seconds = _apply_resumes(log)

    def of_kind(*kinds: str) -> list[Line]:
        return [line for line in kept if line.get("kind") in kinds]

    endings = of_kind("stop", *BEGINNINGS)
    calibrations = of_kind("calibration")
    return History(
        train=_without_doubles(log.steps.take(~void), missing),
        lost=log.steps.take(void),
        evaluations=evaluations_of(of_kind("eval")),
        lost_evaluation_seconds=lost_evaluation_seconds,
        checkpoints=tuple(map(checkpoint_of, of_kind("checkpoint", "checkpoint_failed"))),
        lives=tuple(
            life_of(line, float(log.clock[place - 1]) if place else None)
            for place, line in log.events
            if line.get("kind") in BEGINNINGS
        ),
        links=tuple(map(link_of, _latest_links(kept))),
        calibration=calibration_of(calibrations[-1]) if calibrations else None,
        incidents=tuple(map(incident_of, of_kind("lost", "joined"))),
        stop=incident_of(endings[-1]) if endings and endings[-1]["kind"] == "stop" else None,
        first_time=float(log.clock[0]) if len(log.clock) else NAN,
        last_time=float(log.clock[-1]) if len(log.clock) else NAN,
    )


def _read_log(path: Path, missing: list[str]) -> _Log:
    if not path.is_file():
        missing.append(f"{path.name} is missing: there is no history of the run")
        return _Log(TrainSteps(*np.zeros((len(TRAIN_COLUMNS) + 1, 0))), _NOWHERE, [], *_NO_TIMES)
    table = read_table(path, TRAIN_COLUMNS, TRAIN_PREFIX)
    events, late_steps, damaged = _decode_others(table.others)
    damaged = sorted(table.damaged + damaged)
    missing += describe_damage(path.name, damaged, table.line_count, cut_short=table.is_cut_short)
    # Train lines that were written in another style than ours join the others here.
    values = np.column_stack((table.values, *(numbers for _, numbers in late_steps)))
    lines = np.append(table.lines, [line for line, _ in late_steps]).astype(np.int64)
    order = np.argsort(lines, kind="stable")
    order = order[np.isfinite(values[0, order])]  # A step has a number.
    values, lines = values[:, order], lines[order]
    return _set_clock(path.name, values, lines, events, missing)


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
    lines: NDArray[np.int64],
    events: Sequence[tuple[int, Line]],
    missing: list[str],
) -> _Log:
    """Put all lines on one clock that only goes forward, and count their lives."""
    event_lines = np.array([number for number, _ in events], dtype=np.int64)
    order = np.argsort(np.concatenate((lines, event_lines)), kind="stable")
    places = np.empty_like(order)
    places[order] = np.arange(len(order))
    step_places, event_places = places[: len(lines)], places[len(lines) :]
    times = np.append(values[1], [number_or_nan(line.get("time")) for _, line in events])[order]
    seconds = np.nan_to_num(values[SECONDS_COLUMN])
    explained = np.append(seconds, [explained_seconds(line) for _, line in events])[order]
    clock, jumps = repair_clock(times, explained)
    for jump in jumps:
        missing.append(
            f"{name}: the clock went back by {jump.seconds:,.0f} s at line {jump.index + 1:,}; "
            "later times were moved forward to go on from there"
        )
    values[1] = clock[step_places]
    timed = [
        (int(place), {**line, "time": float(clock[place])})
        for place, (_, line) in zip(event_places, events, strict=True)
    ]
    begun = [place for place, line in timed if line.get("kind") in BEGINNINGS]
    lives = np.searchsorted(begun, step_places).astype(np.float64)
    return _Log(TrainSteps(*np.vstack((values, lives))), step_places, timed, clock, explained)


def _apply_resumes(log: _Log) -> tuple[list[Line], NDArray[np.bool_], float]:
    """Apply the rule of docs/run-folder.md: going on from step N voids what lay beyond it."""
    void = np.zeros(len(log.steps), dtype=bool)
    kept: list[Line] = []
    lost_evaluation_seconds = 0.0
    for place, line in log.events:
        if line.get("kind") in ("resume", "restart"):
            step = step_of(line)
            void |= (log.step_places < place) & (log.steps.step > step)
            lost = [
                other["kind"] in ("eval", "checkpoint") and step_of(other) > step for other in kept
            ]
            lost_evaluation_seconds += sum(
                explained_seconds(other)
                for other, is_lost in zip(kept, lost, strict=True)
                if is_lost
            )
            kept = [other for other, is_lost in zip(kept, lost, strict=True) if not is_lost]
        if "kind" in line:
            kept.append(line)
    return kept, void, lost_evaluation_seconds


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


def _unexplained_gaps(name: str, log: _Log) -> list[str]:
    """Long silences inside one life of the run."""
    gaps = np.diff(log.clock, prepend=log.clock[:1]) - log.explained
    for place, line in log.events:
        # A pause before a beginning is a pause; the line after it may compile for long.
        if line.get("kind") in (*BEGINNINGS, "link", "calibration"):
            gaps[place : place + 2] = 0
    return [
        f"{name}: {gaps[place]:,.0f} s passed before line {place + 1:,} that nothing in the log "
        "explains (the clock was set, or the machine stood still); counted as waiting"
        for place in np.flatnonzero(gaps > UNEXPLAINED_GAP.value)[:5]
    ]
