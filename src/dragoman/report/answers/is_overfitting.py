"""The answer about overfitting: a row for each reason."""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial

from dragoman.prediction.run_schedule import RunSchedule
from dragoman.report.answers.advice import evaluate_more_often
from dragoman.report.answers.answer import (
    HISTORY_IS_LOST,
    SEE_WHAT_IS_MISSING,
    Answer,
    Confidence,
    Row,
    facts_of,
    unknown,
)
from dragoman.report.answers.validation_sets import by_all_sets, checkpoint_of
from dragoman.report.evidence import Evidence
from dragoman.report.evidence.series import NAN
from dragoman.report.findings.analysis import Findings
from dragoman.report.findings.convergence import Learning
from dragoman.report.findings.overfitting import Overfitting, OverfittingReason
from dragoman.thresholds import EVALUATIONS_NEEDED, OVERFITTING_RISE, VERY_LIKELY
from dragoman.wording import in_percent, plural

_QUESTION = "Were we overfitting?"


@dataclass(frozen=True)
class _Case:
    """What a row may speak of."""

    evidence: Evidence
    found: Overfitting
    schedule: RunSchedule | None

    @property
    def best(self) -> str:
        return checkpoint_of(self.evidence, self.found.best_step)

    @property
    def lowest(self) -> str:
        found = self.found
        return f"The eval loss was lowest at step {found.best_step:,} ({found.best_loss:.3f})"

    @property
    def rose(self) -> str:
        return f"{self.lowest} and has risen by {_rise(self.found):.3f} since{self.chance}"

    @property
    def chance(self) -> str:
        """How likely it lies above its minimum; a jump needs no words about it."""
        found = self.found
        if found.has_jumped or math.isnan(found.probability):
            return ""
        return (
            f" ({in_percent(found.probability)} likely to be at least {OVERFITTING_RISE.value:g} "
            "nats above its minimum)"
        )


def overfitting(evidence: Evidence, findings: Findings) -> Answer:
    """Judge by the turn of the eval loss against the training sample, both in evaluation mode."""
    if evidence.state == "lost":
        return unknown("overfitting", _QUESTION, HISTORY_IS_LOST)

    def by_one_set(learning: Learning) -> Answer:
        if learning.convergence.reason == "no better than guessing":
            words = "The model was never better than guessing: it has learned nothing to overfit."
            advice = "Let it learn first: see the answer to whether the model is fully trained."
            return unknown("overfitting", _QUESTION, words, advice)
        case = _Case(evidence, learning.overfitting, findings.schedule)
        facts = facts_of(case.found)
        return ROWS[case.found.reason].answer("overfitting", _QUESTION, facts, case)

    return by_all_sets(findings.learning, by_one_set)


def _rise(found: Overfitting) -> float:
    return found.rise.mean if found.rise else NAN


def _note_of_rise(case: _Case) -> str:
    found = case.found
    chance = "" if found.has_jumped else f", {in_percent(found.probability)} likely real"
    return f"eval loss {_rise(found):+.3f} since step {found.best_step:,}{chance}"


def _gap(found: Overfitting) -> str:
    if not math.isfinite(found.gap_last):
        return ""
    return (
        f" It is {_distance(found.gap_last)} the loss on a sample of the training text, measured "
        f"in the same mode (at the first evaluation, {_distance(found.gap_first)} it)."
    )


def _distance(gap: float) -> str:
    return f"{abs(gap):.3f} {'below' if gap < 0 else 'above'}"


def _until_then(found: Overfitting) -> str:
    """That it ends before the run does, if so."""
    if not found.without_number:
        return ""
    number = plural(found.without_number, "evaluation")
    return f" This covers the run up to then: in {number} after it the loss is NaN or infinite."


def _words_at_minimum(case: _Case) -> str:
    found = case.found
    turned = f"{case.lowest} and has not started to rise: at step {found.last_step:,} it was "
    turned += f"{found.last_loss:.3f}{case.chance}."
    if found.best_step == found.last_step:
        which = "the last finite one" if found.without_number else "the last evaluation"
        turned = f"{case.lowest}, {which}: it has not started to rise{case.chance}."
    return f"{turned}{_gap(found)}{_until_then(found)}"


