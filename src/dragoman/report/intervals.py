"""Slopes and correlations with intervals that respect noise and autocorrelation."""

import math
from dataclasses import dataclass

import numpy as np

from dragoman.report.series import Floats

NORMAL_975 = 1.959964
# Student's t at 97.5%, for 1 to 30 degrees of freedom.
STUDENT_975 = (
    [12.7062, 4.3027, 3.1824, 2.7764, 2.5706, 2.4469, 2.3646, 2.3060, 2.2622, 2.2281]
    + [2.2010, 2.1788, 2.1604, 2.1448, 2.1314, 2.1199, 2.1098, 2.1009, 2.0930, 2.0860]
    + [2.0796, 2.0739, 2.0687, 2.0639, 2.0595, 2.0555, 2.0518, 2.0484, 2.0452, 2.0423]
)


@dataclass(frozen=True)
class Trend:
    """A straight line through a noisy series, with the 95% interval of its slope."""

    slope: float
    low: float
    high: float
    centre: float  # Mean of x.
    level: float  # Value of the line at the last point.
    noise: float  # Standard deviation around a parabola.
    points: int
    effective_points: float
    autocorrelation: float


@dataclass(frozen=True)
class Correlation:
    """Pearson's correlation with its 95% interval."""

    value: float
    low: float
    high: float
    points: int
    effective_points: float


def student_975(degrees_of_freedom: float) -> float:
    """Student's t at 97.5%, interpolated in the inverse of the degrees of freedom."""
    inverse = 1 / max(degrees_of_freedom, 1.0)
    knots = [0.0] + [1 / degrees for degrees in range(30, 0, -1)]
    return float(np.interp(inverse, knots, [NORMAL_975, *reversed(STUDENT_975)]))


def autocorrelation(values: Floats) -> float:
    """Correlation of each value with the next, around the mean."""
    centred = values - values.mean()
    square = float(centred @ centred)
    # Rounding leaves a constant series a little noise; that noise says nothing.
    if square <= 1e-24 * float(values @ values):
        return 0.0
    return float(centred[1:] @ centred[:-1]) / square


def trend(x: Floats, y: Floats) -> Trend:
    """Fit a line; neighbours that vary together count for fewer points (Santer et al. 2000)."""
    points = len(x)
    spread = x - x.mean()
    square = float(spread @ spread)
    slope = float(spread @ (y - y.mean())) / square
    # A parabola is taken out first: a bent curve is not a noisy one.
    scaled = spread / np.abs(spread).max()
    bend = np.column_stack((np.ones(points), scaled, scaled**2))
    residuals = y - bend @ np.linalg.lstsq(bend, y, rcond=None)[0]
    residuals[np.abs(residuals) < 1e-12 * np.abs(y).max(initial=1.0)] = 0.0
    correlation = autocorrelation(residuals)
    # Residuals show about 2/n too little autocorrelation; docs/report.md has the check.
    inflated = min(max(correlation + 2 / points, 0.0), 0.99) if residuals.any() else 0.0
    effective = max(4.0, points * (1 - inflated) / (1 + inflated))
    square_sum = float(residuals @ residuals)
    half = student_975(effective - 3) * math.sqrt(square_sum / (effective - 3) / square)
    return Trend(
        slope=slope,
        low=slope - half,
        high=slope + half,
        centre=float(x.mean()),
        level=float(y.mean() + slope * spread[-1]),
        noise=math.sqrt(square_sum / (points - 3)),
        points=points,
        effective_points=effective,
        autocorrelation=correlation,
    )


def correlate(x: Floats, y: Floats) -> Correlation | None:
    """Correlate two series; None if one of them does not vary."""
    points = len(x)
    if points < 4 or np.ptp(x) <= 1e-12 * abs(x).max() or np.ptp(y) <= 1e-12 * abs(y).max():
        return None
    value = float(np.clip(np.corrcoef(x, y)[0, 1], -1.0, 1.0))
    product = min(max(autocorrelation(x) * autocorrelation(y), 0.0), 0.99)
    effective = max(4.0, points * (1 - product) / (1 + product))
    limited = min(max(value, -1 + 1e-12), 1 - 1e-12)
    half = NORMAL_975 / math.sqrt(effective - 3)
    low, high = (math.tanh(math.atanh(limited) + sign * half) for sign in (-1, 1))
    return Correlation(value, low, high, points, effective)
