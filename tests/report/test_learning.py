import math
from collections.abc import Callable, Sequence
from dataclasses import fields
from pathlib import Path

import numpy as np
import pytest

from dragoman.prediction.run_schedule import schedule_of
from dragoman.report.evidence import load_evidence
from dragoman.report.evidence.step_series import Evaluations, TrainSteps
from dragoman.report.findings.adaptation import Adaptation, Change
from dragoman.report.findings.convergence import Convergence, judge_learning
from dragoman.report.findings.overfitting import Overfitting
from report.noise import drifting
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
    history = load_evidence(run.write(), START).history
    found = judge_learning(history.evaluations, history.train, None)[0]
    return found.convergence, found.overfitting


def _noise(size: float, seed: int = 3) -> Curve:
    values = size * np.random.default_rng(seed).standard_normal(1000)
    return lambda step: float(values[step])


def _plus(*curves: Curve) -> Curve:
    return lambda step: sum(curve(step) or 0.0 for curve in curves)


def test_bleu_has_an_end(tmp_path: Path) -> None:
    found, _ = _judge(tmp_path, lambda step: 2.0, lambda step: 99.9 - 10 / step)
    assert found.bleu is not None
    assert 0 <= found.bleu.expected <= found.bleu.high <= 0.2
    assert found.bleu.probability < 0.003
    assert found.reason == "at the ceiling"


def test_an_uncertain_gain_at_the_ceiling_is_nothing_to_wait_for(tmp_path: Path) -> None:
    found, _ = _judge(
        tmp_path, lambda step: 2.0, _plus(lambda step: 91 + 1.45 * math.log(step), _noise(0.1))
    )
    assert 0.15 < found.probability < 0.85
    assert found.reason == "at the ceiling"


def test_still_improving(tmp_path: Path) -> None:
    found, _ = _judge(
        tmp_path,
        _plus(lambda step: 4 - 0.3 * math.log(step), _noise(0.005)),
        _plus(lambda step: 4 * math.log(step), _noise(0.2)),
    )
    assert found.reason == "still improving"


def test_converged(tmp_path: Path) -> None:
    found, _ = _judge(
        tmp_path,
        _plus(lambda step: 2 + math.exp(-step / 20), _noise(0.002)),
        _plus(lambda step: 27 - 20 * math.exp(-step / 20), _noise(0.1)),
    )
    assert found.reason == "nothing to gain"


def test_converged_by_bleu_though_the_loss_falls_a_little(tmp_path: Path) -> None:
    found, _ = _judge(
        tmp_path,
        lambda step: 2 - 0.02 * math.log(step),
        _plus(lambda step: 27, _noise(0.1)),
    )
    assert found.reason == "nothing to gain"


def test_too_noisy_to_tell(tmp_path: Path) -> None:
    found, _ = _judge(
        tmp_path,
        _plus(lambda step: 2 - 0.05 * math.log(step), _noise(0.02)),
        _plus(lambda step: 20, _noise(2)),
    )
    assert found.reason == "gain uncertain"


def test_three_evaluations_say_nothing(tmp_path: Path) -> None:
    found, overfitting = _judge(
        tmp_path, lambda step: 5 - step / 100, lambda step: 10, steps=(100, 200, 300)
    )
    assert found.reason == "few evaluations"
    assert found.loss is None
    assert overfitting.reason == "few evaluations"


def test_diverged(tmp_path: Path) -> None:
    found, overfitting = _judge(
        tmp_path,
        lambda step: 2.0 if step < 200 else None,
        lambda step: 20.0,
        train_loss=lambda step: 2.0 if step < 200 else None,
    )
    assert found.reason == "diverged"
    assert found.diverged_at == 200
    # Of the 30 evaluations, every 10 steps, those from step 200 on have no number.
    assert (overfitting.last_step, overfitting.without_number) == (190, 11)


