import math

import numpy as np
import pytest

from dragoman.config import ScheduleSettings, TrainingSettings
from dragoman.prediction.outlook import look_ahead
from dragoman.prediction.run_schedule import RunSchedule
from dragoman.training.announcements import describe_end
from dragoman.training.progress import Best, Progress, ScoreCurve
from dragoman.training.stopping import Stop, Stopwatch, reason_to_stop


def stop(settings: TrainingSettings, best: Best | None = None, seconds: float = 0.0) -> Stop:
    progress = Progress(step=10, epoch=0.5, best=best or Best())
    return reason_to_stop(settings, progress, seconds)


def test_hours_are_those_of_all_attempts() -> None:
    settings = TrainingSettings(hours=2.0)
    assert stop(settings, seconds=Stopwatch(2 * 3600 - 60).seconds()) is Stop.NO
    assert stop(settings, seconds=Stopwatch(2 * 3600).seconds()) is Stop.HOURS


@pytest.mark.parametrize(
    ("metric", "is_over", "words"), [("loss", False, "loss"), ("bleu", True, "BLEU")]
)
def test_patience_waits_for_its_own_metric(metric: str, is_over: bool, words: str) -> None:
    best = Best()
    for loss in (3.0, 2.0, 1.0):
        best.update(loss, bleu=20.0)
    settings = TrainingSettings(patience=2, patience_metric=metric)  # type: ignore[arg-type]
    assert stop(settings, best) is (Stop.PATIENCE if is_over else Stop.NO)
    said = describe_end(Stop.PATIENCE, Progress(step=10), settings, None)
    assert said.endswith(f": 2 evaluations without a better {words}")


def test_a_loss_that_is_not_finite_is_no_improvement_and_hinders_none() -> None:
    best = Best()
    for loss in (math.nan, 3.0, 2.0, -math.inf):
        best.update(loss, bleu=0.0)
    assert best.loss == 2.0
    assert best.evaluations_since_loss == 1
    assert stop(TrainingSettings(patience=2), best) is Stop.NO


def test_a_gain_is_unlikely_by_the_function_of_the_report() -> None:
    schedule = RunSchedule(ScheduleSettings(warmup_steps=30), 512, None)
    settings = TrainingSettings(stop_when_gain_unlikely=0.05)
    curve = ScoreCurve()
    stops = []
    for step in range(10, 121, 10):
        curve.add(step, 2 + 5 * math.exp(-step / 8), 20 - 20 * math.exp(-step / 8), schedule)
        stops.append(reason_to_stop(settings, Progress(step=step, scores=curve), 0.0))
    # Ten evaluations are the least; a loss that is no number is passed over.
    assert stops == [Stop.NO] * 9 + [Stop.GAIN_UNLIKELY] * 3
    curve.add(130, math.nan, 20.0, schedule)
    steps, loss, bleu = (
        np.array(one, dtype=float) for one in (curve.steps, curve.loss, curve.bleu)
    )
    assert curve.gain_probability == look_ahead(steps, loss, bleu, schedule).probability
    curve.add(140, 1.5, 25.0, None)
    assert curve.gain_probability is None
