"""Answers about what the run learned."""

from dataclasses import asdict
from typing import Any

import numpy as np

from dragoman.report.answer import Answer, Confidence, Tone
from dragoman.report.evidence import Evidence
from dragoman.report.findings import Findings
from dragoman.report.learning import Convergence, Gain, Overfitting
from dragoman.report.records import Evaluations
from dragoman.report.schedules import Law
from dragoman.report.thresholds import (
    EVALUATIONS_NEEDED,
    LEARNING_RATE_DEVIATION,
    MEANINGFUL_BLEU_GAIN,
    MEANINGFUL_LOSS_GAIN,
)
from dragoman.report.wording import in_count, plural

_NEEDED = int(EVALUATIONS_NEEDED.value)
_RUN_DOWN_SHARE = 0.1  # Of the peak.
_RUN_DOWN = (
    " The learning rate has run down by now: the slope is partly its doing, and only a longer "
    "schedule could make use of more steps."
)


def fully_trained(evidence: Evidence, findings: Findings) -> Answer:
    """Judge by the slopes of the last third."""
    found = findings.convergence
    has_run_down = _has_run_down(evidence, findings.law)
    tones: dict[str, Tone] = {"yes": "good", "no": "caution", "unclear": "plain"}
    return Answer(
        id="fully_trained",
        question="Is the model fully trained?",
        verdict=found.verdict,
        headline={"yes": "Yes", "no": "No", "unclear": "Unclear"}[found.verdict],
        tone="bad" if found.diverged_at is not None else tones[found.verdict],
        answer=_convergence_words(found, evidence.evaluations)
        + (_RUN_DOWN if has_run_down and (found.loss or found.bleu) else ""),
        evidence={
            "evaluations_in_last_third": found.evaluations,
            "diverged_at_step": found.diverged_at,
            "loss": _gain_json(found.loss),
            "bleu": _gain_json(found.bleu),
            "meaningful_gain": {
                "loss": MEANINGFUL_LOSS_GAIN.value,
                "bleu": MEANINGFUL_BLEU_GAIN.value,
            },
            "learning_rate_has_run_down": has_run_down,
            **_best(evidence.evaluations),
        },
        confidence=_convergence_confidence(found, has_run_down),
        next_step=_convergence_advice(found, evidence, has_run_down),
    )


def _has_run_down(evidence: Evidence, law: Law | None) -> bool:
    """Whether the learning rate has come to the end of a schedule that has one."""
    rates = evidence.history.train.learning_rate
    if law is None or law.schedule.kind not in ("cosine", "warmup_stable_decay") or not len(rates):
        return False
    return bool(rates[-1] < _RUN_DOWN_SHARE * law.peak)


def _convergence_words(found: Convergence, evaluations: Evaluations | None) -> str:
    if found.diverged_at is not None:
        return (
            f"The training loss has not been a number since step {found.diverged_at:,}: the run "
            "diverged, and the steps after that taught it nothing."
        )
    if found.loss is None and found.bleu is None:
        count = 0 if evaluations is None else len(evaluations)
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
    judgement = {
        "yes": "That would not be worth the time.",
        "no": "The run was stopped while it was still improving.",
        "unclear": "The noise between evaluations is too large to call that something or nothing.",
    }[found.verdict]
    return (
        f"50% more steps would probably change {' and '.join(changes)}, 95% intervals in "
        f"brackets. {judgement}"
    )


def _convergence_confidence(found: Convergence, has_run_down: bool) -> Confidence:
    if found.diverged_at is not None:
        return "high"
    if found.verdict == "unclear":
        return "low"
    both = found.loss is not None and found.bleu is not None
    many = found.evaluations >= 2 * _NEEDED
    return "high" if both and many and not has_run_down else "medium"


def _convergence_advice(found: Convergence, evidence: Evidence, has_run_down: bool) -> str:
    if found.diverged_at is not None:
        return (
            f"Resume from a checkpoint before step {found.diverged_at:,} with a lower peak "
            "learning rate or a longer warm-up, or train in bfloat16 or float32."
        )
    if found.loss is None and found.bleu is None:
        return (
            f"Evaluate more often: at least {3 * _NEEDED} evaluations over the run "
            "(evaluation.every_steps)."
        )
    steps = in_count(1.5 * float(np.max(evidence.history.train.step, initial=0.0)))
    return {
        "yes": "Stop here, average the last checkpoints (`--average`), or spend the time on a "
        "larger model or more data.",
        "no": "Start again with a longer schedule: this one has run down to its end."
        if has_run_down
        else f"Go on: raise training.steps to {steps} and give the same command again.",
        "unclear": "Evaluate more often or on more sentences, or simply go on for a while.",
    }[found.verdict]


