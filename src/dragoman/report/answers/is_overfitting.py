"""The answer about overfitting."""

import math

from dragoman.report.answers.advice import evaluate_more_often
from dragoman.report.answers.answer import (
    HISTORY_IS_LOST,
    SEE_WHAT_IS_MISSING,
    Answer,
    Confidence,
    Tone,
    facts_of,
    unknown,
)
from dragoman.report.answers.validation_sets import by_all_sets, checkpoint_of
from dragoman.report.evidence import Evidence
from dragoman.report.evidence.series import NAN
from dragoman.report.findings.analysis import Findings
from dragoman.report.findings.overfitting import Overfitting
from dragoman.report.findings.run_schedule import RunSchedule
from dragoman.thresholds import (
    DRIFTING_NOISE,
    EVALUATIONS_FOR_CONFIDENCE,
    EVALUATIONS_NEEDED,
)
from dragoman.wording import plural

_QUESTION = "Were we overfitting?"


def overfitting(evidence: Evidence, findings: Findings) -> Answer:
    """Judge by the turn of the eval loss against the training sample, both in evaluation mode."""
    if evidence.state == "lost":
        return unknown("overfitting", _QUESTION, HISTORY_IS_LOST)
    return by_all_sets(
        findings.learning, lambda one: _by_one_set(evidence, one.overfitting, findings.schedule)
    )


def _by_one_set(evidence: Evidence, found: Overfitting, schedule: RunSchedule | None) -> Answer:
    return Answer(
        id="overfitting",
        question=_QUESTION,
        verdict=found.verdict,
        headline=found.verdict.capitalize(),
        tone=_tone(found),
        note=_note(found),
        answer=_words(found),
        evidence=facts_of(found),
        confidence=_confidence(found),
        next_step=_advice(found, evidence, schedule),
    )


def _tone(found: Overfitting) -> Tone:
    if found.verdict == "yes":
        return "bad"
    is_well = found.reason == "at its minimum" and not found.without_number
    return "good" if is_well else "plain"


def _confidence(found: Overfitting) -> Confidence:
    if found.verdict == "unclear":
        return "low"
    if found.verdict == "no" or found.bleu_change is None:
        return "medium"
    line = found.eval_change
    by_slope = (
        line is not None
        and line.points >= EVALUATIONS_FOR_CONFIDENCE.value
        and line.likely_autocorrelation <= DRIFTING_NOISE.value
    )
    return "high" if found.has_jumped or by_slope else "medium"


def _note(found: Overfitting) -> str:
    if found.reason == "few evaluations":
        return "too few evaluations"
    if found.reason == "at its minimum":
        return f"lowest eval loss at step {found.best_step:,} of {found.last_step:,}"
    within = ", within noise" if found.reason == "rise within noise" else ""
    return f"eval loss {_rise(found):+.3f} since step {found.best_step:,}{within}"


def _rise(found: Overfitting) -> float:
    return found.rise.mean if found.rise else NAN


def _distance(gap: float) -> str:
    return f"{abs(gap):.3f} {'below' if gap < 0 else 'above'}"


def _words(found: Overfitting) -> str:
    lowest = f"The eval loss was lowest at step {found.best_step:,} ({found.best_loss:.3f})"
    last = f"at step {found.last_step:,} it was {found.last_loss:.3f}"
    not_turned = f"{lowest} and has not turned: {last}"
    if found.best_step == found.last_step:
        which = "the last that is a number" if found.without_number else "the last evaluation"
        not_turned = f"{lowest}, {which}: it has not turned"
    gap = (
        f" It lies {_distance(found.gap_last)} the loss on a sample of the training text, measured "
        f"in the same mode ({_distance(found.gap_first)} it at the first evaluation)."
        if math.isfinite(found.gap_last)
        else ""
    )
    number = plural(found.without_number, "evaluation")
    lost = ""
    if found.without_number and found.reason == "few evaluations":
        lost = f" In {number} the loss is not a number."
    elif found.without_number:
        lost = f" This is about the time until then: in {number} after it the loss is not a number."
    rose = f"{lowest} and has risen by {_rise(found):.3f} since"
    sample_rise = found.sample_rise.mean if found.sample_rise else NAN
    bleu = "BLEU does not either" if found.bleu_change else "BLEU is not known"
    words = {
        "few evaluations": "There are too few evaluations after the minimum or in the last third "
        f"to tell a turn of the eval loss from noise (at least {EVALUATIONS_NEEDED.value:g} are "
        "needed).",
        "at its minimum": f"{not_turned}.{gap}",
        "rise within noise": f"{lowest}; {last}. A rise cannot be told from noise yet.{gap}",
        "turned, no training sample": f"{rose}, but the loss on the training sample is not "
        "known: this may be overfitting, or a run that is getting worse on everything.",
        "turned with the training sample": f"{rose}, and the loss on the training sample by "
        f"{sample_rise:.3f}: the run got worse on everything. That is divergence, not overfitting.",
        "turned but BLEU rises": f"{rose}, yet BLEU still rises: the model grows too sure of "
        f"itself while its translations get better.{gap}",
        "turned while training falls": f"{rose}, while the loss on the training sample does not "
        f"rise and {bleu}.{gap}",
    }[found.reason]
    return words + lost


def _advice(found: Overfitting, evidence: Evidence, schedule: RunSchedule | None) -> str:
    best = checkpoint_of(evidence, found.best_step)
    # More of what is not a number would say no more.
    is_lost = found.without_number > 0
    return {
        "few evaluations": SEE_WHAT_IS_MISSING
        if is_lost
        else evaluate_more_often(evidence, schedule),
        "at its minimum": "Nothing to do.",
        "rise within noise": "Watch the next evaluations; the checkpoint with the best loss is "
        "kept."
        if evidence.state == "running"
        else f"If in doubt, use {best}.",
        "turned, no training sample": "Start a new run that measures the training sample too "
        "(evaluation.train_sample_pairs).",
        "turned with the training sample": f"Use {best}, or start a new run with a lower learning "
        "rate.",
        "turned but BLEU rises": "Use the checkpoint with the best BLEU; in a new run, more "
        "dropout or label smoothing makes the model less sure of itself.",
        "turned while training falls": f"Use {best}, or start a new run with more dropout, more "
        "data or a smaller model.",
    }[found.reason]
