"""Reads metrics.jsonl, even damaged or a week long: steps as columns, other events one by one."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Generic, TypeVar, cast

import numpy as np

from dragoman.documents import decode_object, number_or_none, parse_leniently
from dragoman.records import EVENTS, Event, EventKind
from dragoman.runs.line_table import FieldPath, Floats, Places, numbers_of, read_table

TRAIN_PREFIX = b'{"kind": "train"'  # How every line of a step begins.

OneEvent = TypeVar("OneEvent", covariant=True, bound=Event)


@dataclass(frozen=True)
class Logged(Generic[OneEvent]):
    """An event as its line has it."""

    line: int  # From 1.
    kind: EventKind
    time: float  # NaN if the line does not say.
    step: int
    event: OneEvent


@dataclass(frozen=True)
class Metrics:
    """The lines of metrics.jsonl that can be read."""

    steps: Floats  # A row for each wanted column, a column for each step.
    step_lines: Places  # The line of each step.
    events: list[Logged[Event]]  # All but steps.
    damaged: list[int]  # Lines that were passed over.
    line_count: int
    is_cut_short: bool


def read_metrics(path: Path, columns: Sequence[FieldPath]) -> Metrics:
    """Read the wanted columns of all steps, the first of them being `step`, and all events."""
    table = read_table(path, columns, TRAIN_PREFIX)
    events: list[Logged[Event]] = []
    late_steps: list[tuple[int, list[float]]] = []  # Written in another style than ours.
    damaged = list(table.damaged)
    for number, text in table.others:
        line = decode_object(text)
        if line is None:
            damaged += [number] if text.strip() else []
        elif line.get("kind") == "train":
            late_steps.append((number, numbers_of(line, columns)))
        elif logged := read_event(line, number):
            events.append(logged)
    values = np.column_stack((table.values, *(numbers for _, numbers in late_steps)))
    lines = np.append(table.lines, [line for line, _ in late_steps]).astype(np.int64)
    order = np.argsort(lines, kind="stable")
    order = order[np.isfinite(values[0, order])]  # A step has a number.
    return Metrics(
        values[:, order],
        lines[order],
        events,
        sorted(damaged),
        table.line_count,
        table.is_cut_short,
    )


def read_event(line: Mapping[str, Any], number: int = 0) -> Logged[Event] | None:
    """What can be read of one line; None if nobody knows its kind."""
    kind = line.get("kind")
    if not isinstance(kind, str) or kind not in EVENTS:
        return None
    time, step = number_or_none(line.get("time")), number_or_none(line.get("step"))
    known = cast(EventKind, kind)
    event = parse_leniently(EVENTS[known], line)
    return Logged(number, known, np.nan if time is None else time, int(step or 0), event)


def highest_steps(path: Path) -> dict[EventKind, int]:
    """The last steps that earlier attempts of the run trained and evaluated, by kind of line."""
    if not path.exists():
        return {"train": 0, "eval": 0}
    metrics = read_metrics(path, [("step",)])
    evaluated = (logged.step for logged in metrics.events if logged.kind == "eval")
    trained = int(np.max(metrics.steps[0], initial=0.0))
    return {"train": trained, "eval": max(evaluated, default=0)}
