import math
from typing import get_args

import numpy as np
import pytest

from dragoman.config import SCHEDULE_TRAITS, ScheduleKind, ScheduleSettings
from dragoman.schedule import SCHEDULES, learning_rate, learning_rates


def test_every_schedule_that_can_be_asked_for_is_there() -> None:
    assert tuple(SCHEDULES) == tuple(SCHEDULE_TRAITS) == get_args(ScheduleKind)


def test_transformer_schedule_of_the_reference_runs() -> None:
    schedule = ScheduleSettings(scale=2.0, warmup_steps=8000)
    for step in (1, 100, 7999, 8000, 8001, 50_000):
        law = 2.0 * 512**-0.5 * min(step**-0.5, step * 8000**-1.5)
        assert learning_rate(step, schedule, 512, None) == pytest.approx(law, rel=1e-12)
    rates = [learning_rate(step, schedule, 512, None) for step in range(1, 20_000)]
    assert max(rates) == rates[7999]


@pytest.mark.parametrize(
    ("kind", "expected"),
    [
        ("inverse_square_root", {50: 0.5, 100: 1.0, 400: 0.5, 10_000: 0.1}),
        ("constant", {50: 0.5, 100: 1.0, 999: 1.0}),
        ("cosine", {50: 0.5, 100: 1.0, 550: 0.55, 1000: 0.1}),
        ("warmup_stable_decay", {50: 0.5, 100: 1.0, 800: 1.0, 900: 0.55, 1000: 0.1, 1100: 0.1}),
    ],
)
def test_other_schedules_by_hand(kind: str, expected: dict[int, float]) -> None:
    schedule = ScheduleSettings(
        kind=kind,  # type: ignore[arg-type]
        peak=3.0,
        warmup_steps=100,
        decay_steps=200,
        final_fraction=0.1,
    )
    for step, fraction in expected.items():
        rate = learning_rate(step, schedule, 512, 1000)
        assert math.isclose(rate, 3.0 * fraction, rel_tol=1e-9), step
    steps = np.array([float(step) for step in expected])
    rates = learning_rates(steps, schedule, 512, 1000)
    assert rates.tolist() == [learning_rate(step, schedule, 512, 1000) for step in expected]
