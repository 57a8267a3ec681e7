import math
from pathlib import Path

import numpy as np
import pytest

from dragoman.config import ScheduleSettings
from dragoman.prediction.evaluation_noise import seen_rise
from dragoman.prediction.learning_curve import MOST_POINTS, Curve, Forecast, forecast
from dragoman.prediction.outlook import look_ahead
from dragoman.prediction.recalibration import GAIN, TURN
from dragoman.prediction.run_schedule import RunSchedule
from dragoman.schedule import Floats


def _forecast(
    values: Floats, steps: Floats | None = None, schedule: RunSchedule | None = None
) -> Forecast:
    steps = np.linspace(0, 1000, len(values) + 1)[1:] if steps is None else steps
    return forecast(Curve(steps, values, unit=0.02, lowest=0.0), schedule)


def _progress(count: int) -> Floats:
    return np.linspace(0, 1, count + 1)[1:]


@pytest.mark.parametrize("count", [8, 12, 25, 60])
@pytest.mark.parametrize("exponent", [0.3, 1.0])
def test_the_gain_of_a_power_law(count: int, exponent: float) -> None:
    noise = 0.004 * np.random.default_rng(count).standard_normal(count)
    found = _forecast(2 + 0.6 * _progress(count) ** -exponent + noise)
    truth = 0.6 * (1 - 1.5**-exponent)
    low, high = np.quantile(found.gain, (0.02, 0.98))
    assert low <= truth <= high
    assert found.gain_probability(0.02) > 0.85
    assert found.rise_probability(0.02) < 0.05


def test_no_forecast_leaves_what_can_be() -> None:
    """BLEU upside down, near zero and falling."""
    bleu = np.array([0.5, 0.4, 0.45, 0.3, 0.35, 0.2, 0.25, 0.2])
    found = look_ahead(np.arange(1.0, 9.0), np.full(8, np.nan), bleu, None).bleu
    assert found is not None
    assert (found.path <= 0).all()


@pytest.mark.parametrize("count", [8, 25, 60])
def test_a_plateau_has_nothing_to_gain(count: int) -> None:
    noise = 0.004 * np.random.default_rng(count).standard_normal(count)
    found = _forecast(2 + 5 * np.exp(-_progress(count) / 0.08) + noise)
    assert found.gain_probability(0.02) < 0.05
    assert found.noise == pytest.approx(0.004, rel=2)


def test_a_turn_and_where_it_was() -> None:
    progress = _progress(30)
    rise = 0.1 * np.maximum(np.log(progress / 0.4), 0)
    noise = 0.004 * np.random.default_rng(1).standard_normal(30)
    found = _forecast(2 + 3 * np.exp(-progress / 0.06) + rise + noise)
    assert found.rise_probability(0.02) > 0.95
    assert found.gain_probability(0.02) < 0.05
    assert 300 <= float(np.median(found.best_step)) <= 500
    changes = found.change_since(400)
    assert float(np.median(changes)) == pytest.approx(0.1 * math.log(1 / 0.4), rel=0.2)


@pytest.mark.parametrize("exponent", [0.5, 1.5, 2.0, 3.0])
def test_a_turn_shows_after_any_fall(exponent: float) -> None:
    progress = _progress(60)
    curve = 2 + (progress / progress[0]) ** -exponent + 0.12 * np.maximum(progress - 0.6, 0)
    noise = 0.006 * np.random.default_rng(1).standard_normal(60)
    risen = bool(curve[-1] - curve.min() >= 0.02)
    assert risen == (exponent > 1)
    assert (_forecast(curve + noise).rise_probability(0.02) > 0.5) == risen


def test_a_low_start_is_no_turn() -> None:
    values = 2 + 0.004 * np.random.default_rng(2).standard_normal(24)
    values[0] -= 0.03
    assert _forecast(values).rise_probability(0.02) < 0.05


def test_recalibration_keeps_the_order() -> None:
    shares = np.linspace(0, 1, 101)
    for one in (*GAIN.values(), TURN):
        probabilities = [one.probability(float(share)) for share in shares]
        assert probabilities == sorted(probabilities)
        # Of made-up runs whose schedule has an end, and of whose draws none gains, 5% do.
        assert 0 < probabilities[0] < 0.07
        assert 0.95 < probabilities[-1] < 1


def test_the_page_about_the_report_has_these_numbers() -> None:
    page = (Path(__file__).parents[2] / "docs/report.md").read_text()
    for name, log_odds in {
        "a gain": GAIN[False].found,
        "a gain, the schedule has an end": GAIN[True].found,
        "a turn": TURN.found,
        "a turn, to be added": TURN.by_seen_rise,
    }.items():
        assert f"| {name} | {' | '.join(f'{one:.2f}' for one in log_odds)} |" in page


def test_a_turn_is_less_likely_where_evaluations_have_not_risen() -> None:
    for share in (0.05, 0.5, 0.95):
        found = [TURN.probability(share, seen) for seen in (-9.0, 0.0, 0.5, 9.0)]
        assert max(found[:2]) < found[2] == found[3]


