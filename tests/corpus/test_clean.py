from typing import get_args

import numpy as np
import pytest

from dragoman.config import CleaningSettings
from dragoman.corpus.clean import (
    FILTERS,
    FilterName,
    count_words,
    first_occurrences,
    reason_to_drop,
)


def test_every_filter_is_in_the_table_with_a_setting_that_is_off() -> None:
    assert tuple(FILTERS) == get_args(FilterName)
    settings = [one.setting for one in FILTERS.values() if one.setting]
    assert not any(getattr(CleaningSettings(), name) for name in settings)


@pytest.mark.parametrize(
    ("source", "target", "reason"),
    [
        ("a b c", "x y z", None),
        ("tabs\tare blanks", "so", None),
        ("", "x", "empty_side"),
        ("bell \x07", "x", "control_characters"),
        ("x", "nonchar \ufdd0", "control_characters"),
        ("x", "nonchar \U0002fffe", "control_characters"),
        ("w " * 80, "w " * 80, None),
        ("w " * 81, "w " * 80, "too_many_words"),
        ("one", "w " * 9, None),
        ("w " * 10, "one", "length_ratio"),
        ("same", "same", None),
    ],
)
def test_first_filter_that_catches_a_pair(source: str, target: str, reason: str | None) -> None:
    assert reason_to_drop(source.strip(), target.strip(), CleaningSettings()) == reason


def test_identical_sides_are_dropped_on_request() -> None:
    settings = CleaningSettings(drop_identical=True)
    assert reason_to_drop("same", "same", settings) == "identical_sides"
    assert reason_to_drop("Same", "SAME", settings) == "identical_sides"
    assert reason_to_drop("same", "sane", settings) is None


def test_scripts_without_blanks_count_characters() -> None:
    assert count_words("two words") == 2
    assert count_words("größere Wörter") == 2
    # Otherwise the length ratio would drop every long Chinese sentence.
    assert count_words("我喜欢学习语言") == 1 + 7


def test_first_occurrences_agree_with_a_set_whatever_the_group_size() -> None:
    hashes = np.random.default_rng(0).integers(0, 500, size=3_000).astype(np.uint64)
    seen: set[int] = set()
    expected = [not (value in seen or seen.add(value)) for value in hashes.tolist()]  # type: ignore[func-returns-value]
    for pairs_at_once in (100, 999, 10_000):
        assert first_occurrences(hashes, pairs_at_once).tolist() == expected
