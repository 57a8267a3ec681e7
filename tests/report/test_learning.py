import math
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
import pytest

from dragoman.report.evidence import load_evidence
from dragoman.report.intervals import trend
from dragoman.report.learning import (
    Convergence,
    Overfitting,
    judge_convergence,
    judge_overfitting,
)
from report.run_folders import START, RunFolder

Curve = Callable[[int], float | None]


def _judge(
    path: Path,
    loss: Curve,
    bleu: Curve,
    sample: Curve | None = None,
    steps: Sequence[int] = range(10, 301, 10),
    train_loss: Curve = lambda step: 2.0,
) -> tuple[Convergence, Overfitting]:
    run = RunFolder(path)
    run.begin()
    for step in steps:
        run.train(step, loss=train_loss(step))
        own = {} if sample is None else {"train_sample_loss": sample(step)}
        run.evaluate(step, loss=loss(step), bleu=bleu(step), **own)
    evidence = load_evidence(run.write(), START)
    return (
        judge_convergence(evidence.evaluations, evidence.history.train),
        judge_overfitting(evidence.evaluations),
    )


def _noise(size: float, seed: int = 3) -> Curve:
    values = size * np.random.default_rng(seed).standard_normal(1000)
    return lambda step: float(values[step])


def _plus(*curves: Curve) -> Curve:
    return lambda step: sum(curve(step) or 0.0 for curve in curves)


def test_gain_is_the_slope_over_the_logarithm_of_steps(tmp_path: Path) -> None:
    loss = [3.0 - 0.2 * math.log(step) + 0.01 * (-1) ** (step // 10) for step in range(10, 301, 10)]
    found, _ = _judge(tmp_path, lambda step: loss[step // 10 - 1], lambda step: None)
    late = np.arange(210, 301, 10)
    line = trend(np.log(late), np.array(loss[20:]))
    assert found.evaluations == 10
    assert found.bleu is None
    assert found.loss is not None
    assert found.loss.expected == pytest.approx(-line.slope * math.log(1.5))
    assert found.loss.expected == pytest.approx(0.2 * math.log(1.5), rel=0.1)
    assert found.loss.low == pytest.approx(-line.high * math.log(1.5))
    assert found.loss.high == pytest.approx(-line.low * math.log(1.5))
    assert found.loss.per_thousand_steps == pytest.approx(1000 * line.slope / 300)


def test_still_improving(tmp_path: Path) -> None:
    found, _ = _judge(
        tmp_path,
        _plus(lambda step: 4 - 0.3 * math.log(step), _noise(0.005)),
        _plus(lambda step: 4 * math.log(step), _noise(0.2)),
    )
    assert found.verdict == "no"


def test_converged(tmp_path: Path) -> None:
    found, _ = _judge(
        tmp_path,
        _plus(lambda step: 2 + math.exp(-step / 20), _noise(0.002)),
        _plus(lambda step: 27 - 20 * math.exp(-step / 20), _noise(0.1)),
    )
    assert found.verdict == "yes"


def test_converged_by_bleu_though_the_loss_falls_a_little(tmp_path: Path) -> None:
    found, _ = _judge(
        tmp_path,
        lambda step: 2 - 0.02 * math.log(step),
        _plus(lambda step: 27, _noise(0.1)),
    )
    assert found.verdict == "yes"


def test_too_noisy_to_tell(tmp_path: Path) -> None:
    found, _ = _judge(
        tmp_path, _plus(lambda step: 2, _noise(0.08)), _plus(lambda step: 20, _noise(2))
    )
    assert found.verdict == "unclear"


def test_three_evaluations_say_nothing(tmp_path: Path) -> None:
    found, overfitting = _judge(
        tmp_path, lambda step: 5 - step / 100, lambda step: 10, steps=(100, 200, 300)
    )
    assert found.verdict == "unclear"
    assert found.loss is None
    assert overfitting.verdict == "unclear"
    assert overfitting.reason == "few evaluations"


def test_diverged(tmp_path: Path) -> None:
    found, _ = _judge(
        tmp_path,
        lambda step: 2.0,
        lambda step: 20.0,
        train_loss=lambda step: 2.0 if step < 200 else None,
    )
    assert found.verdict == "no"
    assert found.diverged_at == 200


def test_one_bad_step_is_not_a_divergence(tmp_path: Path) -> None:
    found, _ = _judge(
        tmp_path,
        lambda step: 2.0,
        lambda step: 20.0,
        train_loss=lambda step: None if step == 150 else 2.0,
    )
    assert found.diverged_at is None
    assert found.verdict == "yes"


def _turned(step: int) -> float:
    """Falls to its minimum at step 100, then rises."""
    return 2 + 0.25 * math.log(step / 100) ** 2


def _falls(step: int) -> float:
    return 2.2 - 0.2 * math.log(step / 10)


OVERFITTING: dict[str, tuple[Curve, Curve, Curve, str, str]] = {
    "yes": (_turned, lambda step: 20.0, _falls, "yes", "turned while training falls"),
    "no": (_falls, lambda step: 20.0, _falls, "no", "at its minimum"),
    "flat": (
        _plus(lambda step: 2, _noise(0.003)),
        lambda step: 20.0,
        _falls,
        "no",
        "at its minimum",
    ),
    "BLEU rises": (
        _turned,
        lambda step: 4 * math.log(step),
        _falls,
        "unclear",
        "turned but BLEU rises",
    ),
    "both rise": (_turned, lambda step: 20.0, _turned, "no", "turned with the training sample"),
    "no sample": (
        _turned,
        lambda step: 20.0,
        lambda step: None,
        "unclear",
        "turned, no training sample",
    ),
    "noise": (
        _plus(lambda step: 2, _noise(0.06)),
        lambda step: 20.0,
        _falls,
        "unclear",
        "rise within noise",
    ),
}


@pytest.mark.parametrize("case", OVERFITTING)
def test_overfitting(tmp_path: Path, case: str) -> None:
    loss, bleu, sample, verdict, reason = OVERFITTING[case]
    _, found = _judge(tmp_path, loss, bleu, sample)
    assert (found.verdict, found.reason) == (verdict, reason)


def test_the_turn_by_hand(tmp_path: Path) -> None:
    _, found = _judge(tmp_path, _turned, lambda step: 20.0, _falls)
    assert found.best_step == 100
    assert found.best_loss == pytest.approx(2.0)
    assert found.last_loss == pytest.approx(_turned(300))
    tail = (_turned(280) + _turned(290) + _turned(300)) / 3
    lowest = (_turned(90) + _turned(100) + _turned(110)) / 3
    assert found.rise == pytest.approx(tail - lowest)
    assert found.gap_last == pytest.approx(_turned(300) - _falls(300))
    assert found.gap_first == pytest.approx(_turned(10) - _falls(10))
