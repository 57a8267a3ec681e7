"""Whether the learning rate did what its schedule says."""

from dataclasses import dataclass
from typing import Literal

import numpy as np

from dragoman.prediction.run_schedule import RunSchedule
from dragoman.report.evidence.step_series import TrainSteps
from dragoman.thresholds import LEARNING_RATE_DEVIATION

LearningRateReason = Literal[
    "always zero",
    "nothing known",
    "schedule not known",
    "nothing logged",
    "follows the schedule",
    "leaves the schedule",
]


@dataclass(frozen=True)
class LoggedRate:
    """What the steps say of their learning rate."""

    peak: float
    peak_step: int
    now: float
    now_step: int


@dataclass(frozen=True)
class LearningRate:
    """The log, held against the schedule."""

    reason: LearningRateReason
    logged: LoggedRate | None
    largest_deviation: float | None  # As part of the peak; None without a schedule.


def judge_learning_rate(train: TrainSteps, schedule: RunSchedule | None) -> LearningRate:
    """Compare every logged rate with what the settings make of its step."""
    known = np.isfinite(train.learning_rate)
    steps, rates = train.step[known], train.learning_rate[known]
    logged = deviation = None
    if len(rates):
        highest = int(np.argmax(rates))
        logged = LoggedRate(rates[highest], int(steps[highest]), rates[-1], int(steps[-1]))
    if schedule is not None:
        deviation = float(np.abs(rates - schedule.at(steps)).max(initial=0.0) / schedule.peak)
    return LearningRate(_reason(logged, not rates.any(), deviation), logged, deviation)


def _reason(
    logged: LoggedRate | None, is_zero: bool, deviation: float | None
) -> LearningRateReason:
    if logged is None:
        return "nothing known" if deviation is None else "nothing logged"
    if is_zero:
        return "always zero"
    if deviation is None:
        return "schedule not known"
    follows = deviation <= LEARNING_RATE_DEVIATION.value
    return "follows the schedule" if follows else "leaves the schedule"
