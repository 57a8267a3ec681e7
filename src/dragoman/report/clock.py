"""Clocks that were set while the run went on."""

from dataclasses import dataclass

import numpy as np

from dragoman.report.intervals import Floats

TOLERATED_STEP_BACK = 1.0  # Seconds; time daemons do this much in silence.


@dataclass(frozen=True)
class ClockJump:
    """A place where the clock went back."""

    index: int
    seconds: float


def repair_clock(times: Floats, expected: Floats) -> tuple[Floats, list[ClockJump]]:
    """Make times go forward: after a step back, go on as if `expected` seconds had passed."""
    if not len(times):
        return times, []
    times = _fill_unknown(times)
    differences = np.diff(times)
    jumps = np.flatnonzero(differences < -TOLERATED_STEP_BACK) + 1
    shift = np.zeros_like(times)
    shift[jumps] = expected[jumps] - differences[jumps - 1]
    repaired = np.maximum.accumulate(times + np.cumsum(shift))
    return repaired, [ClockJump(int(index), float(-differences[index - 1])) for index in jumps]


def _fill_unknown(times: Floats) -> Floats:
    """Give a line without a time that of the line before it."""
    known = np.isfinite(times)
    if known.all() or not known.any():
        return np.nan_to_num(times)
    places = np.maximum.accumulate(np.where(known, np.arange(len(times)), 0))
    places[: int(np.argmax(known))] = int(np.argmax(known))
    return times[places]
