"""The learning rate of each step: a pure function, so that a report can check the logged curve."""

import math

import numpy as np
from numpy.typing import NDArray

from dragoman.config import ScheduleSettings

Floats = NDArray[np.float64]


def learning_rate(
    step: int, schedule: ScheduleSettings, d_model: int, total_steps: int | None
) -> float:
    """Learning rate of a step; the first step is 1."""
    return float(learning_rates(np.array([float(step)]), schedule, d_model, total_steps)[0])


def learning_rates(
    steps: Floats, schedule: ScheduleSettings, d_model: int, total_steps: int | None
) -> Floats:
    """Learning rates of many steps at once."""
    warmup = schedule.warmup_steps
    if schedule.kind == "transformer":
        rise_or_fall = np.minimum(1 / np.sqrt(steps), steps / (warmup * math.sqrt(warmup)))
        return schedule.scale / math.sqrt(d_model) * rise_or_fall
    rise = schedule.peak * steps / warmup
    after = schedule.peak * _fraction_of_peak(steps, schedule, total_steps)
    return np.where(steps < warmup, rise, after)


def _fraction_of_peak(steps: Floats, schedule: ScheduleSettings, total_steps: int | None) -> Floats:
    """What is left of the peak after the rise."""
    final = schedule.final_fraction
    match schedule.kind:
        case "inverse_square_root":
            return np.sqrt(schedule.warmup_steps / steps)
        case "cosine":
            assert total_steps, "the config's checks ask for it"
            done = (steps - schedule.warmup_steps) / (total_steps - schedule.warmup_steps)
            return final + (1 - final) * (1 + np.cos(math.pi * np.minimum(done, 1.0))) / 2
        case "warmup_stable_decay":
            assert total_steps, "the config's checks ask for it"
            left = (total_steps - steps) / schedule.decay_steps
            return final + (1 - final) * np.clip(left, 0.0, 1.0)
        case _:
            return np.ones_like(steps)
