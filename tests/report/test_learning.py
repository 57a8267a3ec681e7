import math
from collections.abc import Callable, Sequence
from dataclasses import fields
from pathlib import Path

import numpy as np
import pytest

from dragoman.report.evidence import load_evidence
from dragoman.report.evidence.records import Evaluations, TrainSteps
from dragoman.report.intervals import trend
from dragoman.report.learning import (
    Convergence,
    Overfitting,
    judge_convergence,
    judge_overfitting,
    law_of,
)
from report.run_folders import START, RunFolder

Curve = Callable[[int], float | None]

NO_STEPS = TrainSteps(*np.zeros((len(fields(TrainSteps)), 0)))


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
        judge_convergence(evidence.evaluations, evidence.history.train, law_of(evidence.settings)),
        judge_overfitting(evidence.evaluations),
    )


def _noise(size: float, seed: int = 3) -> Curve:
    values = size * np.random.default_rng(seed).standard_normal(1000)
    return lambda step: float(values[step])


def _plus(*curves: Curve) -> Curve:
    return lambda step: sum(curve(step) or 0.0 for curve in curves)


def test_the_gain_by_hand(tmp_path: Path) -> None:
    """The slope of the last third, slowing as it did since the second third."""
    loss = [2.0 + 9 / step + 0.002 * (-1) ** (step // 10) for step in range(10, 301, 10)]
    found, _ = _judge(tmp_path, lambda step: loss[step // 10 - 1], lambda step: None)
    second, last = np.log(np.arange(110, 201, 10)), np.log(np.arange(210, 301, 10))
    earlier, line = trend(second, np.array(loss[10:20])), trend(last, np.array(loss[20:]))
    exponent = math.log(1.5) / (last.mean() - second.mean())
    slowing = (line.slope / earlier.slope) ** exponent
    most_slowing = min(1.0, line.high / earlier.low) ** exponent
    assert found.evaluations == 10
    assert found.bleu is None
    assert found.loss is not None
    assert found.loss.slowing == pytest.approx(slowing)
    assert found.loss.expected == pytest.approx(-line.slope * slowing * math.log(1.5))
    assert found.loss.low == pytest.approx(-line.high * most_slowing * math.log(1.5))
    assert found.loss.high == pytest.approx(-line.low * math.log(1.5))
    assert found.loss.per_thousand_steps == pytest.approx(1000 * line.slope / 300)
    # What 150 more steps really bring: 9/300 - 9/450. A straight line would promise 0.015.
    assert found.loss.expected == pytest.approx(0.010, abs=0.002)


@pytest.mark.parametrize("exponent", [0.1, 0.5, 1.0])
@pytest.mark.parametrize("noise", [0.001, 0.02])
def test_the_interval_of_the_gain_holds_the_truth(exponent: float, noise: float) -> None:
    """Of power laws, which learning curves are; a straight line's interval never does."""
    generator = np.random.default_rng(4)
    step = np.arange(1.0, 41) / 40
    truth = 1 - 1.5**-exponent
    nothing = np.full(40, np.nan)
    held = 0
    for _ in range(100):
        loss = 1 + step**-exponent + noise * generator.standard_normal(40)
        series = Evaluations("", "", step, step, nothing, loss, nothing, nothing)
        gain = judge_convergence(series, NO_STEPS, None).loss
        assert gain is not None
        held += gain.low <= truth <= gain.high
    assert held >= 92


def test_bleu_has_an_end(tmp_path: Path) -> None:
    found, _ = _judge(tmp_path, lambda step: 2.0, lambda step: 99.9 - 10 / step)
    assert found.bleu is not None
    assert found.bleu.expected < found.bleu.high <= 100 - found.bleu.trend.level
    assert found.verdict == "yes"


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


@pytest.mark.parametrize("noise", [0.01, 0.03])
def test_a_flat_curve_is_seldom_taken_for_overfitting(noise: float) -> None:
    """The lowest of many noisy evaluations is low by chance; that must not count as a turn."""
    generator = np.random.default_rng(6)
    step = np.arange(10.0, 310, 10)
    verdicts = []
    for _ in range(200):
        loss = noise * generator.standard_normal(30)
        for place in range(1, 30):
            loss[place] += 0.4 * loss[place - 1]
        nothing = np.full(30, np.nan)
        sample = 3 - 0.1 * np.log(step)
        series = Evaluations("", "", step, step, nothing, 2 + loss, sample, nothing)
        verdicts.append(judge_overfitting(series).verdict)
    assert verdicts.count("yes") <= 12


def test_a_late_turn_is_seen(tmp_path: Path) -> None:
    """The last sixth of the run turns up: a slope over the whole last third would miss it."""
    _, found = _judge(
        tmp_path, lambda step: 2 + 3 / step + max(0, step - 240) / 400, lambda step: 20.0, _falls
    )
    assert found.reason == "turned while training falls"
