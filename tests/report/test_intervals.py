import math

import numpy as np
import pytest

from dragoman.report.findings.intervals import autocorrelation, correlate, student_t


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
