"""Whether the run converged or overfitted, what more steps would buy, and the law of its rate."""

import math
from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any, Literal

import numpy as np

from dragoman.config import PRESETS, SCHEDULES_WITH_END, ScheduleSettings
from dragoman.report.evidence.records import Evaluations, TrainSteps
from dragoman.report.intervals import Trend, trend
from dragoman.report.series import NAN, Bools, Floats
from dragoman.report.thresholds import (
    EVALUATIONS_NEEDED,
    MEANINGFUL_BLEU_GAIN,
    MEANINGFUL_LOSS_GAIN,
    OVERFITTING_RISE,
    RATE_HAS_RUN_DOWN,
)
from dragoman.schedule import learning_rate, peak_step

Verdict = Literal["yes", "no", "unclear"]
ConvergenceReason = Literal[
    "diverged",
    "few evaluations",
    "still improving",
    "improving as the rate runs down",
    "nothing to gain",
    "gain within noise",
]
OverfittingReason = Literal[
    "few evaluations",
    "at its minimum",
    "rise within noise",
    "turned, no training sample",
    "turned with the training sample",
    "turned but BLEU rises",
    "turned while training falls",
]

FURTHER_STEPS = 1.5
LOG_FURTHER = math.log(FURTHER_STEPS)
HIGHEST_BLEU = 100.0


@dataclass(frozen=True)
class Law:
    """A schedule of the learning rate as the settings define it."""

    schedule: ScheduleSettings
    d_model: int
    total_steps: int | None

    def at(self, steps: Floats) -> Floats:
        """Learning rate of each step."""
        rates = [
            learning_rate(max(1, int(step)), self.schedule, self.d_model, self.total_steps)
            for step in steps
        ]
        return np.array(rates)

    @property
    def peak_step(self) -> int:
        """The step with the highest learning rate."""
        return peak_step(self.schedule)

    @property
    def peak(self) -> float:
        """The highest learning rate."""
        return float(self.at(np.array([float(self.peak_step)]))[0])

    @property
    def formula(self) -> str:
        """The law as people write it."""
        schedule = self.schedule
        peak, warmup = f"{schedule.peak:g}", f"{schedule.warmup_steps:,}"
        rise = f"{peak}, reached in a line over {warmup} steps"
        end = f"{schedule.final_fraction:g} of it" if schedule.final_fraction else "zero"
        return {
            "transformer": f"{schedule.scale:g} · {self.d_model}^-0.5 · "
            f"min(step^-0.5, step · {warmup}^-1.5)",
            "inverse_square_root": f"{rise}, then falling as {peak} · ({warmup} / step)^0.5",
            "cosine": f"{rise}, then half a cosine down to {end} at step {self.total_steps or 0:,}",
            "constant": f"{rise}, then held",
            "warmup_stable_decay": f"{rise}, held, then in a line down to {end} over the last "
            f"{schedule.decay_steps:,} of {self.total_steps or 0:,} steps",
        }[schedule.kind]

    @property
    def has_end(self) -> bool:
        """Whether the schedule ends with the run, so that the run cannot be made longer."""
        return self.schedule.kind in SCHEDULES_WITH_END

    def has_run_down(self, rate: float) -> bool:
        """Whether a schedule that has an end has come near it."""
        return bool(self.has_end and rate < RATE_HAS_RUN_DOWN.value * self.peak)


def law_of(settings: Mapping[str, Any]) -> Law | None:
    """The law that a run's settings ask for; None if they do not say or it is unknown."""
    try:
        table = settings["schedule"]
        known = {item.name for item in fields(ScheduleSettings)}
        schedule = ScheduleSettings(**{key: table[key] for key in table.keys() & known})
        model = settings["model"]
        d_model = int(model.get("d_model") or PRESETS[model["preset"]].d_model)
        law = Law(schedule, d_model, settings["training"].get("steps"))
        # A kind or a number that makes no sense shows when it is used.
        return law if law.peak > 0 and law.formula else None
    except (KeyError, AttributeError, TypeError, ValueError, ZeroDivisionError, AssertionError):
        return None


@dataclass(frozen=True)
class Gain:
    """What 50% more steps would bring, with its 95% interval; positive is better."""

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
    has_run_down: bool  # The learning rate.


@dataclass(frozen=True)
class Overfitting:
    """Whether the loss on unseen text rises while that on training text falls."""

    verdict: Verdict
    reason: OverfittingReason
    best_step: int = 0
    best_loss: float = NAN
    last_loss: float = NAN
    rise: float = NAN
    recent_change: Trend | None = None  # Eval loss over ln(step), over the last third at least.
    eval_change: Trend | None = None  # The others: after the minimum.
    train_change: Trend | None = None
    bleu_change: Trend | None = None
    gap_first: float = NAN  # Eval loss minus training sample's loss, at the first evaluation.
    gap_last: float = NAN


