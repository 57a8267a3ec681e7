"""Learning curves: their trends over the logarithm of steps, and the noise of one evaluation."""

import math

import numpy as np

from dragoman.report.evidence.series import NAN, Bools, Floats
from dragoman.report.findings.intervals import COVERAGE, Trend, trend
from dragoman.thresholds import EVALUATIONS_NEEDED

FURTHER_STEPS = 1.5
LOG_FURTHER = math.log(FURTHER_STEPS)
# The deviation of a normal distribution, in medians of its absolute value.
_DEVIATION_PER_MEDIAN = 1.4826


def coverage_each(witnesses: int) -> float:
    """How sure each interval must be, if any may decide, for all together to be 95% sure."""
    return 1 - (1 - COVERAGE) / witnesses


def last_third(step: Floats) -> Bools:
    """The steps beyond two thirds of the last one."""
    late: Bools = step > step[-1] * 2 / 3
    return late


def trend_over_steps(step: Floats, values: Floats, coverage: float = COVERAGE) -> Trend | None:
    """The line over ln(step); None with too few values."""
    known = np.isfinite(values) & (step > 0)
    if known.sum() < EVALUATIONS_NEEDED.value:
        return None
    return trend(np.log(step[known]), values[known], coverage)


def running_median(values: Floats) -> Floats:
    """Median of each value and its two neighbours; one low outlier is no minimum."""
    padded = np.concatenate((values[:1], values, values[-1:]))
    median: Floats = np.median((padded[:-2], padded[1:-1], padded[2:]), axis=0)
    return median


def evaluation_noise(step: Floats, values: Floats) -> float:
    """Standard deviation of one evaluation after the first third; NaN with too few.

    By the median difference of neighbours: neither a trend nor a jump makes it larger.
    """
    later = values[(step > step[-1] / 3) & np.isfinite(values)]
    if len(later) < EVALUATIONS_NEEDED.value:
        return NAN
    return float(_DEVIATION_PER_MEDIAN * np.median(np.abs(np.diff(later))) / math.sqrt(2))
