"""Whether the loss on unseen text rises again while that on training text falls."""

from dataclasses import dataclass
from typing import Literal

import numpy as np

from dragoman.report.curves import (
    LOG_FURTHER,
    coverage_each,
    evaluation_noise,
    last_third,
    running_median,
    trend_over_steps,
)
from dragoman.report.evidence.step_series import Evaluations
from dragoman.report.intervals import Trend
from dragoman.report.series import NAN, Floats
from dragoman.report.thresholds import EVALUATIONS_NEEDED, OVERFITTING_RISE, RISE_BEYOND_NOISE

Verdict = Literal["yes", "no", "unclear"]
OverfittingReason = Literal[
    "few evaluations",
    "at its minimum",
    "rise within noise",
    "turned, no training sample",
    "turned with the training sample",
    "turned but BLEU rises",
    "turned while training falls",
]


@dataclass(frozen=True)
class Rise:
    """How far a loss lies above where it was when the eval loss was lowest."""

    mean: float  # Of the last three evaluations.
    least: float  # By the lowest of them.
    noise: float  # Of one evaluation.

    @property
    def is_beyond_noise(self) -> bool:
        """Whether even the lowest of the last three lies higher than noise ever does."""
        beyond_noise = self.least > RISE_BEYOND_NOISE.value * self.noise  # Not if that is NaN.
        return beyond_noise and self.least >= OVERFITTING_RISE.value


@dataclass(frozen=True)
class Overfitting:
    """Whether the loss on unseen text rises while that on training text falls."""

    verdict: Verdict
    reason: OverfittingReason
    best_step: int = 0
    best_loss: float = NAN
    last_step: int = 0
    last_loss: float = NAN
    without_number: int = 0  # Evaluations after the last step whose loss is no number.
    rise: Rise | None = None
    sample_rise: Rise | None = None
    recent_change: Trend | None = None  # Eval loss over ln(step), over the last third at least.
    eval_change: Trend | None = None  # The others: after the minimum.
    train_change: Trend | None = None
    bleu_change: Trend | None = None
    gap_first: float = NAN  # Eval loss minus training sample's loss, at the first evaluation.
    gap_last: float = NAN

    @property
    def has_turned(self) -> bool:
        """Whether the eval loss rises again, for whatever reason."""
        return self.reason.startswith("turned")

    @property
    def has_jumped(self) -> bool:
        """Whether the rise needs no slope to be seen."""
        return self.rise is not None and self.rise.is_beyond_noise


def judge_overfitting(evaluations: Evaluations | None) -> Overfitting:
    """Compare losses measured in the same mode, before and after the eval loss's minimum."""
    if evaluations is None:
        return Overfitting("unclear", "few evaluations")
    series = evaluations.take(np.isfinite(evaluations.loss))
    if len(series) < 2:
        lost = len(evaluations) - len(series)
        return Overfitting("unclear", "few evaluations", without_number=lost)
    step, loss = series.step, series.loss
    turn, best = int(np.argmin(running_median(loss))), int(np.argmin(loss))
    # The three that were chosen for being low must not witness that the others are higher.
    after = np.arange(len(step)) > turn + 1
    recent = after | last_third(step)
    if after.sum() < EVALUATIONS_NEEDED.value:
        after = recent
    rise, sample_rise = (_rise(step, values, turn) for values in (loss, series.train_sample_loss))
    recent_change = trend_over_steps(step[recent], loss[recent])
    # A slope or a jump may say that the loss has turned.
    eval_change = trend_over_steps(step[after], loss[after], coverage_each(2))
    train_change, bleu_change = (
        trend_over_steps(step[after], values[after])
        for values in (series.train_sample_loss, series.bleu)
    )
    gaps = loss - series.train_sample_loss
    verdict, reason = _overfitting_verdict(
        rise, sample_rise, recent_change, eval_change, train_change, bleu_change
    )
    return Overfitting(
        verdict,
        reason,
        best_step=int(step[best]),
        best_loss=float(loss[best]),
        last_step=int(step[-1]),
        last_loss=float(loss[-1]),
        without_number=int((evaluations.step > step[-1]).sum()),
        rise=rise,
        sample_rise=sample_rise,
        recent_change=recent_change,
        eval_change=eval_change,
        train_change=train_change,
        bleu_change=bleu_change,
        gap_first=float(gaps[0]),
        gap_last=float(gaps[-1]),
    )


def _rise(step: Floats, values: Floats, turn: int) -> Rise:
    bottom = running_median(values)[turn]
    return Rise(
        mean=float(values[-3:].mean() - bottom),
        least=float(values[-3:].min() - bottom),
        noise=evaluation_noise(step, values),
    )


def _overfitting_verdict(
    rise: Rise,
    sample_rise: Rise,
    recent_change: Trend | None,
    eval_change: Trend | None,
    train_change: Trend | None,
    bleu_change: Trend | None,
) -> tuple[Verdict, OverfittingReason]:
    if not rise.is_beyond_noise:
        if recent_change is None or eval_change is None:
            return "unclear", "few evaluations"
        if rise.mean < OVERFITTING_RISE.value or eval_change.low <= 0:
            possible_rise = max(rise.mean, LOG_FURTHER * recent_change.high)
            if possible_rise < OVERFITTING_RISE.value:
                return "no", "at its minimum"
            return "unclear", "rise within noise"
    if train_change is None:
        return "unclear", "turned, no training sample"
    if train_change.low > 0 or sample_rise.is_beyond_noise:
        return "no", "turned with the training sample"
    if bleu_change is not None and bleu_change.low > 0:
        return "unclear", "turned but BLEU rises"
    return "yes", "turned while training falls"
