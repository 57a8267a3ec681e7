"""Every row of a step is used once, and the more a worker can do the more it gets."""

import random
from pathlib import Path

import pytest
import torch

from dragoman.cluster.processes import Workers
from dragoman.config_file import load_config
from dragoman.corpus.rows import Position
from dragoman.training.parts import make_parts
from dragoman.training.row_shares import STEPS_BETWEEN_CORRECTIONS, RowShares
from support import SMALL


def seconds_of(shares: RowShares, speeds: list[float]) -> list[float]:
    return [rows / speed for rows, speed in zip(shares.rows_by_worker, speeds, strict=True)]


@pytest.mark.parametrize("seed", range(20))
def test_everyone_takes_about_as_long_and_has_a_row(seed: int) -> None:
    chance = random.Random(seed)
    speeds = [chance.uniform(0.1, 10.0) for _ in range(chance.randint(1, 9))]
    rows = chance.randint(len(speeds), 500)
    shares = RowShares(rows, len(speeds), 0, is_balanced=True)
    shares.start(seconds_of(shares, speeds) if rows >= 2 * len(speeds) else [1.0] * len(speeds))
    assert sum(shares.rows_by_worker) == rows
    assert min(shares.rows_by_worker) >= 1
    if rows >= 2 * len(speeds):
        ideal = rows / sum(speeds)
        slack = [2 / speed for speed in speeds]  # A row each, and rounding.
        for seconds, extra in zip(seconds_of(shares, speeds), slack, strict=True):
            assert seconds <= ideal + extra


def test_a_worker_that_becomes_slow_is_given_less_after_a_while() -> None:
    shares = RowShares(120, 2, 1, is_balanced=True)
    shares.start([1.0, 1.0])
    assert shares.rows_by_worker == (60, 60)
    for _ in range(20 * STEPS_BETWEEN_CORRECTIONS):
        shares.note(shares.rows_by_worker, seconds_of(shares, [60.0, 30.0]))
    assert shares.rows_by_worker == (80, 40)


@pytest.mark.parametrize(("rows", "shares"), [(256, (160, 96)), (260, (160, 100)), (20, (13, 7))])
def test_shares_are_whole_micro_batches_where_there_are_enough(
    rows: int, shares: tuple[int, int]
) -> None:
    """Twice as fast is ten of sixteen; what does not fill a micro-batch goes to the last."""
    found = RowShares(rows, 2, 0, is_balanced=True, unit=16)
    found.start([1.0, 2.0])
    assert found.rows_by_worker == shares


def test_noise_does_not_move_rows_about() -> None:
    chance = random.Random(1)
    shares = RowShares(120, 2, 0, is_balanced=True)
    shares.start([1.0, 1.0])
    seen = set()
    for _ in range(50 * STEPS_BETWEEN_CORRECTIONS):
        noisy = [one * chance.uniform(0.95, 1.05) for one in seconds_of(shares, [60.0, 60.0])]
        shares.note(shares.rows_by_worker, noisy)
        seen.add(shares.rows_by_worker)
    assert seen == {(60, 60)}


def test_shares_are_even_unless_they_are_to_be_balanced() -> None:
    shares = RowShares(10, 3, 0, is_balanced=False)
    shares.start([1.0, 5.0, 9.0])
    shares.note(shares.rows_by_worker, [1.0, 5.0, 9.0])
    assert shares.rows_by_worker == (3, 3, 4)


def test_the_workers_rows_make_up_the_step(prepared: Path) -> None:
    config = load_config(prepared / "config.toml", SMALL)
    stream = make_parts(config, Workers(0, 1, torch.device("cpu"))).stream
    whole = next(stream.steps(Position()))
    found = []
    for worker in range(2):
        shares = RowShares(stream.rows_per_step, 2, worker, is_balanced=True)
        shares.start([1.0, 2.5])
        own = shares.own(whole)
        assert (own.target_tokens, own.next) == (whole.target_tokens, whole.next)
        found += own.rows.target.tolist()
    assert found == whole.rows.target.tolist()
