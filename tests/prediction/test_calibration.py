"""Probabilities mean what they say, on made-up runs; benchmarks/calibration.py has many more."""

import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parents[2] / "benchmarks"))

from calibration import check_folders, judge_seed
from made_up_runs import Settings


@pytest.mark.slow
def test_plain_cases_are_seldom_unclear_and_hardly_ever_wrong() -> None:
    settings = Settings(fewest=10)
    judged = [judge_seed((3, number), settings) for number in range(60)]
    plain = [one for one in judged if one.is_plain]
    assert len(plain) > 30
    assert sum(one.is_unclear for one in plain) <= 0.2 * len(plain)
    assert sum(one.is_wrong for one in plain) <= 2
    brier = sum((one.gain_probability - (one.worth >= 1)) ** 2 for one in judged) / len(judged)
    assert brier < 0.12


def test_a_folder_says_what_its_curve_does() -> None:
    check_folders(3, 3, Settings())