def _words_within_noise(case: _Case) -> str:
    found = case.found
    first, last = found.best_steps
    return (
        f"{case.lowest}; at step {found.last_step:,} it was {found.last_loss:.3f}{case.chance}. "
        f"That may be noise; the minimum is somewhere between steps {first:,} and "
        f"{last:,}.{_gap(found)}{_until_then(found)}"
    )


def _words_when_few(case: _Case) -> str:
    lost = ""
    if case.found.without_number:
        number = plural(case.found.without_number, "evaluation")
        lost = f" In {number} the loss is NaN or infinite."
    return (
        "There are too few evaluations to tell a rise of the eval loss from noise (at least "
        f"{EVALUATIONS_NEEDED.value:g} are needed).{lost}"
    )


def _words_with_sample(case: _Case) -> str:
    sample_rise = case.found.sample_rise.mean if case.found.sample_rise else NAN
    return (
        f"{case.rose}, and the loss on the training sample by {sample_rise:.3f}: the run got worse "
        f"on everything. That is divergence, not overfitting.{_until_then(case.found)}"
    )


def _words_when_overfitting(case: _Case) -> str:
    is_known = math.isfinite(case.found.bleu_rise_probability)
    bleu = "BLEU is not improving either" if is_known else "BLEU was not measured"
    return (
        f"{case.rose}, while the loss on the training sample does not rise and {bleu}."
        f"{_gap(case.found)}{_until_then(case.found)}"
    )


def _confidence_of_turn(case: _Case) -> Confidence:
    found = case.found
    sure = found.has_jumped or found.probability >= VERY_LIKELY.value
    return "high" if sure and math.isfinite(found.bleu_rise_probability) else "medium"


_unclear = partial(Row[_Case], verdict="unclear", confidence="low", note=_note_of_rise)

ROWS: Mapping[OverfittingReason, Row[_Case]] = {
    "few evaluations": Row(
        verdict="unclear",
        confidence="low",
        note="too few evaluations",
        words=_words_when_few,
        # More of what is not a number would say no more.
        advice=lambda case: (
            SEE_WHAT_IS_MISSING
            if case.found.without_number
            else evaluate_more_often(case.evidence, case.schedule)
        ),
    ),
    "at its minimum": Row(
        verdict="no",
        tone=lambda case: "plain" if case.found.without_number else "good",
        confidence=lambda case: (
            "high" if case.found.probability <= 1 - VERY_LIKELY.value else "medium"
        ),
        note=lambda case: (
            f"lowest eval loss at step {case.found.best_step:,} of {case.found.last_step:,}"
        ),
        words=_words_at_minimum,
        advice="Nothing to do.",
    ),
    "rise within noise": _unclear(
        words=_words_within_noise,
        advice=lambda case: (
            "Watch the next evaluations; the checkpoint with the best loss is kept."
            if case.evidence.state == "running"
            else f"If in doubt, use {case.best}."
        ),
    ),
    "turned, no training sample": _unclear(
        words=lambda case: (
            f"{case.rose}, but the loss on the training sample was not measured: this may be "
            "overfitting, or the run may be getting worse on everything."
        ),
        advice="Start a new run that also measures the training sample "
        "(evaluation.train_sample_pairs).",
    ),
    "turned with the training sample": Row(
        verdict="no",
        confidence="medium",
        note=_note_of_rise,
        words=_words_with_sample,
        advice=lambda case: f"Use {case.best}, or start a new run with a lower learning rate.",
    ),
    "turned but BLEU rises": _unclear(
        words=lambda case: (
            f"{case.rose}, yet BLEU is still rising: the model is becoming overconfident while "
            f"its translations improve.{_gap(case.found)}"
        ),
        advice="Use the checkpoint with the best BLEU; in a new run, more dropout or label "
        "smoothing makes the model less overconfident.",
    ),
    "turned while training falls": Row(
        verdict="yes",
        tone="bad",
        confidence=_confidence_of_turn,
        note=_note_of_rise,
        words=_words_when_overfitting,
        advice=lambda case: (
            f"Use {case.best}, or start a new run with more dropout, more data or a smaller model."
        ),
    ),
}
