"""From the share of draws in which something is true to a probability that holds in made-up runs.

No curve of the grid is the true one: shares are off, and in the same way in run after run. A
piecewise linear function of the log-odds puts that right, and for a turn another one, of how far
the evaluations themselves have risen; benchmarks/fit_calibration.py fits them, to other runs than
those in docs/results.md.
"""

import math
from dataclasses import dataclass

import numpy as np

SUREST = 1 / 4_000  # Nothing is taken to be surer than the draws can show.
# Shares between which log-odds are interpolated.
SHARES = (SUREST, 0.005, 0.02, 0.06, 0.15, 0.3, 0.5, 0.7, 0.85, 0.94, 0.98, 0.995, 1 - SUREST)


def log_odds(share: float) -> float:
    """Of a share that is neither 0 nor 1."""
    return math.log(share / (1 - share))


LOG_ODDS = tuple(map(log_odds, SHARES))
# How far the last evaluations lie above those before, as part of the rise that is asked about. From
# the last one on it tells nothing that the draws do not: noise alone may have brought it about.
SEEN_RISES = (-1.0, -0.5, -0.25, 0.0, 0.25, 0.5)


@dataclass(frozen=True)
class Recalibration:
    """Log-odds as they turned out: for each of SHARES and, to be added, of SEEN_RISES."""

    found: tuple[float, ...]
    by_seen_rise: tuple[float, ...] = (0.0,) * len(SEEN_RISES)

    def probability(self, share: float, seen_rise: float = 0.0) -> float:
        """What happens as often as is said."""
        share = min(max(share, SUREST), 1 - SUREST)
        odds = np.interp(log_odds(share), LOG_ODDS, self.found)
        odds += np.interp(seen_rise, SEEN_RISES, self.by_seen_rise)
        return 1 / (1 + math.exp(-float(odds)))


# Of a gain, by whether the schedule has an end; and of a turn.
GAIN = {
    False: Recalibration(
        (-6.19, -5.45, -4.61, -3.31, -2.28, -0.82, 0.76, 1.32, 1.95, 2.73, 3.41, 4.14, 5.49)
    ),
    True: Recalibration(
        (-2.75, -2.08, -1.81, -1.37, -0.71, 0.16, 1.25, 2.46, 3.49, 4.79, 5.90, 6.78, 7.69)
    ),
}
TURN = Recalibration(
    (-9.62, -7.03, -5.05, -3.38, -1.60, -0.23, 1.27, 2.42, 3.48, 4.21, 5.32, 7.07, 9.03),
    by_seen_rise=(-0.29, -0.71, -1.10, -1.70, -1.49, 0.0),
)
