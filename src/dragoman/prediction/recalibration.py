"""From the share of draws in which something is true to a probability that holds in made-up runs.

No curve of the grid is the true one: shares are off, and in the same way in run after run. Beta
calibration (Kull, Silva Filho and Flach, 2017) bends either end of the scale by itself.
benchmarks/fit_calibration.py fits it, to other runs than those in docs/results.md.
"""

import math
from dataclasses import dataclass

SUREST = 1 / 4_000  # Nothing is taken to be surer than the draws can show.


@dataclass(frozen=True)
class Recalibration:
    """Odds of a share as they turned out: a factor, and a power for either end."""

    log_factor: float
    low: float
    high: float

    def probability(self, share: float) -> float:
        """What happens as often as is said."""
        share = min(max(share, SUREST), 1 - SUREST)
        log_odds = self.log_factor + self.low * math.log(share) - self.high * math.log(1 - share)
        return 1 / (1 + math.exp(-log_odds))


# Of a gain, by whether the schedule has an end; and of a turn.
GAIN = {False: Recalibration(1.38, 1.86, 0.48), True: Recalibration(0.03, 0.44, 2.31)}
TURN = Recalibration(1.27, 1.60, 1.41)
