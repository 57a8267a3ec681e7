import math

import numpy as np
import pytest

from dragoman.report.intervals import autocorrelation, correlate, student_975, trend


def test_trend_by_hand() -> None:
    # A line of slope 2, a bend, and noise (1, -4, 6, -4, 1) / 10, which no parabola explains.
    x = np.array([-2.0, -1.0, 0.0, 1.0, 2.0])
    y = 1 + 2 * x + 0.5 * (x**2 - 2) + np.array([0.1, -0.4, 0.6, -0.4, 0.1])
    found = trend(x, y)
    assert found.slope == pytest.approx(2.0)
    assert found.level == pytest.approx(5.0)
    # -4 - 24 - 24 - 4 is -56, of 70: -0.8; plus 2/5 is still below zero, so all points count.
    assert found.autocorrelation == pytest.approx(-0.8)
    assert found.effective_points == 5
    assert found.noise == pytest.approx(math.sqrt(0.7 / 2))
    half = 4.3027 * math.sqrt(0.7 / 2) / math.sqrt(10)
    assert (found.low, found.high) == pytest.approx((2 - half, 2 + half))


def test_a_bent_curve_is_not_a_noisy_one() -> None:
    x = np.linspace(0, 1, 12)
    found = trend(x, 2 + x**2)
    assert found.low > 0.9
    assert found.noise < 1e-9


def test_neighbours_that_vary_together_count_for_less() -> None:
    x = np.arange(40.0)
    wave = np.sin(x / 4)
    found = trend(x, wave)
    assert found.autocorrelation > 0.8
    assert found.effective_points < 8
    independent = trend(x, np.where(x % 2, 1.0, -1.0) * np.sqrt(np.mean(wave**2)))
    assert found.high - found.low > 2 * (independent.high - independent.low)


def test_a_straight_line_has_no_doubt() -> None:
    found = trend(np.arange(6.0), 3.0 - 0.5 * np.arange(6.0))
    assert found.slope == pytest.approx(-0.5)
    assert found.high - found.low < 1e-6


@pytest.mark.parametrize(("correlation", "least"), [(0.0, 0.92), (0.3, 0.88)])
def test_intervals_hold_the_truth_as_often_as_they_say(correlation: float, least: float) -> None:
    generator = np.random.default_rng(5)
    x = np.log(np.linspace(2 / 3, 1, 18)[1:])
    held = 0
    for _ in range(400):
        noise = generator.standard_normal(len(x))
        for place in range(1, len(x)):
            noise[place] += correlation * noise[place - 1]
        found = trend(x, 0.7 * x + noise)
        held += found.low <= 0.7 <= found.high
    assert held / 400 > least


def test_student() -> None:
    assert student_975(1) == pytest.approx(12.7062)
    assert student_975(10) == pytest.approx(2.2281)
    assert student_975(0.2) == pytest.approx(12.7062)
    assert student_975(1e9) == pytest.approx(1.959964)
    assert 2.2281 > student_975(10.5) > 2.2010


def test_correlation_by_hand() -> None:
    x = np.array([1.0, 2.0, 3.0, 4.0, 5.0])
    found = correlate(x, np.array([2.0, 1.0, 4.0, 3.0, 5.0]))
    assert found is not None
    # Covariance 8, variances 10 and 10.
    assert found.value == pytest.approx(0.8)
    # Centred, y is -1, -2, 1, 0, 2 and 2 - 2 + 0 + 0 is 0: no autocorrelation to correct for.
    assert found.effective_points == pytest.approx(5)
    half = 1.959964 / math.sqrt(2)
    assert found.low == pytest.approx(math.tanh(math.atanh(0.8) - half))
    assert found.high == pytest.approx(math.tanh(math.atanh(0.8) + half))


def test_nothing_to_correlate() -> None:
    assert correlate(np.ones(10), np.arange(10.0)) is None
    assert correlate(np.arange(3.0), np.arange(3.0)) is None
    assert autocorrelation(np.full(9, 3.3)) == 0
