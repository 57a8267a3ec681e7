"""Where the wall time of a run went."""

from dataclasses import dataclass

import numpy as np

from dragoman.report.history import History


@dataclass(frozen=True)
class Duration:
    """Seconds of wall time; the five parts add up to the whole."""

    wall: float
    training: float  # Steps that count.
    evaluation: float
    checkpoints: float  # Training stood still; writing in the background is free.
    restarts: float  # Steps made in vain, and the way from a fault to the next step.
    waiting: float  # Everything else: set-up, pauses, and what nothing explains.
    lost_steps: float  # The part of restarts that was steps and evaluations made in vain.
    set_up: float  # The part of waiting between a start or resume and its first step.
    paused: float  # The part of waiting between an end and the resume after it.


def split_duration(history: History) -> Duration:
    """Split the time from the first line to the last one."""
    wall = history.last_time - history.first_time
    training = float(np.nansum(history.train.seconds))
    evaluation = sum(float(np.nansum(series.seconds)) for series in history.evaluations)
    checkpoints = sum(write.seconds_blocking for write in history.checkpoints)
    lost_steps = float(np.nansum(history.lost.seconds)) + history.lost_evaluation_seconds
    first_steps = _first_step_of_each_life(history)
    recovery = set_up = paused = 0.0
    for number, life in enumerate(history.lives, 1):
        before = 0.0 if life.previous_line is None else life.time - life.previous_line
        preparing = max(0.0, first_steps.get(number, life.time) - life.time)
        if life.kind == "restart":
            recovery += before + preparing
        else:
            paused += before
            set_up += preparing
    restarts = lost_steps + recovery
    waiting = wall - training - evaluation - checkpoints - restarts
    return Duration(
        wall=wall,
        training=training,
        evaluation=evaluation,
        checkpoints=checkpoints,
        restarts=restarts,
        waiting=max(0.0, waiting),
        lost_steps=lost_steps,
        set_up=set_up,
        paused=paused,
    )


def _first_step_of_each_life(history: History) -> dict[int, float]:
    """When each life began its first step, be it lost later or not."""
    beginnings: dict[int, float] = {}
    for steps in (history.train, history.lost):
        begun = steps.time - np.nan_to_num(steps.seconds)
        for life in np.unique(steps.life):
            earliest = float(begun[steps.life == life].min())
            beginnings[int(life)] = min(earliest, beginnings.get(int(life), earliest))
    return beginnings
