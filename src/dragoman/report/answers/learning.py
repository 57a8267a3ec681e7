"""Answers about what the run learned."""

from typing import Any

import numpy as np

from dragoman.report.answers.answer import Answer, Confidence, Tone, facts_of
from dragoman.report.evidence import Evidence
from dragoman.report.evidence.records import Evaluations
from dragoman.report.findings import Findings
from dragoman.report.learning import FURTHER_STEPS, Convergence, Law, Overfitting
from dragoman.report.thresholds import (
    EVALUATIONS_FOR_CONFIDENCE,
    EVALUATIONS_NEEDED,
    LEARNING_RATE_DEVIATION,
)
from dragoman.report.wording import in_count, plural

_NEEDED = int(EVALUATIONS_NEEDED.value)


def fully_trained(evidence: Evidence, findings: Findings) -> Answer:
    """Judge by the slopes of the last third."""
    found = findings.convergence
    tones: dict[str, Tone] = {"yes": "good", "no": "caution", "unclear": "plain"}
    note = ""
    if found.bleu:
        note = f"{found.bleu.expected:+.2f} BLEU from 50% more steps"
    elif found.loss:
        note = f"{-found.loss.expected:+.3f} loss from 50% more steps"
    return Answer(
        id="fully_trained",
        question="Is the model fully trained?",
        verdict=found.verdict,
        headline=found.verdict.capitalize(),
        tone="bad" if found.reason == "diverged" else tones[found.verdict],
        note=note,
        answer=_convergence_words(found, evidence),
        evidence=facts_of(found) | _best(evidence.evaluations),
        confidence=_convergence_confidence(found),
        next_step=_convergence_advice(found, evidence, findings.law),
    )


def _convergence_words(found: Convergence, evidence: Evidence) -> str:
    if found.reason == "diverged":
        return (
            f"The training loss has not been a number since step {found.diverged_at:,}: the run "
            "diverged, and the steps after that taught it nothing."
        )
    if found.reason == "few evaluations":
        count = 0 if evidence.evaluations is None else len(evidence.evaluations)
        return (
            f"{plural(count, 'evaluation').capitalize()}, {found.evaluations} of them in the last "
            f"third of the run: too few to tell a slope from noise (at least {_NEEDED} are needed "
            "there)."
        )
    changes = []
    if found.loss:
        low, high = -found.loss.high, -found.loss.low
        changes.append(f"the eval loss by {-found.loss.expected:+.3f} ({low:+.3f} to {high:+.3f})")
    if found.bleu:
        low, high = found.bleu.low, found.bleu.high
        changes.append(f"BLEU by {found.bleu.expected:+.2f} ({low:+.2f} to {high:+.2f})")
    stopped = "is" if evidence.state == "running" else "ended while it was"
    judgement = {
        "nothing to gain": "That would not be worth the time.",
        "still improving": f"The run {stopped} still improving.",
        "improving as the rate runs down": "But the learning rate has run down to its end, and "
        "lowering it lowers the loss too: whether more steps would help cannot be told.",
        "gain within noise": "The interval is too wide to call that something or nothing.",
    }[found.reason]
    return (
        f"If learning goes on slowing as it did, 50% more steps change {' and '.join(changes)}; "
        f"95% intervals in brackets. {judgement}"
    )


def _convergence_confidence(found: Convergence) -> Confidence:
    if found.reason == "diverged":
        return "high"
    if found.verdict == "unclear":
        return "low"
    both = found.loss is not None and found.bleu is not None
    many = found.evaluations >= EVALUATIONS_FOR_CONFIDENCE.value
    return "high" if both and many and not found.has_run_down else "medium"


def _convergence_advice(found: Convergence, evidence: Evidence, law: Law | None) -> str:
    last_step = evidence.history.train.last_step
    steps = in_count(FURTHER_STEPS * last_step)
    reason = found.reason
    if law is not None and law.has_end and reason in ("still improving", "gain within noise"):
        if last_step < (law.total_steps or 0):
            return f"Go on to the schedule's end, step {law.total_steps:,}."
        reason = "improving as the rate runs down"  # There is no going on from its end.
    return {
        "diverged": "Start a new run with a lower learning rate or a longer warm-up, or in "
        "bfloat16 or float32.",
        "few evaluations": f"Evaluate more often: at least {3 * _NEEDED} evaluations over the run "
        "(evaluation.every_steps).",
        "nothing to gain": "Stop here, average the last checkpoints (`--average`), or spend the "
        "time on a larger model or more data.",
        "still improving": f"Go on: raise training.steps to {steps}, or whichever limit ended the "
        "run, and give the same command again.",
        "improving as the rate runs down": f"To find out, start a new run with a schedule of "
        f"{steps} steps, and compare the two.",
        "gain within noise": "Evaluate more often or on more sentences, or simply go on for a "
        "while.",
    }[reason]


def _best(evaluations: Evaluations | None) -> dict[str, Any]:
    if evaluations is None:
        return {}
    result: dict[str, Any] = {"validation_set": evaluations.name}
    for name, values, choose in (
        ("best_loss", evaluations.loss, np.nanargmin),
        ("best_bleu", evaluations.bleu, np.nanargmax),
    ):
        if np.isfinite(values).any():
            place = int(choose(values))
            result[name] = {"value": values[place], "step": int(evaluations.step[place])}
    result["signature"] = evaluations.signature
    return result


