"""Long series for small pictures: fewer points, the same extremes."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from dragoman.report.intervals import Floats


@dataclass(frozen=True)
class Envelope:
    """Equal stretches of a series: where each lies, its mean, its lowest and highest value."""

    x: Floats
    mean: Floats
    low: Floats
    high: Floats

    def __len__(self) -> int:
        return len(self.x)


def envelope(x: Floats, y: NDArray[np.floating], stretches: int) -> Envelope:
    """Cut a series into stretches of equally many points; values that are no number are left out.

    The lowest low and the highest high are those of the whole series, whatever `stretches` is.
    """
    known = np.isfinite(y)
    x, values = x[known], y[known].astype(np.float64)
    if not len(values):
        nothing = np.zeros(0)
        return Envelope(nothing, nothing, nothing, nothing)
    count = min(stretches, len(values))
    begins = np.arange(count) * len(values) // count
    sizes = np.diff(begins, append=len(values))
    return Envelope(
        x=np.add.reduceat(x, begins) / sizes,
        mean=np.add.reduceat(values, begins) / sizes,
        low=np.minimum.reduceat(values, begins),
        high=np.maximum.reduceat(values, begins),
    )