@pytest.mark.parametrize(
    ("last_finite", "evaluated", "diverged_at"),
    [
        (299, True, None),  # One bad step, and an evaluation after it that has a number.
        (200, True, None),
        (299, False, None),  # One bad step, and nothing after it.
        (290, False, 291),  # Ten of them.
    ],
)
def test_a_divergence_lasts(
    tmp_path: Path, last_finite: int, evaluated: bool, diverged_at: int | None
) -> None:
    run = RunFolder(tmp_path)
    run.begin()
    for step in range(1, 301):
        run.train(step, loss=2.0 if step <= last_finite else None)
        if step % 10 == 0 and (evaluated or step <= last_finite):
            run.evaluate(step, loss=2.0, bleu=20.0)
    history = load_evidence(run.write(), START).history
    found = judge_learning(history.evaluations, history.train, None)[0].convergence
    assert found.diverged_at == diverged_at
    assert (found.reason == "diverged") == (diverged_at is not None)


def _jumps(low: float, high: float) -> Curve:
    return _plus(lambda step: low + 9 / step if step < 150 else high, _noise(0.003))


@pytest.mark.parametrize(
    ("sample", "overfitting"),
    [
        (_jumps(1.9, 9.2), "turned with the training sample"),
        (_plus(lambda step: 1.9 - step / 1000, _noise(0.003)), "turned while training falls"),
    ],
)
def test_a_loss_that_jumped_and_stayed_is_no_plateau(
    tmp_path: Path, sample: Curve, overfitting: str
) -> None:
    """Flat at the end, but far above what it was: there is no slope to see."""
    bleu: Curve = lambda step: 25.0 if step < 150 else 0.0  # noqa: E731
    found, turn = _judge(tmp_path, _jumps(2.1, 9.3), bleu, sample)
    assert found.reason == "past its best"
    assert turn.has_jumped
    assert turn.reason == overfitting


