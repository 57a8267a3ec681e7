"""Series of numbers: their types, and long ones with fewer points but the same extremes."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from dragoman.runs.line_table import Bools as Bools
from dragoman.runs.line_table import Floats as Floats

NAN = float("nan")


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
        return Envelope(*np.zeros((4, 0)))
    count = min(stretches, len(values))
    begins = np.arange(count) * len(values) // count
    sizes = np.diff(begins, append=len(values))
    return Envelope(
        x=np.add.reduceat(x, begins) / sizes,
        mean=np.add.reduceat(values, begins) / sizes,
        low=np.minimum.reduceat(values, begins),
        high=np.maximum.reduceat(values, begins),
    )


def mean_of_known(values: NDArray[np.floating]) -> float:
    """Mean of the values that are numbers; NaN if there is none."""
    known = values[np.isfinite(values)]
    return float(known.mean()) if len(known) else NAN


def fill_unknown(values: Floats) -> Floats:
    """Each value, or the last known one before it, or the first one; zeros if none is known."""
    known = np.isfinite(values)
    if known.all() or not known.any():
        return np.nan_to_num(values)
    first = int(np.argmax(known))
    places = np.maximum.accumulate(np.where(known, np.arange(len(values)), first))
    return values[places]
