"""The learning rate of each step: a pure function, so that a report can check the logged curve.

A schedule is one entry of SCHEDULES, besides its name and its traits in config.py.
"""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from dragoman.config import ScheduleKind, ScheduleSettings
from dragoman.wording import plural

Floats = NDArray[np.float64]


@dataclass(frozen=True)
class Run:
    """What a schedule may depend on beside its own settings."""

    settings: ScheduleSettings
    d_model: int
    total_steps: int | None

    @property
    def steps(self) -> int:
        """All steps of the run."""
        assert self.total_steps, "the config's checks ask for it"
        return self.total_steps

    @property
    def rise(self) -> str:
        """The warm-up in words."""
        settings = self.settings
        return f"{settings.peak:g}, reached linearly over {plural(settings.warmup_steps, 'step')}"

    @property
    def end(self) -> str:
        """Where the rate ends, in words."""
        fraction = self.settings.final_fraction
        return f"{fraction:g} of it" if fraction else "zero"


@dataclass(frozen=True)
class Schedule:
    """One kind of schedule."""

    rates: Callable[[Floats, Run], Floats]
    formula: Callable[[Run], str]  # As people write it.


def learning_rate(
    step: int, schedule: ScheduleSettings, d_model: int, total_steps: int | None
) -> float:
    """Learning rate of a step; the first step is 1."""
    return float(learning_rates(np.array([float(step)]), schedule, d_model, total_steps)[0])


def learning_rates(
    steps: Floats, schedule: ScheduleSettings, d_model: int, total_steps: int | None
) -> Floats:
    """Learning rates of many steps at once."""
    return SCHEDULES[schedule.kind].rates(steps, Run(schedule, d_model, total_steps))


def _transformer(steps: Floats, run: Run) -> Floats:
    warmup = run.settings.warmup_steps
    rise_or_fall = np.minimum(1 / np.sqrt(steps), steps / (warmup * math.sqrt(warmup)))
    return run.settings.scale / math.sqrt(run.d_model) * rise_or_fall


def _rising_then(fraction: Callable[[Floats, Run], Floats]) -> Callable[[Floats, Run], Floats]:
    """Rise linearly to the peak, then follow a fraction of it."""

    def rates(steps: Floats, run: Run) -> Floats:
        peak, warmup = run.settings.peak, run.settings.warmup_steps
        return np.where(steps < warmup, peak * steps / warmup, peak * fraction(steps, run))

    return rates


def _root(steps: Floats, run: Run) -> Floats:
    fraction: Floats = np.sqrt(run.settings.warmup_steps / steps)
    return fraction


def _cosine(steps: Floats, run: Run) -> Floats:
    warmup, final = run.settings.warmup_steps, run.settings.final_fraction
    done = np.minimum((steps - warmup) / (run.steps - warmup), 1.0)
    fraction: Floats = final + (1 - final) * (1 + np.cos(math.pi * done)) / 2
    return fraction


def _linear_end(steps: Floats, run: Run) -> Floats:
    final = run.settings.final_fraction
    left = (run.steps - steps) / run.settings.decay_steps
    fraction: Floats = final + (1 - final) * np.clip(left, 0.0, 1.0)
    return fraction


SCHEDULES: Mapping[ScheduleKind, Schedule] = {
    "transformer": Schedule(
        _transformer,
        lambda run: (
            f"{run.settings.scale:g} · {run.d_model}^-0.5 · "
            f"min(step^-0.5, step · {run.settings.warmup_steps:,}^-1.5)"
        ),
    ),
    "inverse_square_root": Schedule(
        _rising_then(_root),
        lambda run: (
            f"{run.rise}, then falling as {run.settings.peak:g} · "
            f"({run.settings.warmup_steps:,} / step)^0.5"
        ),
    ),
    "cosine": Schedule(
        _rising_then(_cosine),
        lambda run: (
            f"{run.rise}, then half a cosine down to {run.end} at step {run.total_steps or 0:,}"
        ),
    ),
    "constant": Schedule(
        _rising_then(lambda steps, _: np.ones_like(steps)),
        lambda run: f"{run.rise}, then held",
    ),
    "warmup_stable_decay": Schedule(
        _rising_then(_linear_end),
        lambda run: (
            f"{run.rise}, held, then falling linearly to {run.end} over the last "
            f"{run.settings.decay_steps:,} of {run.total_steps or 0:,} steps"
        ),
    ),
}
