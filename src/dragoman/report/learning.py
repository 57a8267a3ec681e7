"""Whether the run had more to learn, and what more steps would buy, by each validation set."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np

from dragoman.report.curves import LOG_FURTHER, coverage_each, last_third, trend_over_steps
from dragoman.report.evidence.step_series import Evaluations, TrainSteps
from dragoman.report.intervals import Trend
from dragoman.report.law import Law, Stage
from dragoman.report.overfitting import Overfitting, Verdict, judge_overfitting
from dragoman.report.series import NAN, Floats
from dragoman.report.thresholds import (
    DRIFTING_NOISE,
    HARDLY_A_TRANSLATION,
    MEANINGFUL_BLEU_GAIN,
    MEANINGFUL_LOSS_GAIN,
    STEPS_WITHOUT_NUMBER,
    Threshold,
)

ConvergenceReason = Literal[
    "diverged",
    "no better than guessing",
    "past its best",
    "few evaluations",
    "still improving",
    "improving as the rate runs down",
    "nothing to gain",
    "hardly translates",
    "nothing left in the schedule",
    "rate still to fall",
    "gain within noise",
]
Measure = Literal["loss", "BLEU"]

HIGHEST_BLEU = 100.0
MEANINGFUL: dict[Measure, Threshold] = {"loss": MEANINGFUL_LOSS_GAIN, "BLEU": MEANINGFUL_BLEU_GAIN}


@dataclass(frozen=True)
class Gain:
    """What 50% more steps would bring, with its interval; positive is better."""

    expected: float
    low: float
    high: float
    slowing: float  # Expected as part of what a straight line over ln(step) would bring.
    per_thousand_steps: float  # Slope at the last step; negative for a falling loss.
    trend: Trend  # Of the last third.


@dataclass(frozen=True)
class Convergence:
    """Whether the run had more to learn."""

    verdict: Verdict
    reason: ConvergenceReason
    loss: Gain | None
    bleu: Gain | None
    evaluations: int  # In the last third.
    diverged_at: int | None  # First step of the training loss's final stretch of NaN.
    guessing_loss: float  # Of guessing among all words; infinite if not known.
    rate: Stage

    @property
    def gains(self) -> dict[Measure, Gain]:
        """Those that are known."""
        both: tuple[tuple[Measure, Gain | None], ...] = (("loss", self.loss), ("BLEU", self.bleu))
        return {measure: gain for measure, gain in both if gain is not None}

    @property
    def noise_drifts(self) -> bool:
        """Whether neighbouring evaluations err together, so that intervals are too narrow."""
        trends = [gain.trend for gain in self.gains.values()]
        return any(line.likely_autocorrelation > DRIFTING_NOISE.value for line in trends)


@dataclass(frozen=True)
class Learning:
    """What one validation set says."""

    evaluations: Evaluations | None
    overfitting: Overfitting
    convergence: Convergence

    @property
    def lowest_loss(self) -> float:
        """Of all evaluations; NaN if there is none."""
        return NAN if self.evaluations is None else self.evaluations.lowest_loss

    @property
    def best_bleu(self) -> float:
        """Of all evaluations; NaN if there is none."""
        return NAN if self.evaluations is None else self.evaluations.best_bleu


def judge_learning(
    sets: Sequence[Evaluations],
    train: TrainSteps,
    law: Law | None,
    guessing_loss: float = math.inf,
) -> tuple[Learning, ...]:
    """Judge by every validation set, the first of which decides what is best; at least once."""
    found = []
    for evaluations in sets or (None,):
        overfitting = judge_overfitting(evaluations)
        convergence = judge_convergence(evaluations, train, law, overfitting, guessing_loss)
        found.append(Learning(evaluations, overfitting, convergence))
    return tuple(found)


def judge_convergence(
    evaluations: Evaluations | None,
    train: TrainSteps,
    law: Law | None,
    overfitting: Overfitting,
    guessing_loss: float,
) -> Convergence:
    """Extrapolate loss and BLEU of the last third, on a logarithmic scale of steps."""
    gains: dict[Measure, Gain] = {}
    late = 0
    if evaluations is not None:
        late = int(last_third(evaluations.step).sum())
        gains = _gains(evaluations)
    rate: Stage = "has no end"
    if law is not None and len(train):
        rate = law.stage(train.step[-1], train.learning_rate[-1])
    diverged_at = _diverged_at(train, evaluations)
    verdict: tuple[Verdict, ConvergenceReason] = ("no", "diverged")
    if diverged_at is None:
        verdict = _convergence_verdict(evaluations, gains, rate, overfitting, guessing_loss)
    both = gains.get("loss"), gains.get("BLEU")
    return Convergence(*verdict, *both, late, diverged_at, guessing_loss, rate)


def is_improving(measure: Measure, gain: Gain) -> bool:
    """Whether a gain is there, and worth having."""
    return gain.low > 0 and gain.expected >= MEANINGFUL[measure].value


def may_improve(measure: Measure, gain: Gain) -> bool:
    """Whether a gain worth having cannot be excluded."""
    return gain.high >= MEANINGFUL[measure].value


def _convergence_verdict(
    evaluations: Evaluations | None,
    gains: dict[Measure, Gain],
    rate: Stage,
    overfitting: Overfitting,
    guessing_loss: float,
) -> tuple[Verdict, ConvergenceReason]:
    if evaluations is None:
        return "unclear", "few evaluations"
    if evaluations.lowest_loss >= guessing_loss:
        return "no", "no better than guessing"
    improving = any(is_improving(measure, gain) for measure, gain in gains.items())
    translates_better = improving and overfitting.reason == "turned but BLEU rises"
    if overfitting.has_turned and not translates_better:
        return "no", "past its best"
    if not gains:
        return "unclear", "few evaluations"
    if improving:
        # Whether more steps or the end of the schedule brought it cannot be told apart.
        if rate == "has run down":
            return "unclear", "improving as the rate runs down"
        return "no", "still improving"
    if any(may_improve(measure, gain) for measure, gain in gains.items()):
        return "unclear", "gain within noise"
    if rate == "is still to fall":
        return "unclear", "rate still to fall"
    if evaluations.best_bleu < HARDLY_A_TRANSLATION.value:
        return "no", "hardly translates"
    if rate == "has run down":
        return "yes", "nothing left in the schedule"
    return "yes", "nothing to gain"


def _diverged_at(train: TrainSteps, evaluations: Evaluations | None) -> int | None:
    """Where the final stretch of losses that are no numbers begins, if the model is lost too."""
    finite = np.flatnonzero(np.isfinite(train.loss))
    first = int(finite[-1]) + 1 if len(finite) else 0
    if first == len(train):
        return None
    step = int(train.step[first])
    since = np.zeros(0) if evaluations is None else evaluations.loss[evaluations.step >= step]
    if len(since):
        is_lost = not np.isfinite(since).any()
    else:
        is_lost = len(train) - first >= STEPS_WITHOUT_NUMBER.value
    return step if is_lost else None


def _gains(evaluations: Evaluations) -> dict[Measure, Gain]:
    """What is known of loss and BLEU; where both are, either may say that the run improves."""
    step, loss, bleu = evaluations.step, evaluations.loss, evaluations.bleu
    coverage = coverage_each(2 if np.isfinite(bleu).any() else 1)
    gains: dict[Measure, Gain | None] = {
        "loss": _gain(step, loss, -1, 0.0, coverage),
        "BLEU": _gain(step, bleu, 1, HIGHEST_BLEU, coverage),
    }
    return {measure: gain for measure, gain in gains.items() if gain is not None}


def _gain(step: Floats, values: Floats, sign: int, limit: float, coverage: float) -> Gain | None:
    """Go on from the last third, slowing as learning did from the second third to it."""
    late = last_third(step)
    line = trend_over_steps(step[late], values[late], coverage)
    if line is None:
        return None
    slope, low, high = _improvement(line, sign)
    slowing = most_slowing = 1.0
    second = ~late & (step > step[-1] / 3)
    earlier = trend_over_steps(step[second], values[second], coverage)
    if earlier is not None:
        # Of a power law, slopes at equal distances in ln(step) form a geometric series.
        exponent = LOG_FURTHER / (line.centre - earlier.centre)
        earlier_slope, _, earlier_high = _improvement(earlier, sign)
        slowing = _share(slope, earlier_slope) ** exponent
        most_slowing = _share(low, earlier_high) ** exponent
    room = max(0.0, sign * (limit - line.level))
    return Gain(
        expected=min(room, LOG_FURTHER * slope * slowing),
        low=min(room, LOG_FURTHER * low * most_slowing),
        high=min(room, LOG_FURTHER * high),
        slowing=slowing,
        per_thousand_steps=1000 * line.slope / float(step[-1]),
        trend=line,
    )


def _improvement(line: Trend, sign: int) -> tuple[float, float, float]:
    """The slope and its interval, positive if it is for the better."""
    low, high = sorted((sign * line.low, sign * line.high))
    return sign * line.slope, low, high


def _share(now: float, before: float) -> float:
    """One as part of the other; learning never speeds up, and a loss of ground does not slow."""
    return min(1.0, now / before) if now > 0 and before > 0 else 1.0