def last_third(step: Floats) -> Bools:
    """The steps beyond two thirds of the last one."""
    late: Bools = step > step[-1] * 2 / 3
    return late


def judge_convergence(
    evaluations: Evaluations | None, train: TrainSteps, law: Law | None
) -> Convergence:
    """Extrapolate loss and BLEU of the last third, on a logarithmic scale of steps."""
    diverged_at = _diverged_at(train)
    loss = bleu = None
    late = 0
    if evaluations is not None:
        step = evaluations.step
        late = int(last_third(step).sum())
        loss = _gain(step, evaluations.loss, sign=-1, limit=0.0)
        bleu = _gain(step, evaluations.bleu, sign=1, limit=HIGHEST_BLEU)
    has_run_down = law is not None and len(train) > 0 and law.has_run_down(train.learning_rate[-1])
    verdict: tuple[Verdict, ConvergenceReason] = ("no", "diverged")
    if diverged_at is None:
        verdict = _convergence_verdict(loss, bleu, has_run_down)
    return Convergence(*verdict, loss, bleu, late, diverged_at, has_run_down)


def _convergence_verdict(
    loss: Gain | None, bleu: Gain | None, has_run_down: bool
) -> tuple[Verdict, ConvergenceReason]:
    meaningful = (MEANINGFUL_LOSS_GAIN.value, MEANINGFUL_BLEU_GAIN.value)
    known = [(gain, least) for gain, least in zip((loss, bleu), meaningful, strict=True) if gain]
    if not known:
        return "unclear", "few evaluations"
    if any(gain.low > 0 and gain.expected >= least for gain, least in known):
        # Whether more steps or the end of the schedule brought it cannot be told apart.
        if has_run_down:
            return "unclear", "improving as the rate runs down"
        return "no", "still improving"
    if all(gain.high < least for gain, least in known):
        return "yes", "nothing to gain"
    return "unclear", "gain within noise"


def _diverged_at(train: TrainSteps) -> int | None:
    """Where the final stretch of losses that are no numbers begins, if there is one."""
    finite = np.flatnonzero(np.isfinite(train.loss))
    first = int(finite[-1]) + 1 if len(finite) else 0
    return int(train.step[first]) if first < len(train) else None


def _gain(step: Floats, values: Floats, sign: int, limit: float) -> Gain | None:
    """Go on from the last third, slowing as learning did from the second third to it."""
    late = last_third(step)
    line = _trend(step[late], values[late])
    if line is None:
        return None
    slope, low, high = _improvement(line, sign)
    slowing = most_slowing = 1.0
    second = ~late & (step > step[-1] / 3)
    earlier = _trend(step[second], values[second])
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


def judge_overfitting(evaluations: Evaluations | None) -> Overfitting:
    """Compare losses measured in the same mode, before and after the eval loss's minimum."""
    series = None if evaluations is None else evaluations.take(np.isfinite(evaluations.loss))
    if series is None or len(series) < 2:
        return Overfitting("unclear", "few evaluations")
    step, loss = series.step, series.loss
    smooth = _running_mean(loss)
    turn, best = int(np.argmin(smooth)), int(np.argmin(loss))
    # The three that were chosen for being low must not witness that the others are higher.
    after = np.arange(len(step)) > turn + 1
    recent = after | last_third(step)
    if after.sum() < EVALUATIONS_NEEDED.value:
        after = recent
    rise = float(loss[-3:].mean() - smooth[turn])
    recent_change = _trend(step[recent], loss[recent])
    changes = [
        _trend(step[after], values[after])
        for values in (loss, series.train_sample_loss, series.bleu)
    ]
    gaps = loss - series.train_sample_loss
    return Overfitting(
        *_overfitting_verdict(rise, recent_change, *changes),
        best_step=int(step[best]),
        best_loss=float(loss[best]),
        last_loss=float(loss[-1]),
        rise=rise,
        recent_change=recent_change,
        eval_change=changes[0],
        train_change=changes[1],
        bleu_change=changes[2],
        gap_first=float(gaps[0]),
        gap_last=float(gaps[-1]),
    )


def _overfitting_verdict(
    rise: float,
    recent_change: Trend | None,
    eval_change: Trend | None,
    train_change: Trend | None,
    bleu_change: Trend | None,
) -> tuple[Verdict, OverfittingReason]:
    if recent_change is None or eval_change is None:
        return "unclear", "few evaluations"
    if rise < OVERFITTING_RISE.value or eval_change.low <= 0:
        possible_rise = max(rise, LOG_FURTHER * recent_change.high)
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


def _trend(step: Floats, values: Floats) -> Trend | None:
    known = np.isfinite(values) & (step > 0)
    if known.sum() < EVALUATIONS_NEEDED.value:
        return None
    return trend(np.log(step[known]), values[known])