def _gain_json(gain: Gain | None) -> dict[str, Any] | None:
    if gain is None:
        return None
    return {
        "gain_from_50_percent_more_steps": gain.expected,
        "interval_95": [gain.low, gain.high],
        "slope_per_1000_steps": gain.per_thousand_steps,
        "slope_per_log_step": gain.trend.slope,
        "slope_interval_95": [gain.trend.low, gain.trend.high],
        "noise": gain.trend.noise,
        "autocorrelation": gain.trend.autocorrelation,
        "effective_evaluations": gain.trend.effective_points,
    }


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
    few = found.reason == "few evaluations"
    confidence: Confidence = "high" if found.reason == "turned while training falls" else "medium"
    return Answer(
        id="overfitting",
        question="Were we overfitting?",
        verdict=found.verdict,
        headline={"yes": "Yes", "no": "No", "unclear": "Unclear"}[found.verdict],
        tone=tones[found.verdict],
        answer=_overfitting_words(found),
        evidence={
            "reason": found.reason,
            "best_loss": found.best_loss,
            "best_step": found.best_step,
            "last_loss": found.last_loss,
            "rise_after_minimum": found.rise,
            "gap_to_training_sample": {"first": found.gap_first, "last": found.gap_last},
            "changes_per_log_step": {
                "eval_loss": asdict(found.eval_change) if found.eval_change else None,
                "train_sample_loss": asdict(found.train_change) if found.train_change else None,
                "bleu": asdict(found.bleu_change) if found.bleu_change else None,
            },
        },
        confidence="low" if few or found.verdict == "unclear" else confidence,
        next_step=_overfitting_advice(found),
    )


def _overfitting_words(found: Overfitting) -> str:
    if found.reason == "few evaluations":
        return (
            "There are too few evaluations after the minimum or in the last third to tell a turn "
            f"of the eval loss from noise (at least {_NEEDED} are needed)."
        )
    lowest = f"The eval loss was lowest at step {found.best_step:,} ({found.best_loss:.3f})"
    gap = (
        f" It lies {found.gap_last:.3f} above the loss on a sample of the training text, measured "
        f"in the same mode ({found.gap_first:.3f} at the first evaluation)."
        if np.isfinite(found.gap_last)
        else ""
    )
    rose = f"{lowest} and has risen by {found.rise:.3f} since"
    return {
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
        f"rise and BLEU does not either.{gap}"
        if found.bleu_change
        else f"{rose}, while the loss on the training sample does not rise.{gap}",
    }[found.reason]


def _overfitting_advice(found: Overfitting) -> str:
    return {
        "few evaluations": "Evaluate more often (evaluation.every_steps).",
        "at its minimum": "Nothing to do.",
        "rise within noise": "Watch the next evaluations; the checkpoint with the best loss is "
        "kept.",
        "turned, no training sample": "Set evaluation.train_sample_pairs and resume.",
        "turned with the training sample": "Lower the learning rate, and resume from the best "
        "checkpoint.",
        "turned but BLEU rises": "Use the checkpoint with the best BLEU; more dropout or label "
        "smoothing makes the model less sure of itself.",
        "turned while training falls": f"Use the checkpoint of step {found.best_step:,}; raise "
        "dropout, add data, or take a smaller model.",
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
    if law is None:
        return _unknown_law(evidence, facts)
    deviation = float(np.abs(rates - law.at(steps)).max(initial=0.0) / law.peak)
    follows = deviation <= LEARNING_RATE_DEVIATION.value
    facts["law"] = {
        "formula": law.formula,
        "warmup_steps": law.schedule.warmup_steps,
        "peak": law.peak,
        "peak_step": law.peak_step,
    }
    facts["largest_deviation_from_law"] = deviation
    return Answer(
        id="learning_rate",
        question="What did the learning rate do?",
        verdict=law.schedule.kind,
        headline=law.schedule.kind.replace("_", " ").capitalize(),
        tone="plain" if follows else "caution",
        answer=_law_words(law, facts, follows),
        evidence=facts,
        confidence="high" if follows and len(rates) else "medium",
        next_step="Nothing to do."
        if follows
        else "Look for a resume with other schedule settings, or another version of Dragoman.",
    )


def _law_words(law: Law, facts: dict[str, Any], follows: bool) -> str:
    words = (
        f"It follows the {law.schedule.kind.replace('_', ' ')} schedule: {law.formula}. "
        f"It rises for {law.peak_step:,} steps to its peak of {law.peak:.3g}"
    )
    logged = facts.get("logged")
    if logged is None:
        return f"{words}; no step has been logged yet."
    so_far = " (not reached yet)" if logged["now_step"] < law.peak_step else ""
    words += f"{so_far}; at step {logged['now_step']:,} it is {logged['now']:.3g}. "
    if follows:
        return f"{words}The logged curve follows the law exactly."
    percent = 100 * facts["largest_deviation_from_law"]
    return f"{words}The logged curve deviates from the law by up to {percent:.2g}% of the peak."


def _unknown_law(evidence: Evidence, facts: dict[str, Any]) -> Answer:
    kind = evidence.setting("schedule", "kind")
    logged = facts.get("logged")
    words = (
        f"The settings do not name a schedule that is known here; the log shows a peak of "
        f"{logged['peak']:.3g} at step {logged['peak_step']:,} and {logged['now']:.3g} at step "
        f"{logged['now_step']:,}."
        if logged
        else "Neither the settings nor the log say anything about the learning rate."
    )
    return Answer(
        id="learning_rate",
        question="What did the learning rate do?",
        verdict=str(kind) if kind else "unclear",
        headline=str(kind) if kind else "Unclear",
        tone="plain",
        answer=words,
        evidence=facts,
        confidence="low",
        next_step="Keep config.toml in the run folder: the law is read from it.",
    )
