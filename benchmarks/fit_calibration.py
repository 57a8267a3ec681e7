"""The numbers of prediction/recalibration.py, fitted to made-up runs.

    python benchmarks/fit_calibration.py [--runs 6000] [--turns 20000] [--seed 33]

Draws runs as benchmarks/calibration.py does, which then needs another seed, and prints for each
question the log-odds at the shares of that file that make the truth likeliest, and for a turn what
the seen rises add to them.
"""

import argparse
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from functools import partial

import numpy as np

from calibration import foretell_loss
from dragoman.prediction.outlook import MEANINGFUL, look_ahead
from dragoman.prediction.recalibration import LOG_ODDS, SEEN_RISES, SUREST
from dragoman.schedule import Floats
from dragoman.thresholds import OVERFITTING_RISE
from made_up_runs import Settings, make_run

SMOOTHNESS = 2.0  # Of the log-odds; more of it made bins worse, and less of it made them noisier.


def gain_share(seed: tuple[int, int], settings: Settings) -> tuple[bool, float, bool]:
    """Whether the schedule has an end, the share of the likelier measure, and the truth."""
    run = make_run(np.random.default_rng(seed), settings)
    ahead = look_ahead(run.steps, run.loss, run.bleu, run.schedule)
    share = max(
        float((found.gain >= MEANINGFUL[measure]).mean())
        for measure, found in ahead.forecasts.items()
        if measure == "BLEU" or not ahead.is_at_ceiling
    )
    return run.schedule is not None, share, run.worth >= 1


def turn_share(seed: tuple[int, int], settings: Settings) -> tuple[float, float, bool]:
    """The share of draws that have risen, how far the evaluations have, and the truth."""
    run, found = foretell_loss(seed, settings)
    least = OVERFITTING_RISE.value
    return float((found.rise >= least).mean()), found.seen_rise / least, run.rise >= least


def fit(shares: Sequence[float], truth: Sequence[bool], seen: Sequence[float] = ()) -> Floats:
    """Logistic regression on hat functions, smoothed by their second differences.

    Those of the shares come first, then those of the seen rises but the last, if there are any.
    """
    share = np.clip(shares, SUREST, 1 - SUREST)
    parts = [(np.log(share / (1 - share)), LOG_ODDS, len(LOG_ODDS))]
    parts += [(np.array(seen), SEEN_RISES, len(SEEN_RISES) - 1)] if seen else []
    hats = np.concatenate(
        [
            [np.interp(at, knots, one) for one in np.eye(len(knots))[:free]]
            for at, knots, free in parts
        ]
    )
    penalty = 1e-3 * np.eye(len(hats))
    first = 0
    for _, knots, free in parts:
        own = slice(first, first + free)
        bends = np.diff(np.eye(len(knots)), n=2, axis=0)[:, :free]
        penalty[own, own] += SMOOTHNESS * bends.T @ bends
        first = own.stop
    target = np.array(truth, dtype=float)

    def loss(found: Floats) -> float:
        odds = found @ hats
        smooth = 0.5 * found @ penalty @ found
        return float((np.logaddexp(0, odds) - target * odds).sum() + smooth)

    found: Floats = np.zeros(len(hats))
    for _ in range(100):
        chance = 1 / (1 + np.exp(-found @ hats))
        curvature = (hats * chance * (1 - chance)) @ hats.T + penalty
        step = np.linalg.solve(curvature, hats @ (target - chance) - penalty @ found)
        # Newton's method goes too far where nearly all shares are alike.
        while loss(found + step) > loss(found) and np.abs(step).max() > 1e-9:
            step = step / 2
        found = found + step
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--runs", type=int, default=6_000)
    parser.add_argument("--turns", type=int, default=20_000, help="more runs, for the loss alone")
    parser.add_argument("--seed", type=int, default=33)
    parser.add_argument("--processes", type=int, help="as many as there are processors")
    arguments = parser.parse_args()
    settings = Settings()
    with ProcessPoolExecutor(arguments.processes) as pool:
        seeds = [(arguments.seed, number) for number in range(arguments.runs)]
        gains = list(pool.map(partial(gain_share, settings=settings), seeds, chunksize=25))
        seeds = [(arguments.seed + 1, number) for number in range(arguments.turns)]
        turns = list(pool.map(partial(turn_share, settings=settings), seeds, chunksize=100))
    for has_end in (False, True):
        chosen = [(share, truth) for scheduled, share, truth in gains if scheduled is has_end]
        found = fit(*zip(*chosen, strict=True)).round(2).tolist()
        print(f"gain, schedule with an end {has_end}: {found} ({len(chosen):,} runs)")
    share, seen, truth = zip(*turns, strict=True)
    found = fit(share, truth, seen).round(2).tolist()
    print(f"turn: {found[: len(LOG_ODDS)]}, seen rises {[*found[len(LOG_ODDS) :], 0.0]}")


if __name__ == "__main__":
    main()