def test_evaluations_have_risen_above_their_lowest_but_for_an_outlier() -> None:
    values = np.array([3.0, 2.0, 1.0, 0.1, 1.0, 1.0, 1.5, 1.5, 1.8])
    assert seen_rise(values) == pytest.approx(0.6)
    assert _forecast(values).seen_rise == pytest.approx(0.6)


def test_more_noise_is_less_certainty() -> None:
    progress, noise = _progress(20), np.random.default_rng(2).standard_normal(20)
    wide = [
        float(
            np.ptp(
                np.quantile(_forecast(2 - 0.05 * np.log(progress) + size * noise).gain, (0.1, 0.9))
            )
        )
        for size in (0.001, 0.03)
    ]
    assert wide[0] < wide[1]


def test_the_same_numbers_give_the_same_answer() -> None:
    values = 2 + 0.3 * _progress(20) ** -0.5
    assert np.array_equal(_forecast(values).gain, _forecast(values).gain)


def test_many_evaluations_cost_no_more_and_say_the_same() -> None:
    few, many = (2 - 0.05 * np.log(_progress(count)) for count in (MOST_POINTS, 40 * MOST_POINTS))
    chances = [_forecast(values).gain_probability(0.02) for values in (few, many)]
    assert chances[0] == pytest.approx(chances[1], abs=0.1)


def _schedule(kind: str, total: int) -> RunSchedule:
    settings = ScheduleSettings(kind, peak=1e-3, warmup_steps=20, decay_steps=200)  # type: ignore[arg-type]
    return RunSchedule(settings, 512, total)


def test_what_the_end_of_a_schedule_brings_is_no_gain_of_more_steps() -> None:
    """A plateau that only falls while the rate does: a longer schedule ends where this one does."""
    steps = np.linspace(0, 1000, 41)[1:]
    schedule = _schedule("warmup_stable_decay", 1000)
    loss = 2 + 5 * np.exp(-steps / 60) - 0.15 * schedule.decay(steps)
    loss += 0.003 * np.random.default_rng(4).standard_normal(40)
    assert _forecast(loss, steps, schedule).gain_probability(0.02) < 0.15
    assert _forecast(loss, steps, None).gain_probability(0.02) > 0.85


def test_a_rate_that_is_still_to_fall_is_likely_to_bring_something() -> None:
    steps = np.linspace(0, 1000, 41)[1:]
    loss = 2 + 5 * np.exp(-steps / 60) + 0.003 * np.random.default_rng(4).standard_normal(40)
    unfinished = _schedule("warmup_stable_decay", 1500)
    assert _forecast(loss, steps, unfinished).gain_probability(0.02) > 0.85
    assert _forecast(loss, steps, None).gain_probability(0.02) < 0.15


def test_a_longer_schedule_is_the_same_but_stretched() -> None:
    short, steps = _schedule("warmup_stable_decay", 1000), np.array([20.0, 1200.0, 1350.0, 1500.0])
    longer = short.lasting(1500)
    assert longer.settings.decay_steps == 300
    assert longer.decay(steps) == pytest.approx([0, 0, 0.5, 1])
    assert short.lasting(900) is short
    # A triangle up to step 20, and a constant rate from then on.
    assert short.summed(np.array([10.0, 20.0, 500.0])) == pytest.approx(
        [0.0025, 0.01, 0.49], rel=0.1
    )


def test_bleu_near_its_ceiling_has_nothing_to_gain_whatever_the_loss_does() -> None:
    steps = np.linspace(0, 1000, 16)[1:]
    loss = 1.5 - 0.1 * np.log(steps)
    for top, is_worth_it in ((99.6, False), (40.0, True)):
        bleu = top - 60 * np.exp(-steps / 100) * top / 100
        assert (look_ahead(steps, loss, bleu, None).probability > 0.85) == is_worth_it


def test_too_few_evaluations_say_nothing() -> None:
    steps, nothing = np.arange(1.0, 6.0), np.full(5, np.nan)
    ahead = look_ahead(steps, 2 - 0.1 * steps, nothing, None)
    assert ahead.forecasts == {}
    assert math.isnan(ahead.probability)


@pytest.mark.parametrize("rate", [0.0, 1e-3])
def test_odd_curves_have_a_probability_all_the_same(rate: float) -> None:
    generator = np.random.default_rng(5)
    steps = np.cumsum(generator.integers(1, 1000, 20)).astype(float)
    settings = ScheduleSettings("cosine", peak=rate, warmup_steps=10)
    schedule = RunSchedule(settings, 64, 30_000)
    for values in (
        np.zeros(20),
        np.full(20, 2.0),
        1e-9 * generator.standard_normal(20),
        1e30 * generator.random(20),
        np.where(np.arange(20) < 10, 2.0, 9.0),
        np.where(np.arange(20) % 5, np.nan, 3.0),
        2.0 + np.arange(20.0) ** 3,
    ):
        for law in (None, schedule):
            probability = look_ahead(steps, values, np.clip(values, 0.0, 100.0), law).probability
            assert math.isnan(probability) or 0 <= probability <= 1
