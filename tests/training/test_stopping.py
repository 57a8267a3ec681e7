import math

import pytest

from dragoman.config import TrainingSettings
from dragoman.training.stopping import Best, Stop, Stopwatch, reason_to_stop


def stop(settings: TrainingSettings, best: Best | None = None, seconds: float = 0.0) -> Stop:
    return reason_to_stop(settings, step=10, epoch=0.5, seconds=seconds, best=best or Best())


def test_hours_are_those_of_all_lives() -> None:
    settings = TrainingSettings(hours=2.0)
    assert stop(settings, seconds=Stopwatch(2 * 3600 - 60).seconds()) is Stop.NO
    assert stop(settings, seconds=Stopwatch(2 * 3600).seconds()) is Stop.HOURS


@pytest.mark.parametrize(("metric", "is_over"), [("loss", False), ("bleu", True)])
def test_patience_waits_for_its_own_metric(metric: str, is_over: bool) -> None:
    best = Best()
    for loss in (3.0, 2.0, 1.0):
        best.update(loss, bleu=20.0)
    settings = TrainingSettings(patience=2, patience_metric=metric)  # type: ignore[arg-type]
    assert stop(settings, best) is (Stop.PATIENCE if is_over else Stop.NO)


def test_a_loss_that_is_not_finite_is_no_improvement_and_hinders_none() -> None:
    best = Best()
    for loss in (math.nan, 3.0, 2.0, -math.inf):
        best.update(loss, bleu=0.0)
    assert best.loss == 2.0
    assert best.evaluations_since_loss == 1
    assert stop(TrainingSettings(patience=2), best) is Stop.NO