def overfitting(evidence: Evidence, findings: Findings) -> Answer:
    """Judge by the turn of the eval loss against the training sample, both in evaluation mode."""
    found = findings.overfitting
    tones: dict[str, Tone] = {"yes": "bad", "no": "good", "unclear": "plain"}
    confidence: Confidence = "low" if found.verdict == "unclear" else "medium"
    if found.verdict == "yes" and found.bleu_change:
        confidence = "high"
    return Answer(
        id="overfitting",
        question="Were we overfitting?",
        verdict=found.verdict,
        headline=found.verdict.capitalize(),
        tone=tones[found.verdict],
        note=f"gap to training text {found.gap_last:.3f}" if np.isfinite(found.gap_last) else "",
        answer=_overfitting_words(found),
        evidence=facts_of(found),
        confidence=confidence,
        next_step=_overfitting_advice(found),
    )


def _overfitting_words(found: Overfitting) -> str:
    lowest = f"The eval loss was lowest at step {found.best_step:,} ({found.best_loss:.3f})"
    gap = (
        f" It lies {found.gap_last:.3f} above the loss on a sample of the training text, measured "
        f"in the same mode ({found.gap_first:.3f} at the first evaluation)."
        if np.isfinite(found.gap_last)
        else ""
    )
    rose = f"{lowest} and has risen by {found.rise:.3f} since"
    bleu = "BLEU does not either" if found.bleu_change else "BLEU is not known"
    return {
        "few evaluations": "There are too few evaluations after the minimum or in the last third "
        f"to tell a turn of the eval loss from noise (at least {_NEEDED} are needed).",
        "at its minimum": f"{lowest} and has not turned: at the end it was "
        f"{found.last_loss:.3f}.{gap}",
        "rise within noise": f"{lowest} and ended at {found.last_loss:.3f}; a rise cannot be told "
        f"from noise yet.{gap}",
        "turned, no training sample": f"{rose}, but the loss on the training sample is not "
        "known: this may be overfitting, or a run that is getting worse on everything.",
        "turned with the training sample": f"{rose}, and the loss on the training sample rises "
        "too: the run is getting worse on everything, which is not overfitting.",
        "turned but BLEU rises": f"{rose}, yet BLEU still rises: the model grows too sure of "
        f"itself while its translations get better.{gap}",
        "turned while training falls": f"{rose}, while the loss on the training sample does not "
        f"rise and {bleu}.{gap}",
    }[found.reason]


def _overfitting_advice(found: Overfitting) -> str:
    return {
        "few evaluations": "Evaluate more often (evaluation.every_steps).",
        "at its minimum": "Nothing to do.",
        "rise within noise": "Watch the next evaluations; the checkpoint with the best loss is "
        "kept.",
        "turned, no training sample": "Start a new run that measures the training sample too "
        "(evaluation.train_sample_pairs).",
        "turned with the training sample": "Use the checkpoint with the best loss, or start a new "
        "run with a lower learning rate.",
        "turned but BLEU rises": "Use the checkpoint with the best BLEU; in a new run, more "
        "dropout or label smoothing makes the model less sure of itself.",
        "turned while training falls": f"Use the checkpoint of step {found.best_step:,}, or start "
        "a new run with more dropout, more data or a smaller model.",
    }[found.reason]


def learning_rate(evidence: Evidence, findings: Findings) -> Answer:
    """Explain the curve from the settings and hold the log against the law."""
    train, law = evidence.history.train, findings.law
    known = np.isfinite(train.learning_rate)
    steps, rates = train.step[known], train.learning_rate[known]
    facts: dict[str, Any] = {}
    if len(rates):
        facts["logged"] = {
            "peak": rates.max(),
            "peak_step": int(steps[np.argmax(rates)]),
            "now": rates[-1],
            "now_step": int(steps[-1]),
        }
    follows = False
    if law is not None:
        deviation = float(np.abs(rates - law.at(steps)).max(initial=0.0) / law.peak)
        follows = deviation <= LEARNING_RATE_DEVIATION.value
        facts["law"] = {
            "formula": law.formula,
            "warmup_steps": law.schedule.warmup_steps,
            "peak": law.peak,
            "peak_step": law.peak_step,
        }
        facts["largest_deviation_from_law"] = deviation
    kind = law.schedule.kind if law else str(evidence.setting("schedule", "kind") or "unclear")
    advice = "Look for a config.toml that was changed, or another version of Dragoman."
    if law is None:
        advice = "Keep config.toml in the run folder: the law is read from it."
    return Answer(
        id="learning_rate",
        question="What did the learning rate do?",
        verdict=kind,
        headline=kind.replace("_", " ").capitalize(),
        tone="caution" if law and not follows else "plain",
        note=f"peak {law.peak:.2g} at step {law.peak_step:,}" if law else "",
        answer=_law_words(law, facts, follows),
        evidence=facts,
        confidence="low" if law is None else "high" if follows and len(rates) else "medium",
        next_step="Nothing to do." if follows else advice,
    )


def _law_words(law: Law | None, facts: dict[str, Any], follows: bool) -> str:
    logged = facts.get("logged")
    if law is None:
        if logged is None:
            return "Neither the settings nor the log say anything about the learning rate."
        return (
            "The settings do not name a schedule that is known here; the log shows a peak of "
            f"{logged['peak']:.3g} at step {logged['peak_step']:,} and {logged['now']:.3g} at "
            f"step {logged['now_step']:,}."
        )
    words = (
        f"It follows the {law.schedule.kind.replace('_', ' ')} schedule: {law.formula}. "
        f"It rises for {law.peak_step:,} steps to its peak of {law.peak:.3g}"
    )
    if logged is None:
        return f"{words}; no step has been logged yet."
    so_far = " (not reached yet)" if logged["now_step"] < law.peak_step else ""
    words += f"{so_far}; at step {logged['now_step']:,} it is {logged['now']:.3g}. "
    if follows:
        return f"{words}The logged curve follows the law exactly."
    percent = 100 * facts["largest_deviation_from_law"]
    return f"{words}The logged curve deviates from the law by up to {percent:.2g}% of the peak."
