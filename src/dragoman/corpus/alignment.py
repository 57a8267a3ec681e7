"""Stretches of lines that are out of step, found by the lengths of both sides."""

import numpy as np
from numpy.typing import NDArray

LINES_PER_STRETCH = 50
FEWEST_LINES = 30
SHIFTS = (-3, -2, -1, 1, 2, 3)
# A long sentence has a long translation: lengths of lines that belong together go up and down
# together, those of neighbours do not. Of 50 random pairs one in 10,000 would reach 0.5.
LEAST_CORRELATION = 0.5
LEAST_DIFFERENCE = 0.4
LEAST_SPREAD = 0.1  # Of log lengths; of lines that are all as long nothing can be said.


def out_of_step(source: NDArray[np.int64], target: NDArray[np.int64]) -> NDArray[np.bool_]:
    """Mark the lines of stretches whose lengths fit those of neighbouring lines better."""
    source_logs, target_logs = (np.log1p(lengths) for lengths in (source, target))
    marked = np.zeros(len(source), dtype=bool)
    for start in range(0, len(source), LINES_PER_STRETCH):
        # A short rest at the end is judged together with the lines before it.
        stop = min(start + LINES_PER_STRETCH, len(source))
        first = max(0, min(start, stop - FEWEST_LINES))
        if stop - first >= FEWEST_LINES and _is_shifted(source_logs, target_logs, first, stop):
            marked[start:stop] = True
    return marked


def _is_shifted(
    source: NDArray[np.float64], target: NDArray[np.float64], start: int, stop: int
) -> bool:
    here = source[start:stop]
    in_step = _correlation(here, target[start:stop])
    if in_step is None or in_step > 1 - LEAST_DIFFERENCE:
        return False
    best = LEAST_CORRELATION
    for shift in SHIFTS:
        first, last = max(start, -shift), min(stop, len(target) - shift)
        fit = _correlation(source[first:last], target[first + shift : last + shift])
        best = max(best, fit or 0.0)
    return best > LEAST_CORRELATION and best - in_step >= LEAST_DIFFERENCE


def _correlation(one: NDArray[np.float64], other: NDArray[np.float64]) -> float | None:
    spreads = one.std(), other.std()
    if len(one) < FEWEST_LINES // 2 or min(spreads) < LEAST_SPREAD:
        return None
    product = np.mean((one - one.mean()) * (other - other.mean()))
    return float(product / (spreads[0] * spreads[1]))
