"""Whether the run had more to learn, and what more steps would bring, for each validation set."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np

from dragoman.prediction.learning_curve import Forecast
from dragoman.prediction.outlook import MEANINGFUL, Measure, Outlook, look_ahead
from dragoman.prediction.run_schedule import RunSchedule, Stage
from dragoman.report.evidence.series import NAN
from dragoman.report.evidence.step_series import Evaluations, TrainSteps
from dragoman.report.findings.overfitting import Overfitting, judge_overfitting
from dragoman.thresholds import HARDLY_A_TRANSLATION, LIKELY, STEPS_WITHOUT_NUMBER, UNLIKELY

ConvergenceReason = Literal[
    "diverged",
    "no better than guessing",
    "past its best",
    "few evaluations",
    "still improving",
    "rate still to fall",
    "longer schedule helps",
    "gain uncertain",
    "hardly translates",
    "at the ceiling",
    "nothing to gain",
    "nothing left in the schedule",
]
NOTHING_KNOWN = Outlook(None, None, is_at_ceiling=False)


@dataclass(frozen=True)
class Gain:
    """What half as many steps again would bring; positive is better."""

    expected: float
    low: float  # Nine times out of ten the gain lies between these.
    high: float
    probability: float  # Of a gain worth having.
    noise: float  # Standard deviation of one evaluation.
    models: dict[str, float]  # How much each family of curves has to say.


@dataclass(frozen=True)
class Convergence:
    """Whether the run had more to learn."""

    reason: ConvergenceReason
    probability: float  # That half as many steps again bring what is worth having.
    loss: Gain | None
    bleu: Gain | None
    evaluations: int
    diverged_at: int | None  # First step of the training loss's final stretch of NaN.
    guessing_loss: float  # Of guessing among all words; infinite if not known.
    rate: Stage

    @property
    def gains(self) -> dict[Measure, Gain]:
        """Those that are known."""
        both: tuple[tuple[Measure, Gain | None], ...] = (("loss", self.loss), ("BLEU", self.bleu))
        return {measure: gain for measure, gain in both if gain is not None}


@dataclass(frozen=True)
class Learning:
    """What one validation set says."""

    evaluations: Evaluations | None
    outlook: Outlook
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
    schedule: RunSchedule | None,
    guessing_loss: float = math.inf,
) -> tuple[Learning, ...]:
    """Judge by every validation set, the first of which decides what is best; at least once."""
    found = []
    for one in sets or (None,):
        ahead = look_ahead(one.step, one.loss, one.bleu, schedule) if one else NOTHING_KNOWN
        overfitting = judge_overfitting(one, ahead)
        convergence = judge_convergence(one, ahead, train, schedule, overfitting, guessing_loss)
        found.append(Learning(one, ahead, overfitting, convergence))
    return tuple(found)


def judge_convergence(
    evaluations: Evaluations | None,
    ahead: Outlook,
    train: TrainSteps,
    schedule: RunSchedule | None,
    overfitting: Overfitting,
    guessing_loss: float,
) -> Convergence:
    """Judge by the probability that half as many steps again would bring something."""
    rate: Stage = "has no end"
    if schedule is not None and len(train):
        rate = schedule.stage(train.step[-1], train.learning_rate[-1])
    diverged_at = _diverged_at(train, evaluations)
    reason: ConvergenceReason = "diverged"
    if diverged_at is None:
        reason = _reason(evaluations, ahead, rate, overfitting, guessing_loss)
    gains = {measure: _gain(measure, found) for measure, found in ahead.forecasts.items()}
    return Convergence(
        reason,
        probability=ahead.probability,
        loss=gains.get("loss"),
        bleu=gains.get("BLEU"),
        evaluations=0 if evaluations is None else len(evaluations),
        diverged_at=diverged_at,
        guessing_loss=guessing_loss,
        rate=rate,
    )


def _gain(measure: Measure, found: Forecast) -> Gain:
    low, high = np.quantile(found.gain, (0.05, 0.95))
    return Gain(
        expected=float(np.median(found.gain)),
        low=float(low),
        high=float(high),
        probability=found.gain_probability(MEANINGFUL[measure]),
        noise=found.noise,
        models=found.families,
    )


def _reason(
    evaluations: Evaluations | None,
    ahead: Outlook,
    rate: Stage,
    overfitting: Overfitting,
    guessing_loss: float,
) -> ConvergenceReason:
    if evaluations is None:
        return "few evaluations"
    if evaluations.lowest_loss >= guessing_loss:
        return "no better than guessing"
    probability = ahead.probability  # NaN is neither likely nor unlikely.
    translates_better = probability > LIKELY.value and overfitting.reason == "turned but BLEU rises"
    if overfitting.has_turned and not translates_better:
        return "past its best"
    if not ahead.forecasts:
        return "few evaluations"
    if probability > LIKELY.value:
        if rate == "has run down":
            return "longer schedule helps"
        return "rate still to fall" if rate == "is still to fall" else "still improving"
    if ahead.is_at_ceiling:  # What an uncertain gain could still change is a word here and there.
        return "at the ceiling"
    if not probability < UNLIKELY.value:
        return "gain uncertain"
    if evaluations.best_bleu < HARDLY_A_TRANSLATION.value:
        return "hardly translates"
    if rate == "has run down":
        return "nothing left in the schedule"
    return "nothing to gain"


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
