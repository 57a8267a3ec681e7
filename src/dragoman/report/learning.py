"""Whether the run converged or overfitted, and how much more steps would buy."""

import math
from dataclasses import dataclass
from typing import Literal

import numpy as np

from dragoman.report.intervals import Floats, Trend, trend
from dragoman.report.records import Bools, Evaluations, TrainSteps
from dragoman.report.thresholds import (
    EVALUATIONS_NEEDED,
    MEANINGFUL_BLEU_GAIN,
    MEANINGFUL_LOSS_GAIN,
    OVERFITTING_RISE,
)

Verdict = Literal["yes", "no", "unclear"]
Reason = Literal[
    "few evaluations",
    "at its minimum",
    "rise within noise",
    "turned, no training sample",
    "turned with the training sample",
    "turned but BLEU rises",
    "turned while training falls",
]

LAST_THIRD = 2 / 3
FURTHER_STEPS = 1.5
LOG_FURTHER = math.log(FURTHER_STEPS)


@dataclass(frozen=True)
class Gain:
    """What 50% more steps would bring, with its 95% interval; positive is better."""

    expected: float
    low: float
    high: float
    per_thousand_steps: float  # Slope at the last step; negative for a falling loss.
    trend: Trend


@dataclass(frozen=True)
class Convergence:
    """Whether the run had more to learn."""

    verdict: Verdict
    loss: Gain | None
    bleu: Gain | None
    evaluations: int  # In the last third.
    diverged_at: int | None  # First step of the training loss's final stretch of NaN.


@dataclass(frozen=True)
class Overfitting:
    """Whether the loss on unseen text rises while that on training text falls."""

    verdict: Verdict
    reason: Reason
    best_step: int
    best_loss: float
    last_loss: float
    rise: float
    eval_change: Trend | None  # Over ln(step), from the minimum or over the last third.
    train_change: Trend | None
    bleu_change: Trend | None
    gap_first: float  # Eval loss minus training sample's loss, at the first evaluation.
    gap_last: float


def judge_convergence(evaluations: Evaluations | None, train: TrainSteps) -> Convergence:
    """Extrapolate loss and BLEU of the last third, on a logarithmic scale of steps."""
    diverged_at = _diverged_at(train)
    if evaluations is None or not len(evaluations):
        return Convergence("unclear" if diverged_at is None else "no", None, None, 0, diverged_at)
    late = evaluations.step > LAST_THIRD * evaluations.step[-1]
    loss = _gain(evaluations.step[late], evaluations.loss[late], sign=-1)
    bleu = _gain(evaluations.step[late], evaluations.bleu[late], sign=1)
    known = [
        (gain, threshold.value)
        for gain, threshold in ((loss, MEANINGFUL_LOSS_GAIN), (bleu, MEANINGFUL_BLEU_GAIN))
        if gain
    ]
    verdict: Verdict = "unclear"
    still_gaining = [gain.low > 0 and gain.expected >= least for gain, least in known]
    if diverged_at is not None or any(still_gaining):
        verdict = "no"
    elif known and all(gain.high < least for gain, least in known):
        verdict = "yes"
    return Convergence(verdict, loss, bleu, int(late.sum()), diverged_at)


def judge_overfitting(evaluations: Evaluations | None) -> Overfitting:
    """Compare losses measured in the same mode, before and after the eval loss's minimum."""
    series = None if evaluations is None else _finite(evaluations)
    if series is None or len(series.step) < 2:
        nan = float("nan")
        return Overfitting(
            "unclear", "few evaluations", 0, nan, nan, nan, None, None, None, nan, nan
        )
    step, loss, sample = series.step, series.loss, series.train_sample_loss
    best = int(np.argmin(loss))
    turn = int(np.argmin(_running_mean(loss)))
    late = step > LAST_THIRD * step[-1]
    after = np.arange(len(step)) >= turn
    window = after if after.sum() >= EVALUATIONS_NEEDED.value else late
    eval_change = _trend(step[window], loss[window])
    train_change = _trend(step[window], sample[window])
    bleu_change = _trend(step[window], series.bleu[window])
    tail = loss[-min(3, len(loss)) :]
    rise = float(tail.mean() - _running_mean(loss)[turn])
    verdict, reason = _overfitting_verdict(rise, eval_change, train_change, bleu_change)
    gaps = loss - sample
    return Overfitting(
        verdict=verdict,
        reason=reason,
        best_step=int(step[best]),
        best_loss=float(loss[best]),
        last_loss=float(loss[-1]),
        rise=rise,
        eval_change=eval_change,
        train_change=train_change,
        bleu_change=bleu_change,
        gap_first=float(gaps[0]),
        gap_last=float(gaps[-1]),
    )


def _overfitting_verdict(
    rise: float, eval_change: Trend | None, train_change: Trend | None, bleu_change: Trend | None
) -> tuple[Verdict, Reason]:
    if eval_change is None:
        return "unclear", "few evaluations"
    has_turned = rise >= OVERFITTING_RISE.value and eval_change.low > 0
    if not has_turned:
        possible_rise = max(rise, LOG_FURTHER * eval_change.high)
        if possible_rise < OVERFITTING_RISE.value:
            return "no", "at its minimum"
        return "unclear", "rise within noise"
    if train_change is None:
        return "unclear", "turned, no training sample"
    if train_change.low > 0:
        return "no", "turned with the training sample"
    if bleu_change is not None and bleu_change.low > 0:
        return "unclear", "turned but BLEU rises"
    return "yes", "turned while training falls"


def _running_mean(values: Floats) -> Floats:
    """Mean of each value and its two neighbours; one low outlier is no minimum."""
    padded = np.concatenate((values[:1], values, values[-1:]))
    mean: Floats = (padded[:-2] + padded[1:-1] + padded[2:]) / 3
    return mean


def _finite(evaluations: Evaluations) -> Evaluations:
    known: Bools = np.isfinite(evaluations.loss)
    return evaluations.take(known)


def _diverged_at(train: TrainSteps) -> int | None:
    """Where the final stretch of losses that are no numbers begins, if there is one."""
    finite = np.flatnonzero(np.isfinite(train.loss))
    first = int(finite[-1]) + 1 if len(finite) else 0
    return int(train.step[first]) if first < len(train) else None


def _trend(step: Floats, values: Floats) -> Trend | None:
    known = np.isfinite(values) & (step > 0)
    if known.sum() < EVALUATIONS_NEEDED.value:
        return None
    return trend(np.log(step[known]), values[known])


def _gain(step: Floats, values: Floats, sign: int) -> Gain | None:
    line = _trend(step, values)
    if line is None:
        return None
    low, high = sorted(sign * LOG_FURTHER * end for end in (line.low, line.high))
    return Gain(
        expected=sign * LOG_FURTHER * line.slope,
        low=low,
        high=high,
        per_thousand_steps=1000 * line.slope / float(step[-1]),
        trend=line,
    )