def test_the_noise_of_an_evaluation_by_hand(tmp_path: Path) -> None:
    # After step 100, neighbours differ by 0.01, but for one that lies 5 above the others.
    wobble = {step: 2 + 0.01 * (step // 10 % 2) for step in range(10, 301, 10)}
    wobble[200] += 5
    _, turn = _judge(tmp_path, lambda step: wobble[step], lambda step: 20.0)
    assert turn.rise is not None
    assert turn.rise.noise == pytest.approx(1.4826 * 0.01 / math.sqrt(2))
    assert not turn.has_jumped


def test_one_evaluation_far_off_at_the_end_is_no_turn(tmp_path: Path) -> None:
    _, turn = _judge(
        tmp_path,
        _plus(lambda step: 2 + (0.5 if step == 300 else 0), _noise(0.003)),
        lambda step: 20.0,
    )
    assert not turn.has_turned


def test_one_evaluation_far_below_is_no_minimum(tmp_path: Path) -> None:
    loss = _plus(lambda step: 1.5 if step == 150 else 2.0, _noise(0.003))
    trained, found = _judge(tmp_path, loss, _plus(lambda step: 20.0, _noise(0.05)), _falls)
    assert not found.has_turned
    assert trained.reason == "nothing to gain"


def test_what_overfits_is_not_fully_trained(tmp_path: Path) -> None:
    found, turn = _judge(tmp_path, _turned, lambda step: 20.0, _falls)
    assert turn.reason == "turned while training falls"
    assert turn.probability > 0.95
    first, last = turn.best_steps
    assert first - 10 <= 100 <= last + 10  # There is an evaluation every 10 steps.
    assert found.reason == "past its best"


@pytest.mark.parametrize(
    ("bleu", "turned", "reason"),
    [
        (4.0, "turned but BLEU rises", "still improving"),
        (0.9, "turned but BLEU rises", "past its best"),
        (0.1, "turned while training falls", "past its best"),
    ],
)
def test_a_loss_that_turned_while_bleu_rises(
    tmp_path: Path, bleu: float, turned: str, reason: str
) -> None:
    """Worth going on for BLEU, or not, or it hardly rises at all."""
    found, turn = _judge(tmp_path, _turned, lambda step: 20 + bleu * math.log(step), _falls)
    assert (turn.reason, found.reason) == (turned, reason)


def test_every_set_is_judged(tmp_path: Path) -> None:
    run = RunFolder(tmp_path)
    run.begin()
    for step in range(10, 301, 10):
        run.train(step, loss=2.0)
        run.evaluate(step, _falls(step), 20.0, set="news", train_sample_loss=_falls(step))
        run.evaluate(step, _turned(step), 20.0, set="talks", train_sample_loss=_falls(step))
    history = load_evidence(run.write(), START).history
    news, talks = judge_learning(history.evaluations, history.train, None)
    assert (news.overfitting.reason, news.convergence.reason) == (
        "at its minimum",
        "still improving",
    )
    assert (talks.overfitting.reason, talks.convergence.reason) == (
        "turned while training falls",
        "past its best",
    )


SCHEDULE = {"kind": "cosine", "peak": 1.0, "warmup_steps": 10, "final_fraction": 0.2}


@pytest.mark.parametrize(
    ("settings", "step", "rate", "stage"),
    [
        ({}, 5, 0.05, "is still to fall"),  # Warming up.
        ({}, 50, 0.6, "is still to fall"),
        ({}, 90, 0.2, "has run down"),  # As low as it gets.
        ({}, 100, 0.3, "has run down"),  # Its end, whatever was logged.
        ({"final_fraction": 0.0}, 90, 0.11, "is still to fall"),
        ({"final_fraction": 0.0}, 90, 0.09, "has run down"),
        ({"kind": "constant"}, 100, 1.0, "has no end"),
    ],
)
def test_how_far_a_schedule_has_come(
    settings: dict[str, float | str], step: int, rate: float, stage: str
) -> None:
    model, training = {"d_model": 64}, {"steps": 100}
    law = schedule_of({"schedule": SCHEDULE | settings, "model": model, "training": training})
    assert law is not None
    assert law.stage(step, rate) == stage


@pytest.mark.parametrize(
    ("kind", "last_step", "reason"),
    [
        ("constant", 300, "nothing to gain"),
        ("cosine", 300, "nothing left in the schedule"),
        ("warmup_stable_decay", 450, "rate still to fall"),
    ],
)
def test_a_plateau_means_what_the_schedule_lets_it_mean(
    tmp_path: Path, kind: str, last_step: int, reason: str
) -> None:
    run = RunFolder(tmp_path)
    run.begin()
    for step in range(10, 301, 10):
        run.train(step, learning_rate=0.5)
        run.evaluate(step, loss=2.0, bleu=20.0)
    history = load_evidence(run.write(), START).history
    schedule = {"kind": kind, "peak": 1.0, "warmup_steps": 10, "decay_steps": 100}
    model, training = {"d_model": 64}, {"steps": last_step}
    law = schedule_of({"schedule": schedule, "model": model, "training": training})
    found = judge_learning(history.evaluations, history.train, law)[0].convergence
    assert found.reason == reason


@pytest.mark.slow
@pytest.mark.parametrize("correlation", [0.0, 0.5])
def test_a_plateau_is_seldom_called_unfinished(correlation: float) -> None:
    generator = np.random.default_rng(8)
    step = np.arange(10.0, 310, 10)
    reasons = []
    for _ in range(50):
        noise = drifting(generator.standard_normal((3, 30)), correlation)
        loss, bleu = 2.5 + 0.02 * noise[0], 30 + 0.3 * noise[1]
        sample = 2.3 - 0.05 * np.log(step) + 0.02 * noise[2]
        series = Evaluations("", "", step, step, step, loss, sample, bleu)
        reasons.append(judge_learning((series,), NO_STEPS, None)[0].convergence.reason)
    assert reasons.count("still improving") <= 3
    assert reasons.count("past its best") <= 3


def test_one_bad_step_is_not_a_divergence(tmp_path: Path) -> None:
    found, _ = _judge(
        tmp_path,
        lambda step: 2.0,
        lambda step: 20.0,
        train_loss=lambda step: None if step == 150 else 2.0,
    )
    assert found.diverged_at is None
    assert found.reason == "nothing to gain"


def _turned(step: int) -> float:
    """Falls to its minimum at step 100, then rises."""
    return 2 + 0.25 * math.log(step / 100) ** 2


def _falls(step: int) -> float:
    return 2.2 - 0.2 * math.log(step / 10)


OVERFITTING: dict[str, tuple[Curve, Curve, Curve, str]] = {
    "yes": (_turned, lambda step: 20.0, _falls, "turned while training falls"),
    "no": (_falls, lambda step: 20.0, _falls, "at its minimum"),
    "flat": (
        _plus(lambda step: 2, _noise(0.003)),
        lambda step: 20.0,
        _falls,
        "at its minimum",
    ),
    "BLEU rises": (
        _turned,
        lambda step: 4 * math.log(step),
        _falls,
        "turned but BLEU rises",
    ),
    "both rise": (_turned, lambda step: 20.0, _turned, "turned with the training sample"),
    "no sample": (
        _turned,
        lambda step: 20.0,
        lambda step: None,
        "turned, no training sample",
    ),
    "noise": (
        _plus(lambda step: 2 + 0.018 * max(0.0, math.log(step / 100)), _noise(0.01)),
        lambda step: 20.0,
        _falls,
        "rise within noise",
    ),
}


@pytest.mark.parametrize("case", OVERFITTING)
def test_overfitting(tmp_path: Path, case: str) -> None:
    loss, bleu, sample, reason = OVERFITTING[case]
    _, found = _judge(tmp_path, loss, bleu, sample)
    assert found.reason == reason


def test_the_turn_by_hand(tmp_path: Path) -> None:
    _, found = _judge(tmp_path, _turned, lambda step: 20.0, _falls)
    assert found.best_step == 100
    assert found.best_loss == pytest.approx(2.0)
    assert found.last_loss == pytest.approx(_turned(300))
    tail = (_turned(280) + _turned(290) + _turned(300)) / 3
    lowest = sorted((_turned(90), _turned(100), _turned(110)))[1]
    assert found.rise is not None
    assert found.rise.mean == pytest.approx(tail - lowest)
    assert found.rise.least == pytest.approx(_turned(280) - lowest)
    assert found.sample_rise is not None
    sample = (_falls(280) + _falls(290) + _falls(300)) / 3 - _falls(100)
    assert found.sample_rise.mean == pytest.approx(sample)
    assert found.gap_last == pytest.approx(_turned(300) - _falls(300))
    assert found.gap_first == pytest.approx(_turned(10) - _falls(10))


@pytest.mark.slow
@pytest.mark.parametrize("noise", [0.01, 0.03])
def test_a_flat_curve_is_seldom_taken_for_overfitting(noise: float) -> None:
    """The lowest of many noisy evaluations is low by chance; that must not count as a turn."""
    generator = np.random.default_rng(6)
    step = np.arange(10.0, 310, 10)
    verdicts = []
    for _ in range(100):
        loss = drifting(noise * generator.standard_normal(30), 0.4)
        nothing = np.full(30, np.nan)
        sample = 3 - 0.1 * np.log(step)
        series = Evaluations("", "", step, step, nothing, 2 + loss, sample, nothing)
        turn = judge_learning((series,), NO_STEPS, None)[0].overfitting
        verdicts.append(turn.has_turned)
    assert sum(verdicts) <= 5


def test_a_late_turn_is_seen(tmp_path: Path) -> None:
    """The last sixth of the run turns up: a slope over the whole last third would miss it."""
    _, found = _judge(
        tmp_path, lambda step: 2 + 3 / step + max(0, step - 240) / 400, lambda step: 20.0, _falls
    )
    assert found.reason == "turned while training falls"


@pytest.mark.parametrize(("low", "enough"), [(0.5, 20), (0.9, 30), (-0.1, None)])
def test_what_may_be_no_gain_is_reached_nowhere(low: float, enough: int | None) -> None:
    gains = {10: -0.04, 20: 0.6, 30: 1.0}
    new = tuple(Change("new", at, 1.0, 1.0 + gain, gain, low, 2.0) for at, gain in gains.items())
    found = Adaptation("parent", new, ()).enough
    assert (found and found.step) == enough
