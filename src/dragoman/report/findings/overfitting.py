"""Whether the loss on unseen text rises again while that on training text falls."""

import math
from dataclasses import dataclass
from typing import Literal

import numpy as np

from dragoman.prediction.evaluation_noise import running_median
from dragoman.prediction.learning_curve import Forecast
from dragoman.prediction.outlook import MEANINGFUL, Outlook, forecast_of
from dragoman.report.evidence.series import NAN, Floats
from dragoman.report.evidence.step_series import Evaluations
from dragoman.thresholds import (
    EVALUATIONS_NEEDED,
    LIKELY,
    OVERFITTING_RISE,
    RISE_BEYOND_NOISE,
    UNLIKELY,
)

OverfittingReason = Literal[
    "few evaluations",
    "at its minimum",
    "rise within noise",
    "turned, no training sample",
    "turned with the training sample",
    "turned but BLEU rises",
    "turned while training falls",
]
# The deviation of a normal distribution, in medians of its absolute value.
_DEVIATION_PER_MEDIAN = 1.4826


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

    reason: OverfittingReason
    probability: float = NAN  # That the loss lies meaningfully above its minimum.
    best_step: int = 0
    best_loss: float = NAN
    best_steps: tuple[int, int] = (0, 0)  # Nine times out of ten the minimum lies between these.
    last_step: int = 0
    last_loss: float = NAN
    without_number: int = 0  # Evaluations after the last step whose loss is no number.
    rise: Rise | None = None
    sample_rise: Rise | None = None
    sample_rise_probability: float = NAN  # Of the training sample's loss, since the best step.
    bleu_rise_probability: float = NAN  # Of BLEU, by what is worth having, since the best step.
    gap_first: float = NAN  # Eval loss minus training sample's loss, at the first evaluation.
    gap_last: float = NAN

    @property
    def has_turned(self) -> bool:
        """Whether the eval loss rises again, for whatever reason."""
        return self.reason.startswith("turned")

    @property
    def has_jumped(self) -> bool:
        """Whether the rise needs no curve to be seen."""
        return self.rise is not None and self.rise.is_beyond_noise


def judge_overfitting(evaluations: Evaluations | None, ahead: Outlook) -> Overfitting:
    """Compare losses measured in the same mode, before and after the eval loss's minimum."""
    if evaluations is None:
        return Overfitting("few evaluations")
    series = evaluations.take(np.isfinite(evaluations.loss))
    if len(series) < 2:
        lost = len(evaluations) - len(series)
        return Overfitting("few evaluations", without_number=lost)
    step, loss, sample = series.step, series.loss, series.train_sample_loss
    turn, best = int(np.argmin(running_median(loss))), int(np.argmin(loss))
    rise, sample_rise = (_rise(step, values, turn) for values in (loss, sample))
    found = ahead.loss
    probability = NAN if found is None else found.rise_probability(OVERFITTING_RISE.value)
    sample_rises = bleu_rises = NAN
    if rise.is_beyond_noise or probability >= UNLIKELY.value:
        seen = forecast_of(step, sample, "loss", None)
        sample_rises = _changed(seen, step[turn], OVERFITTING_RISE.value)
        bleu_rises = 1 - _changed(ahead.bleu, step[turn], -MEANINGFUL["BLEU"])
    reason = _reason(
        rise, sample_rise, probability, sample_rises, bleu_rises, bool(np.isfinite(sample).any())
    )
    gaps = loss - sample
    return Overfitting(
        reason,
        probability=probability,
        best_step=int(step[best]),
        best_loss=float(loss[best]),
        best_steps=_between(found, int(step[best])),
        last_step=int(step[-1]),
        last_loss=float(loss[-1]),
        without_number=int((evaluations.step > step[-1]).sum()),
        rise=rise,
        sample_rise=sample_rise,
        sample_rise_probability=sample_rises,
        bleu_rise_probability=bleu_rises,
        gap_first=float(gaps[0]),
        gap_last=float(gaps[-1]),
    )


def _changed(found: Forecast | None, since: float, by: float) -> float:
    """How likely a measure has risen by so much since a step."""
    return NAN if found is None else float((found.change_since(since) >= by).mean())


def _between(found: Forecast | None, best: int) -> tuple[int, int]:
    if found is None:
        return best, best
    low, high = np.quantile(found.best_step, (0.05, 0.95))
    return round(low), round(high)


def _rise(step: Floats, values: Floats, turn: int) -> Rise:
    bottom = running_median(values)[turn]
    return Rise(
        mean=float(values[-3:].mean() - bottom),
        least=float(values[-3:].min() - bottom),
        noise=evaluation_noise(step, values),
    )


def _reason(
    rise: Rise,
    sample_rise: Rise,
    probability: float,
    sample_rises: float,
    bleu_rises: float,
    has_sample: bool,
) -> OverfittingReason:
    if not rise.is_beyond_noise:
        if math.isnan(probability):
            return "few evaluations"
        if probability < UNLIKELY.value:
            return "at its minimum"
        if probability <= LIKELY.value:
            return "rise within noise"
    if not has_sample:
        return "turned, no training sample"
    if sample_rises > LIKELY.value or sample_rise.is_beyond_noise:
        return "turned with the training sample"
    if bleu_rises > LIKELY.value:
        return "turned but BLEU rises"
    return "turned while training falls"


def evaluation_noise(step: Floats, values: Floats) -> float:
    """Standard deviation of one evaluation after the first third; NaN with too few.

    By the median difference of neighbours: neither a trend nor a jump makes it larger.
    """
    later = values[(step > step[-1] / 3) & np.isfinite(values)]
    if len(later) < EVALUATIONS_NEEDED.value:
        return NAN
    return float(_DEVIATION_PER_MEDIAN * np.median(np.abs(np.diff(later))) / math.sqrt(2))
