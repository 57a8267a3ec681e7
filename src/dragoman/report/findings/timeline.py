"""Where the wall time of a run went, and when it did something other than training."""

import math
from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np

from dragoman.report.evidence import Evidence
from dragoman.report.evidence.history import History
from dragoman.report.evidence.series import Bools, Floats
from dragoman.thresholds import MUCH_ELSEWHERE

Part = Literal["training", "evaluation", "checkpoints", "restarts", "waiting"]
# What took much of the time beside training, if anything did.
DurationReason = Literal[
    "mostly training", "evaluation", "checkpoints", "restarts", "set-up", "pauses", "gaps"
]

SLACK = 1.5  # Seconds around an event: samples are a second apart and look back one.

Interval = tuple[float, float]


@dataclass(frozen=True)
class Duration:
    """Seconds of wall time."""

    wall: float
    parts: dict[Part, float]  # They add up to the whole.
    lost_steps: float  # The part of restarts that was work which had to be repeated.
    set_up: float  # The part of waiting between a start or resume and its first step.
    paused: float  # The part of waiting between an end and the resume after it.
    unexplained: float  # The part of waiting in long silences that nothing explains.
    overcounted: float  # Seconds that the lines account for beyond those that passed.

    @property
    def reason(self) -> DurationReason:
        """Where most of the time went that was not training, if it was much."""
        elsewhere: dict[DurationReason, float] = {
            "evaluation": self.parts["evaluation"],
            "checkpoints": self.parts["checkpoints"],
            "restarts": self.parts["restarts"],
        }
        waiting: dict[DurationReason, float] = {
            "set-up": self.set_up,
            "pauses": self.paused,
            "gaps": self.unexplained,
        }
        largest = max(elsewhere, key=lambda part: elsewhere[part])
        seconds = elsewhere[largest]
        if self.parts["waiting"] > seconds:
            largest = max(waiting, key=lambda part: waiting[part])
            seconds = self.parts["waiting"]
        return largest if seconds >= MUCH_ELSEWHERE.value * self.wall else "mostly training"


def split_duration(history: History) -> Duration:
    """Split the time from the first line to the last one."""
    wall = history.last_time - history.first_time
    lost_steps = float(np.nansum(history.lost.seconds)) + history.lost_evaluation_seconds
    recovery = set_up = paused = 0.0
    for attempt, first_step in zip(history.attempts, _first_steps(history), strict=True):
        before = 0.0 if attempt.previous_line is None else attempt.time - attempt.previous_line
        # The weights that a run starts from are evaluated before its first step, and those whose
        # evaluation is owed.
        until_step = first_step - attempt.time - _evaluated(history, attempt.time, first_step)
        if attempt.kind == "restart":
            recovery += before + until_step
        else:
            paused += before
            set_up += until_step
    parts: dict[Part, float] = {
        # Steps that count.
        "training": float(np.nansum(history.train.seconds)),
        "evaluation": _evaluated(history, -math.inf, math.inf),
        # Training stood still; writing in the background is free.
        "checkpoints": sum(write.event.seconds_blocking for write in history.checkpoints),
        # Steps that were repeated, and the way from a fault to the next step.
        "restarts": lost_steps + recovery,
    }
    # Set-up, pauses, and what nothing explains.
    rest = wall - sum(parts.values())
    parts["waiting"] = max(0.0, rest)
    unexplained = sum(end - begin for begin, end in history.gaps)
    return Duration(wall, parts, lost_steps, set_up, paused, unexplained, max(0.0, -rest))


def _evaluated(history: History, begin: float, end: float) -> float:
    """Seconds of the evaluations that ended in this time, of all sets and steps."""
    seconds = [one.event.seconds for one in history.all_evaluations if begin <= one.time <= end]
    return float(np.nansum(seconds))


def _first_steps(history: History) -> list[float]:
    """When each attempt began its first step, be it lost later or not."""
    begins = np.append(history.train.begins, history.lost.begins)
    attempts = np.append(history.train.attempt, history.lost.attempt)
    firsts = []
    for number, attempt in enumerate(history.attempts, 1):
        own = begins[attempts == number]
        firsts.append(max(attempt.time, float(own.min())) if len(own) else attempt.time)
    return firsts


def evaluation_intervals(history: History) -> list[Interval]:
    """When the run evaluated; the sets of one evaluation follow each other."""
    spent: dict[tuple[int, float], float] = {}
    ended: dict[tuple[int, float], float] = {}
    attempts = [attempt.time for attempt in history.attempts]
    for one in history.all_evaluations:
        key = bisect_right(attempts, one.time), one.step  # A restart may evaluate a step again.
        spent[key] = spent.get(key, 0.0) + float(np.nan_to_num(one.event.seconds))
        ended[key] = max(ended.get(key, one.time), one.time)
    return [(float(ended[key] - spent[key]), float(ended[key])) for key in spent]


def checkpoint_intervals(history: History) -> list[Interval]:
    """When training stood still for a checkpoint: right after its step and its evaluation."""
    train = history.train
    evaluated = {
        step: time
        for series in history.evaluations[:1]
        for step, time in zip(series.step, series.time, strict=True)
    }
    intervals = []
    for write in history.checkpoints:
        place = int(np.searchsorted(train.step, write.step))
        if place < len(train) and train.step[place] == write.step:
            begin = max(float(train.time[place]), float(evaluated.get(write.step, -np.inf)))
            intervals.append((begin, begin + write.event.seconds_blocking))
    return intervals


def restart_intervals(history: History) -> list[Interval]:
    """From the last line of an attempt to the first step of the next one."""
    return [
        (attempt.previous_line, first_step)
        for attempt, first_step in zip(history.attempts, _first_steps(history), strict=True)
        if attempt.previous_line is not None
    ]


def sample_causes(evidence: Evidence, time: Floats, slack: float = 0.0) -> dict[str, Bools]:
    """Which samples fall into something else than training, or near it; the first one counts."""
    free = np.ones(len(time), dtype=bool)
    causes = {}
    for cause, intervals in (
        ("restart", restart_intervals(evidence.history)),
        ("evaluation", evaluation_intervals(evidence.history)),
        ("checkpoint", checkpoint_intervals(evidence.history)),
        ("gap", evidence.history.gaps),
    ):
        causes[cause] = free & _inside(time, intervals, slack)
        free &= ~causes[cause]
    causes["training"] = free
    return causes


def _inside(time: Floats, intervals: Sequence[Interval], slack: float) -> Bools:
    depth = np.zeros(len(time) + 1, dtype=np.int64)
    if intervals:
        begins, ends = np.array(intervals).T
        # A sample looks back: one taken when something begins says nothing about it.
        np.add.at(depth, np.searchsorted(time, begins - slack, "right"), 1)
        np.add.at(depth, np.searchsorted(time, ends + slack, "right"), -1)
    inside: Bools = np.cumsum(depth[:-1]) > 0
    return inside
