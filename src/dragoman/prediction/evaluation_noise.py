"""What evaluations tell before any curve is fitted: their noise, and how far they have risen."""

import math

import numpy as np

from dragoman.schedule import Floats


def rough_noise(values: Floats) -> float:
    """By second differences, in which a curve's fall hardly shows."""
    if len(values) < 4:
        return 0.0
    later = values[len(values) // 3 :]
    later = later if len(later) >= 4 else values
    return float(1.4826 * np.median(np.abs(np.diff(later, 2))) / math.sqrt(6))


def running_median(values: Floats) -> Floats:
    """Median of each value and its two neighbours; one low outlier is no minimum."""
    padded = np.concatenate((values[:1], values, values[-1:]))
    median: Floats = np.median((padded[:-2], padded[1:-1], padded[2:]), axis=0)
    return median


def seen_rise(values: Floats) -> float:
    """How far the mean of the last three lies above the lowest median of three before them."""
    return float(values[-3:].mean() - running_median(values[:-3]).min())
