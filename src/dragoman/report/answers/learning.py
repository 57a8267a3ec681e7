"""The answer about what the run had left to learn."""

from typing import Any

import numpy as np

from dragoman.report.answers.advice import GIVE_IT_A_RATE, evaluate_more_often, was_zero
from dragoman.report.answers.answer import (
    HISTORY_IS_LOST,
    Answer,
    Confidence,
    Tone,
    facts_of,
    unknown,
)
from dragoman.report.answers.validation_sets import (
    by_all_sets,
    checkpoint_of,
    last_checkpoint_before,
)
from dragoman.report.curves import FURTHER_STEPS
from dragoman.report.evidence import Evidence
from dragoman.report.evidence.step_series import Evaluations
from dragoman.report.findings import Findings
from dragoman.report.law import Law
from dragoman.report.learning import (
    Convergence,
    Gain,
    Learning,
    Measure,
    is_improving,
    may_improve,
)
from dragoman.report.thresholds import EVALUATIONS_FOR_CONFIDENCE, EVALUATIONS_NEEDED
from dragoman.report.wording import in_count, plural

_QUESTION = "Is the model fully trained?"
_NEEDED = int(EVALUATIONS_NEEDED.value)
_FINER_PRECISION = {"float16": ", or in bfloat16 or float32", "bfloat16": ", or in float32"}


def fully_trained(evidence: Evidence, findings: Findings) -> Answer:
    """Judge by the slopes of the last third, and by what came after the best evaluation."""
    if evidence.state == "lost":
        return unknown("fully_trained", _QUESTION, HISTORY_IS_LOST)
    return by_all_sets(findings.learning, lambda one: _by_one_set(evidence, one, findings.law))


def _by_one_set(evidence: Evidence, learning: Learning, law: Law | None) -> Answer:
    found = learning.convergence
    return Answer(
        id="fully_trained",
        question=_QUESTION,
        verdict=found.verdict,
        headline=found.verdict.capitalize(),
        tone=_tone(learning),
        note=_note(learning),
        answer=_words(learning, evidence),
        evidence=facts_of(found) | _best(learning.evaluations),
        confidence=_confidence(learning),
        next_step=_advice(learning, evidence, law),
    )


def _tone(learning: Learning) -> Tone:
    found = learning.convergence
    bad = ("diverged", "no better than guessing", "hardly translates")
    if found.reason in bad or _diverged_to_a_number(learning):
        return "bad"
    if found.reason == "nothing to gain":
        return "good"
    return "caution" if found.verdict == "no" else "plain"


def _diverged_to_a_number(learning: Learning) -> bool:
    """Whether all losses jumped up, and stayed there."""
    turn = learning.overfitting
    return turn.has_jumped and turn.reason == "turned with the training sample"


def _confidence(learning: Learning) -> Confidence:
    found = learning.convergence
    if found.reason in ("diverged", "no better than guessing"):
        return "high"
    if found.reason == "past its best":
        return "high" if learning.overfitting.has_jumped else "medium"
    if found.verdict == "unclear":
        return "low"
    many = found.evaluations >= EVALUATIONS_FOR_CONFIDENCE.value
    sure = len(found.gains) == 2 and many and not found.noise_drifts
    # What may have turned is not surely at its best.
    sure = sure and (found.verdict == "no" or learning.overfitting.verdict == "no")
    sure = sure and found.reason != "hardly translates"  # BLEU may have the wrong tokenizer.
    return "high" if sure and found.rate == "has no end" else "medium"


def _note(learning: Learning) -> str:
    """The fact that decided."""
    found = learning.convergence
    gains = list(found.gains.items())[::-1]  # BLEU first: it is what people ask for.
    if found.reason == "still improving":
        measure, gain = next(item for item in gains if is_improving(*item))
        return f"{_change(measure, gain.expected)} from 50% more steps"
    if found.reason == "gain within noise":
        measure, gain = next(item for item in gains if may_improve(*item))
        return f"{_interval(measure, gain)} {measure} from 50% more steps"
    if found.reason == "nothing to gain":
        return f"at most {_change(gains[0][0], gains[0][1].high)} from 50% more steps"
    return {
        "diverged": f"no number since step {found.diverged_at or 0:,}",
        "no better than guessing": "no better than guessing",
        "hardly translates": f"best BLEU {learning.best_bleu:.2f}",
        "past its best": f"worse than at step {learning.overfitting.best_step:,}",
        "few evaluations": f"{plural(found.evaluations, 'evaluation')} in the last third",
        "improving as the rate runs down": "the learning rate has run down",
        "nothing left in the schedule": "the learning rate has run down",
        "rate still to fall": "the learning rate is still to fall",
    }[found.reason]


def _change(measure: Measure, gain: float) -> str:
    """A gain as the change of what is measured: a loss gains by falling."""
    return f"{gain:+z.2f} BLEU" if measure == "BLEU" else f"{-gain:+z.3f} loss"


