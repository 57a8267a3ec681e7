"""Where the step time went: data, compute, network, optimizer, other."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

import numpy as np

from dragoman.report.evidence.series import NAN, Floats, mean_of_known
from dragoman.report.evidence.step_series import TrainSteps
from dragoman.thresholds import (
    NETWORK_IS_BOTTLENECK,
    STEADY_STEPS_NEEDED,
    UNEVEN_STEPS,
    WAITING_FOR_DATA,
    WARM_UP_STEPS,
)

StepTimeReason = Literal[
    "some slow steps",
    "half of the steps slow",
    "waits for data",
    "waits for a worker",
    "few steps",
    "waits for gradients",
    "mostly compute",
    "mostly optimizer",
    "mostly outside the phases",
    "phases not known",
]

PHASES = {
    "data": "seconds_data",
    "compute": "seconds_compute",
    "exposed communication": "seconds_exposed_communication",
    "optimizer": "seconds_optimizer",
    "other": "seconds_other",
}
_MOSTLY: Mapping[str, StepTimeReason] = {
    "compute": "mostly compute",
    "exposed communication": "waits for gradients",
    "optimizer": "mostly optimizer",
    "other": "mostly outside the phases",
}


@dataclass(frozen=True)
class StepTimes:
    """Step times, evaluation and checkpoints excluded; the first steps of a start left out."""

    steps: int
    left_out: int
    local_steps: int  # From one exchange to the next; only the last of them waits for it.
    mean: float
    median: float  # Of the steps, or of the mean steps of rounds; NaN if there are too few.
    percentile_5: float
    percentile_95: float
    phases: dict[str, float]  # Mean seconds of each, NaN if not known.

    @property
    def are_few(self) -> bool:
        """Whether all steps count, because too few are left without the first ones."""
        return self.steps < STEADY_STEPS_NEEDED.value

    @property
    def largest_first(self) -> list[str]:
        """The phases that are known."""
        known = [name for name, seconds in self.phases.items() if np.isfinite(seconds)]
        return sorted(known, key=lambda name: -self.phases[name])

    def share(self, phase: str) -> float:
        """A phase as part of the step, NaN if it is not known."""
        return self.phases[phase] / self.mean if self.mean else NAN


def steady_steps(train: TrainSteps) -> TrainSteps:
    """All steps but the first few of each attempt, if enough are left."""
    warm = np.zeros(len(train), dtype=bool)
    for attempt in np.unique(train.attempt):
        warm[np.flatnonzero(train.attempt == attempt)[int(WARM_UP_STEPS.value) :]] = True
    warm &= np.isfinite(train.seconds)
    return train.take(warm) if warm.sum() >= STEADY_STEPS_NEEDED.value else train


def measure_steps(train: TrainSteps, local_steps: int = 1) -> StepTimes | None:
    """Distribution and phases of the step time."""
    steady = steady_steps(train)
    steady = steady.take(np.isfinite(steady.seconds))
    if not len(steady):
        return None
    low = median = high = NAN
    comparable = _steps_of_rounds(steady, local_steps)
    if len(comparable) >= STEADY_STEPS_NEEDED.value:
        low, median, high = map(float, np.percentile(comparable, [5, 50, 95]))
    return StepTimes(
        steps=len(steady),
        left_out=len(train) - len(steady),
        local_steps=local_steps,
        mean=float(steady.seconds.mean()),
        median=median,
        percentile_5=low,
        percentile_95=high,
        phases={name: mean_of_known(getattr(steady, field)) for name, field in PHASES.items()},
    )


def _steps_of_rounds(steps: TrainSteps, local_steps: int) -> Floats:
    """The mean step of each whole round: the last one of a round waits, the others do not."""
    _, rounds, sizes = np.unique(
        (steps.step - 1) // local_steps, return_inverse=True, return_counts=True
    )
    means: Floats = (np.bincount(rounds, steps.seconds) / sizes)[sizes == local_steps]
    return means


def judge_steps(times: StepTimes, is_held_up: bool) -> StepTimeReason:
    """What is wrong with the steps, or else where most of their time went."""
    if times.percentile_95 > UNEVEN_STEPS.value * times.median:
        return "some slow steps"
    if times.median > UNEVEN_STEPS.value * times.percentile_5:
        return "half of the steps slow"
    if times.share("data") >= WAITING_FOR_DATA.value:
        return "waits for data"
    if is_held_up:
        return "waits for a worker"
    if times.are_few:
        return "few steps"
    if times.share("exposed communication") >= NETWORK_IS_BOTTLENECK.value:
        return "waits for gradients"
    largest = next(iter(times.largest_first), "")
    return _MOSTLY.get(largest, "phases not known")
