"""The numbers of prediction/recalibration.py, fitted to made-up runs.

    python benchmarks/fit_calibration.py [--runs 6000] [--turns 20000] [--seed 33]

Draws runs as benchmarks/calibration.py does, which then needs another seed, and prints for each
question the log of the factor and the two powers that make the truth likeliest.
"""

import argparse
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from functools import partial

import numpy as np

from calibration import doubtful_turn
from dragoman.prediction.outlook import MEANINGFUL, look_ahead
from dragoman.prediction.recalibration import SUREST
from dragoman.schedule import Floats
from dragoman.thresholds import OVERFITTING_RISE
from made_up_runs import Settings, make_run

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
    """Logistic regression by Newton's method."""
    share, truth = np.array(shares, dtype=float).T
    share = np.clip(share, SUREST, 1 - SUREST)
    columns = np.array([np.ones_like(share), np.log(share), -np.log(1 - share)])
    found = np.zeros(3)
    for _ in range(50):
        chance = 1 / (1 + np.exp(-found @ columns))
        curvature = (columns * chance * (1 - chance)) @ columns.T
        found = found + np.linalg.solve(curvature, columns @ (truth - chance))
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
        print(
            f"gain, schedule with an end {has_end}: {fit(chosen).round(2)} ({len(chosen):,} runs)"
        )
    doubtful = [one for one in turns if one is not None]
    print(f"turn: {fit(doubtful).round(2)} ({len(doubtful):,} runs)")


if __name__ == "__main__":
    main()