def _words(learning: Learning, evidence: Evidence) -> str:
    found = learning.convergence
    if found.reason == "diverged":
        return (
            f"The training loss has not been a number since step {found.diverged_at:,}: the run "
            "diverged, and the steps after that taught it nothing."
        )
    if found.reason == "no better than guessing":
        return (
            f"The lowest eval loss is {learning.lowest_loss:.3f}, and guessing among "
            f"all words of the vocabulary has {found.guessing_loss:.3f}: the model was never "
            "better than that."
        )
    if found.reason == "past its best":
        return _words_past_best(learning)
    if found.reason == "few evaluations":
        count = 0 if learning.evaluations is None else len(learning.evaluations)
        return (
            f"{plural(count, 'evaluation').capitalize()}, {found.evaluations} of them in the last "
            f"third of the run: too few to tell a slope from noise (at least {_NEEDED} are needed "
            "there)."
        )
    stopped = "is" if evidence.state == "running" else "ended while it was"
    judgement = {
        "nothing to gain": "That would not be worth the time.",
        "hardly translates": f"But the best BLEU is {learning.best_bleu:.2f}: the model hardly "
        "translates.",
        "nothing left in the schedule": "This schedule has nothing left, for the learning rate "
        "has run down; whether a longer one would help is not known.",
        "rate still to fall": "That would not be worth the time, but the schedule is still to "
        "lower the learning rate, and lowering it lowers the loss too.",
        "still improving": f"The run {stopped} still improving.",
        "improving as the rate runs down": "But the learning rate has run down to its end, and "
        "lowering it lowers the loss too: there is no telling whether more steps would help.",
        "gain within noise": "The interval is too wide to call that something or nothing.",
    }[found.reason]
    changes = " and ".join(_gain_words(*item) for item in found.gains.items())
    return (
        f"If learning keeps slowing as it did, 50% more steps would change {changes}; "
        f"{_interval_words(found)} {judgement}"
    )


def _gain_words(measure: Measure, gain: Gain) -> str:
    if measure == "BLEU":
        return f"BLEU by {gain.expected:+z.2f} ({_interval(measure, gain)})"
    return f"the eval loss by {-gain.expected:+z.3f} ({_interval(measure, gain)})"


def _interval(measure: Measure, gain: Gain) -> str:
    if measure == "BLEU":
        return f"{gain.low:+z.2f} to {gain.high:+z.2f}"
    return f"{-gain.high:+z.3f} to {-gain.low:+z.3f}"


def _interval_words(found: Convergence) -> str:
    """What the brackets mean."""
    coverage = max(gain.trend.coverage for gain in found.gains.values())
    words = f"{100 * coverage:g}% intervals in brackets"
    if len(found.gains) == 2:
        words += ", so that both hold the truth 95 times out of 100"
    if found.noise_drifts:
        words += " at best, for neighbouring evaluations err together"
    return f"{words}."


def _words_past_best(learning: Learning) -> str:
    turn = learning.overfitting
    assert turn.rise is not None, "what has turned has risen"
    rose = (
        f"The eval loss was lowest at step {turn.best_step:,} ({turn.best_loss:.3f}) and has risen "
        f"by {turn.rise.mean:.3f} since"
    )
    if _diverged_to_a_number(learning):
        return f"{rose}, and that on the training sample with it: the run diverged."
    if turn.reason == "turned but BLEU rises":
        return f"{rose}, and BLEU rises too little to be worth the time."
    return f"{rose}: by that measure the model is worse than it was, and more steps will not help."


def _advice(learning: Learning, evidence: Evidence, law: Law | None) -> str:
    found = learning.convergence
    last_step = evidence.history.train.last_step
    steps = in_count(FURTHER_STEPS * last_step)
    reason = found.reason
    if reason == "diverged":
        return _advice_after_divergence(found, evidence)
    if reason == "no better than guessing":
        return _advice_after_learning_nothing(evidence, law)
    if reason == "past its best":
        return _advice_past_best(learning, evidence)
    undecided = found.verdict == "unclear" and reason != "few evaluations"
    if law is not None and law.has_end and (undecided or reason == "still improving"):
        if last_step < (law.total_steps or 0):
            return f"Go on to the schedule's end, step {law.total_steps:,}."
        reason = "improving as the rate runs down"  # There is no going on from its end.
    return {
        "few evaluations": evaluate_more_often(evidence, law),
        "nothing to gain": "Stop here, average the last checkpoints (`--average`), or spend the "
        "time on a larger model or more data.",
        "hardly translates": "Read the samples. If all are alike, start a new run with a lower "
        "learning rate or a longer warm-up; if they are poor, see whether the lines of the text "
        "belong together; if they are good, evaluation.bleu_tokenize does not suit the language.",
        "nothing left in the schedule": "Use this model, or average the last checkpoints "
        f"(`--average`); to find out about a longer schedule, start a new run of {steps} steps, "
        "and compare the two.",
        "still improving": f"Go on: raise training.steps to {steps}, or whichever limit ended the "
        "run, and give the same command again.",
        "improving as the rate runs down": f"To find out, start a new run with a schedule of "
        f"{steps} steps, and compare the two.",
        "gain within noise": "Evaluate more often or on more sentences, or simply go on for a "
        "while.",
    }[reason]


def _advice_after_divergence(found: Convergence, evidence: Evidence) -> str:
    finer = _FINER_PRECISION.get(evidence.attempt.began.precision if evidence.attempt else "", "")
    advice = f"Start a new run with a lower learning rate or a longer warm-up{finer}."
    good = last_checkpoint_before(evidence, found.diverged_at or 0)
    if good is None:
        return advice
    return f"Use the checkpoint of step {good:,}, the last before that. {advice}"


def _advice_after_learning_nothing(evidence: Evidence, law: Law | None) -> str:
    train = evidence.history.train
    if was_zero(train):
        return GIVE_IT_A_RATE
    if law is not None and train.last_step < law.peak_step:
        return f"Let the warm-up end, at step {law.peak_step:,}, and look again."
    return "Start a new run with a lower learning rate or a longer warm-up."


def _advice_past_best(learning: Learning, evidence: Evidence) -> str:
    turn = learning.overfitting
    best = checkpoint_of(evidence, turn.best_step)
    if turn.reason == "turned but BLEU rises":
        best = "the checkpoint with the best BLEU"
    advice = f"Do not go on from here: use {best}."
    if turn.reason == "turned with the training sample":
        advice += " Or start a new run with a lower learning rate or a longer warm-up."
    return advice


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
