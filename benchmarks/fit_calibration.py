"""The numbers of prediction/recalibration.py, fitted to made-up runs.

    python benchmarks/fit_calibration.py [--runs 6000] [--turns 20000] [--seed 33]

Draws runs as benchmarks/calibration.py does, which then needs another seed, and prints for each
question the log-odds at the shares of that file that make the truth likeliest.
"""

import argparse
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from functools import partial

import numpy as np

from calibration import doubtful_turn
from dragoman.prediction.outlook import MEANINGFUL, look_ahead
from dragoman.prediction.recalibration import LOG_ODDS, SUREST
from dragoman.schedule import Floats
from dragoman.thresholds import OVERFITTING_RISE
from made_up_runs import Settings, make_run

SMOOTHNESS = 2.0  # Of the log-odds; more of it made bins worse, and less of it made them noisier.
Shares = Sequence[tuple[float, bool]]  # Of the draws in which it is so, and whether it was so.


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


def turn_share(seed: tuple[int, int], settings: Settings) -> tuple[float, bool] | None:
    """The share of draws that have risen, and the truth; None of a run that is not near a turn."""
    turn = doubtful_turn(seed, settings)
    return turn and (float((turn[0].rise >= OVERFITTING_RISE.value).mean()), turn[1])


def fit(shares: Shares) -> Floats:
    """Logistic regression on hat functions, smoothed by their second differences."""
    share, truth = np.array(shares, dtype=float).T
    share = np.clip(share, SUREST, 1 - SUREST)
    place = np.log(share / (1 - share))
    hats = np.array([np.interp(place, LOG_ODDS, one) for one in np.eye(len(LOG_ODDS))])
    bends = np.diff(np.eye(len(LOG_ODDS)), n=2, axis=0)
    penalty = SMOOTHNESS * bends.T @ bends + 1e-3 * np.eye(len(LOG_ODDS))

    def loss(found: Floats) -> float:
        odds = found @ hats
        smooth = 0.5 * found @ penalty @ found
        return float((np.logaddexp(0, odds) - truth * odds).sum() + smooth)

    found: Floats = np.zeros(len(LOG_ODDS))
    for _ in range(100):
        chance = 1 / (1 + np.exp(-found @ hats))
        curvature = (hats * chance * (1 - chance)) @ hats.T + penalty
        step = np.linalg.solve(curvature, hats @ (truth - chance) - penalty @ found)
        # Newton's method goes too far where nearly all shares are alike.
        while loss(found + step) > loss(found) and np.abs(step).max() > 1e-9:
            step = step / 2
        found = found + step
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--runs", type=int, default=6_000)
    parser.add_argument("--turns", type=int, default=20_000, help="drawn; few of them are doubtful")
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
        found = fit(chosen).round(2).tolist()
        print(f"gain, schedule with an end {has_end}: {found} ({len(chosen):,} runs)")
    doubtful = [one for one in turns if one is not None]
    print(f"turn: {fit(doubtful).round(2).tolist()} ({len(doubtful):,} runs)")


if __name__ == "__main__":
    main()
