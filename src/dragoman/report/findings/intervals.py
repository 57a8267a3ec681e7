"""Means and correlations with intervals that respect noise and autocorrelation."""

import math
from dataclasses import dataclass

import numpy as np

from dragoman.report.evidence.series import Floats

NORMAL_975 = 1.959964
COVERAGE = 0.95
# Of Gauss and Legendre; so many give Student's t to nine digits.
_NODES, _WEIGHTS = np.polynomial.legendre.leggauss(40)


@dataclass(frozen=True)
class Correlation:
    """Pearson's correlation with its 95% interval."""

    value: float
    low: float
    high: float
    points: int
    effective_points: float


def student_t(degrees_of_freedom: float, coverage: float) -> float:
    """The distance from zero within which Student's t stays so often; at least one degree."""
    degrees = max(degrees_of_freedom, 1.0)
    scale = math.exp(math.lgamma((degrees + 1) / 2) - math.lgamma(degrees / 2))
    # One degree of freedom has the widest tails, and a closed form.
    low, high = 0.0, math.tan(math.pi / 2 * coverage)
    while high - low > 1e-9 * high:
        middle = (low + high) / 2
        # Over the angle whose tangent is t / sqrt(degrees), its density is a power of the cosine.
        half_angle = math.atan(middle / math.sqrt(degrees)) / 2
        integral = half_angle * float(_WEIGHTS @ np.cos(half_angle * (1 + _NODES)) ** (degrees - 1))
        if 2 / math.sqrt(math.pi) * scale * integral < coverage:
            low = middle
        else:
            high = middle
    return high


def autocorrelation(values: Floats) -> float:
    """Correlation of each value with the next, around the mean."""
    centred = values - values.mean()
    square = float(centred @ centred)
    # Rounding leaves a constant series a little noise; that noise says nothing.
    if square <= 1e-24 * float(values @ values):
        return 0.0
    return float(centred[1:] @ centred[:-1]) / square


def effective_points(points: int, correlation: float, fewest: float) -> float:
    """As many independent points as say what these do, whose neighbours vary together."""
    together = min(max(correlation, 0.0), 0.99)
    return max(fewest, points * (1 - together) / (1 + together))


def lowest_mean(values: Floats) -> float:
    """The low end of the 95% interval of a mean; minus infinity for a single value."""
    if len(values) < 2:
        return -math.inf
    effective = effective_points(len(values), autocorrelation(values), fewest=2.0)
    half = student_t(effective - 1, COVERAGE) * float(values.std(ddof=1)) / math.sqrt(effective)
    return float(values.mean()) - half


def correlate(x: Floats, y: Floats) -> Correlation | None:
    """Correlate two series; None if one of them does not vary."""
    points = len(x)
    if points < 4 or np.ptp(x) <= 1e-12 * abs(x).max() or np.ptp(y) <= 1e-12 * abs(y).max():
        return None
    value = float(np.clip(np.corrcoef(x, y)[0, 1], -1.0, 1.0))
    effective = effective_points(points, autocorrelation(x) * autocorrelation(y), fewest=4.0)
    limited = min(max(value, -1 + 1e-12), 1 - 1e-12)
    half = NORMAL_975 / math.sqrt(effective - 3)
    low, high = (math.tanh(math.atanh(limited) + sign * half) for sign in (-1, 1))
    return Correlation(value, low, high, points, effective)
