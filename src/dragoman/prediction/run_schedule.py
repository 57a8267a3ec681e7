"""The learning-rate schedule of a run, and how far it has progressed."""

from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from typing import Any, Literal

import numpy as np

from dragoman.config import PRESETS, SCHEDULE_TRAITS, ScheduleSettings
from dragoman.schedule import SCHEDULES, Floats, Run, learning_rates
from dragoman.thresholds import RATE_HAS_RUN_DOWN

Stage = Literal["has no end", "is still to fall", "has run down"]


@dataclass(frozen=True)
class RunSchedule:
    """A schedule of the learning rate as the settings define it."""

    settings: ScheduleSettings
    d_model: int
    total_steps: int | None

    def at(self, steps: Floats) -> Floats:
        """Learning rate of each step."""
        whole = np.maximum(1.0, np.floor(steps))
        return learning_rates(whole, self.settings, self.d_model, self.total_steps)

    @property
    def peak_step(self) -> int:
        """The step with the highest learning rate."""
        return self.settings.warmup_steps

    @property
    def peak(self) -> float:
        """The highest learning rate."""
        return float(self.at(np.array([float(self.peak_step)]))[0])

    @property
    def formula(self) -> str:
        """The schedule as people write it."""
        run = Run(self.settings, self.d_model, self.total_steps)
        return SCHEDULES[self.settings.kind].formula(run)

    @property
    def has_end(self) -> bool:
        """Whether the schedule ends with the run, so that the run cannot be made longer."""
        return SCHEDULE_TRAITS[self.settings.kind].ends_with_run

    def lasting(self, steps: float) -> "RunSchedule":
        """The same schedule, but for as many steps if it would end before."""
        if self.total_steps is None or steps <= self.total_steps:
            return self
        longer = round(self.settings.decay_steps * steps / self.total_steps)
        return replace(
            self, settings=replace(self.settings, decay_steps=longer), total_steps=round(steps)
        )

    def decay(self, steps: Floats) -> Floats:
        """How far the learning rate has come down from its peak, as part of it."""
        fallen: Floats = np.where(steps > self.peak_step, 1 - self.at(steps) / self.peak, 0.0)
        return fallen

    def summed(self, steps: Floats) -> Floats:
        """The sum of learning rates up to each step, to a thousandth."""
        every = np.linspace(0.0, float(steps.max()), 2_000)
        rates = self.at(every)
        sums = np.concatenate(([0.0], np.cumsum((rates[1:] + rates[:-1]) / 2 * every[1])))
        at: Floats = np.interp(steps, every, sums)
        return at

    def stage(self, step: float, rate: float) -> Stage:
        """How far the schedule has come."""
        if not self.has_end:
            return "has no end"
        lowest = max(RATE_HAS_RUN_DOWN.value, self.settings.final_fraction) * self.peak
        has_run_down = step > self.peak_step and rate <= lowest
        at_end = self.total_steps is not None and step >= self.total_steps
        return "has run down" if has_run_down or at_end else "is still to fall"


def schedule_of(settings: Mapping[str, Any]) -> RunSchedule | None:
    """The schedule that a run's settings ask for; None if they do not say or it is unknown."""
    try:
        table = settings["schedule"]
        known = {item.name for item in fields(ScheduleSettings)}
        chosen = ScheduleSettings(**{key: table[key] for key in table.keys() & known})
        model = settings["model"]
        d_model = int(model.get("d_model") or PRESETS[model["preset"]].d_model)
        schedule = RunSchedule(chosen, d_model, settings["training"].get("steps"))
        # A kind or a number that makes no sense shows when it is used.
        with np.errstate(all="raise"):
            return schedule if schedule.peak > 0 and schedule.formula else None
    except (KeyError, AttributeError, TypeError, ValueError, ArithmeticError, AssertionError):
        return None
