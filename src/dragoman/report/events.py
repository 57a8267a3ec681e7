"""When the run did something else than train."""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from dragoman.report.evidence import Evidence
from dragoman.report.intervals import Floats

_SLACK = 1.5  # Seconds around an event: samples are a second apart and look back one.

Interval = tuple[float, float]


def evaluation_intervals(evidence: Evidence) -> list[Interval]:
    """When the run evaluated; the sets of one evaluation follow each other."""
    spent: dict[float, float] = {}
    ended: dict[float, float] = {}
    for series in evidence.history.evaluations:
        for step, time, seconds in zip(series.step, series.time, series.seconds, strict=True):
            spent[step] = spent.get(step, 0.0) + float(np.nan_to_num(seconds))
            ended[step] = max(ended.get(step, time), time)
    return [(float(ended[step] - spent[step]), float(ended[step])) for step in spent]


def checkpoint_intervals(evidence: Evidence) -> list[Interval]:
    """When training stood still for a checkpoint: right after its step and its evaluation."""
    train, series = evidence.history.train, evidence.evaluations
    evaluated = {} if series is None else dict(zip(series.step, series.time, strict=True))
    intervals = []
    for write in evidence.history.checkpoints:
        place = int(np.searchsorted(train.step, write.step))
        if not write.failure and place < len(train) and train.step[place] == write.step:
            begin = max(float(train.time[place]), float(evaluated.get(write.step, -np.inf)))
            intervals.append((begin, begin + write.seconds_blocking))
    return intervals


def restart_intervals(evidence: Evidence) -> list[Interval]:
    """From the last line of a life to the first step of the next one."""
    train, lost = evidence.history.train, evidence.history.lost
    intervals = []
    for number, life in enumerate(evidence.history.lives, 1):
        if life.previous_line is None:
            continue
        begun = [
            float((steps.time - np.nan_to_num(steps.seconds))[steps.life == number].min())
            for steps in (train, lost)
            if (steps.life == number).any()
        ]
        intervals.append((life.previous_line, min(begun, default=life.time)))
    return intervals


def sample_causes(evidence: Evidence, time: Floats) -> dict[str, NDArray[np.bool_]]:
    """Which samples fall into an evaluation, a checkpoint or a restart; the first one counts."""
    free = np.ones(len(time), dtype=bool)
    causes = {}
    for cause, intervals in (
        ("restart", restart_intervals(evidence)),
        ("evaluation", evaluation_intervals(evidence)),
        ("checkpoint", checkpoint_intervals(evidence)),
    ):
        causes[cause] = free & _inside(time, intervals)
        free &= ~causes[cause]
    causes["training"] = free
    return causes


def _inside(time: Floats, intervals: Sequence[Interval]) -> NDArray[np.bool_]:
    depth = np.zeros(len(time) + 1, dtype=np.int64)
    if intervals:
        begins, ends = np.array(intervals).T
        np.add.at(depth, np.searchsorted(time, begins - _SLACK), 1)
        np.add.at(depth, np.searchsorted(time, ends + _SLACK), -1)
    inside: NDArray[np.bool_] = np.cumsum(depth[:-1]) > 0
    return inside
