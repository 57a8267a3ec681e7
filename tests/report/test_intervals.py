import math

import numpy as np
import pytest

from dragoman.report.findings.intervals import autocorrelation, correlate, student_t, trend
from report.noise import drifting


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
    half = 4.302653 * math.sqrt(0.7 / 2) / math.sqrt(10)
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
    likely = found.autocorrelation + 2 / 40
    assert found.likely_autocorrelation == pytest.approx(min(0.99, likely + 4 * likely / 40))
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
        noise = drifting(generator.standard_normal(len(x)), correlation)
        found = trend(x, 0.7 * x + noise)
        held += found.low <= 0.7 <= found.high
    assert held / 400 > least


@pytest.mark.parametrize(
    ("degrees", "within_95", "within_975"),
    [
        (1, math.tan(0.475 * math.pi), math.tan(0.4875 * math.pi)),
        (2, 0.95 * math.sqrt(2 / (1 - 0.95**2)), 0.975 * math.sqrt(2 / (1 - 0.975**2))),
        (10, 2.2281389, 2.6337669),
        (30, 2.0422725, 2.3595625),
        (1e6, 1.9599664, 2.2414061),
    ],
)
def test_student(degrees: float, within_95: float, within_975: float) -> None:
    """Closed forms for one and two degrees of freedom, tables for the others."""
    assert student_t(degrees, 0.95) == pytest.approx(within_95, rel=1e-7)
    assert student_t(degrees, 0.975) == pytest.approx(within_975, rel=1e-7)


def test_student_between_whole_degrees() -> None:
    # Drawn as a normal deviate over the root of a gamma one, which has any degrees of freedom.
    generator = np.random.default_rng(1)
    drawn = generator.standard_normal(200_000) / np.sqrt(generator.gamma(0.75, size=200_000) / 0.75)
    assert np.mean(np.abs(drawn) < student_t(1.5, 0.95)) == pytest.approx(0.95, abs=0.002)
    assert student_t(0.2, 0.95) == student_t(1, 0.95)


def test_a_wider_interval_for_more_coverage() -> None:
    x, y = np.arange(6.0), np.array([0.0, 2.0, 1.0, 3.0, 5.0, 4.0])
    usual, wider = trend(x, y), trend(x, y, coverage=0.975)
    assert (usual.coverage, wider.coverage) == (0.95, 0.975)
    ratio = student_t(usual.effective_points - 3, 0.975) / student_t(
        usual.effective_points - 3, 0.95
    )
    assert wider.high - wider.slope == pytest.approx(ratio * (usual.high - usual.slope))


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
