from dragoman.config import TrainingSettings
from dragoman.training.stopping import Best, Stop, reason_to_stop


def test_a_loss_that_is_not_finite_is_no_improvement_and_hinders_none() -> None:
    best = Best()
    for loss in (float("nan"), 3.0, 2.0, float("-inf")):
        best.update(loss, bleu=0.0)
    assert best.loss == 2.0
    assert best.evaluations_since_loss == 1
    settings = TrainingSettings(patience=2)
    assert reason_to_stop(settings, 4, 0.5, 1.0, best) is Stop.NO
