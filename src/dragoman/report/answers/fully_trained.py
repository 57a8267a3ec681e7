"""The answer on whether the model is fully trained: a row for each reason."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from dragoman.prediction.learning_curve import FURTHER_STEPS
from dragoman.prediction.run_schedule import RunSchedule
from dragoman.report.answers.advice import GIVE_IT_A_RATE, evaluate_more_often
from dragoman.report.answers.answer import (
    HISTORY_IS_LOST,
    Answer,
    Confidence,
    Row,
    facts_of,
    unknown,
)
from dragoman.report.answers.expected_gain import how_likely, what_it_rests_on
from dragoman.report.answers.validation_sets import (
    by_all_sets,
    checkpoint_of,
    last_checkpoint_before,
)
from dragoman.report.evidence import Evidence
from dragoman.report.evidence.step_series import Evaluations
from dragoman.report.findings.analysis import Findings
from dragoman.report.findings.convergence import (
    Convergence,
    ConvergenceReason,
    Learning,
)
from dragoman.report.findings.followed_schedule import LearningRateReason
from dragoman.thresholds import (
    EVALUATIONS_FOR_CONFIDENCE,
    EVALUATIONS_NEEDED,
    HARDLY_A_TRANSLATION,
    VERY_LIKELY,
)
from dragoman.wording import in_count, in_percent, plural

_QUESTION = "Is the model fully trained?"
_LOOSENED = {  # What lets a run go on that ended for a reason.
    "epochs": "raise training.epochs",
    "hours": "raise training.hours",
    "patience": "raise training.patience",
    "gain_unlikely": "lower training.stop_when_gain_unlikely",
}
_FINER_PRECISION = {"float16": ", or in bfloat16 or float32", "bfloat16": ", or in float32"}


@dataclass(frozen=True)
class _Case:
    """What a row may speak of."""

    evidence: Evidence
    learning: Learning
    schedule: RunSchedule | None
    rate_reason: LearningRateReason

    @property
    def found(self) -> Convergence:
        return self.learning.convergence

    @property
    def last_step(self) -> int:
        return self.evidence.history.train.last_step

    @property
    def more_steps(self) -> str:
        """All steps of a run that is half as long again."""
        return in_count(FURTHER_STEPS * self.last_step)

    @property
    def hardly_translates(self) -> bool:
        """Whether there was never a score that a useful translation has."""
        return self.learning.best_bleu < HARDLY_A_TRANSLATION.value

    @property
    def has_diverged_to_a_number(self) -> bool:
        """Whether all losses jumped up, and stayed there."""
        turn = self.learning.overfitting
        return turn.has_jumped and turn.reason == "turned with the training sample"

    @property
    def is_schedule_unfinished(self) -> bool:
        schedule = self.schedule
        has_end = schedule is not None and schedule.has_end
        return has_end and self.last_step < ((schedule and schedule.total_steps) or 0)


def fully_trained(evidence: Evidence, findings: Findings) -> Answer:
    """Judge by the probability that half as many steps again would bring something."""
    if evidence.state == "lost":
        return unknown("fully_trained", _QUESTION, HISTORY_IS_LOST)

    def by_one_set(learning: Learning) -> Answer:
        facts = facts_of(learning.convergence) | _best(learning.evaluations)
        case = _Case(evidence, learning, findings.schedule, findings.learning_rate.reason)
        return ROWS[case.found.reason].answer(
            "fully_trained", _QUESTION, facts, case, what_it_rests_on(case.found)
        )

    return by_all_sets(findings.learning, by_one_set)


def _confidence(case: _Case) -> Confidence:
    """High where hardly anything speaks against it."""
    found = case.found
    sure = max(found.probability, 1 - found.probability) >= VERY_LIKELY.value
    many = found.evaluations >= EVALUATIONS_FOR_CONFIDENCE.value
    # What may have turned is not surely at its best.
    has_not_turned = found.probability > 0.5 or (
        case.learning.overfitting.reason == "at its minimum"
    )
    return "high" if sure and many and has_not_turned and len(found.gains) == 2 else "medium"


def _note(case: _Case) -> str:
    return f"{in_percent(case.found.probability)} likely to gain from 50% more steps"


def _and(words: str) -> Any:
    """The lead, and what it means."""
    return lambda case: f"{how_likely(case.found)} {words}"


def _words_when_few(case: _Case) -> str:
    return (
        f"{plural(case.found.evaluations, 'evaluation').capitalize()}: too few to fit a learning "
        f"curve (at least {EVALUATIONS_NEEDED.value:g} are needed)."
    )


def _words_when_improving(case: _Case) -> str:
    state = "is" if case.evidence.state == "running" else "ended while"
    return f"{how_likely(case.found)} The run {state} still improving."


def _words_past_best(case: _Case) -> str:
    turn = case.learning.overfitting
    assert turn.rise is not None, "what has turned has risen"
    rose = (
        f"The eval loss was lowest at step {turn.best_step:,} ({turn.best_loss:.3f}) and has risen "
        f"by {turn.rise.mean:.3f} since"
    )
    if case.has_diverged_to_a_number:
        return f"{rose}, and so has the loss on the training sample: the run diverged."
    if turn.reason == "turned but BLEU rises":
        return f"{rose}, and BLEU is rising too little to justify more time."
    return f"{rose}: by that measure the model has become worse, and more steps will not help."


def _go_on(case: _Case) -> str:
    end = case.evidence.history.end
    loosened = _LOOSENED.get(end.reason) if end else None
    if case.is_schedule_unfinished:
        assert case.schedule is not None
        first = f"{loosened}, which ended the run, and " if loosened else ""
        words = f"{first}continue to the end of the schedule, step {case.schedule.total_steps:,}."
        return words[0].upper() + words[1:]
    limit = (
        f"{loosened}, which ended the run, so that it reaches step {case.more_steps}"
        if loosened
        else f"raise training.steps to {case.more_steps}"
    )
    return f"Continue: {limit}, and run the same command again."


def _settle(case: _Case) -> str:
    """What would settle an open question."""
    if case.found.rate == "has run down":
        return (
            f"To settle it, start a new run with a schedule of {case.more_steps} steps and "
            "compare the two."
        )
    if case.found.evaluations < EVALUATIONS_FOR_CONFIDENCE.value:
        return f"To settle it: {_lowered(evaluate_more_often(case.evidence, case.schedule))}"
    return (
        "To settle it, evaluate on more sentences, which lowers the noise, or "
        f"{_lowered(_go_on(case))}"
    )


def _lowered(words: str) -> str:
    return words[0].lower() + words[1:]


def _advice_after_divergence(case: _Case) -> str:
    attempt, diverged_at = case.evidence.attempt, case.found.diverged_at or 0
    finer = _FINER_PRECISION.get(attempt.began.precision if attempt else "", "")
    advice = f"Start a new run with a lower learning rate or a longer warm-up{finer}."
    good = last_checkpoint_before(case.evidence, diverged_at)
    if good is None:
        return advice
    return f"Use the checkpoint of step {good:,}, the last before that. {advice}"


def _advice_after_learning_nothing(case: _Case) -> str:
    if case.rate_reason == "always zero":
        return GIVE_IT_A_RATE
    if case.schedule is not None and case.last_step < case.schedule.peak_step:
        return f"Wait until the warm-up ends, at step {case.schedule.peak_step:,}, and look again."
    evaluations = case.learning.evaluations
    if evaluations and len(evaluations) > 1 and np.all(np.diff(evaluations.loss) < 0):
        return (
            "Start a new run with a much higher learning rate: the loss falls from evaluation to "
            "evaluation, but hardly."
        )
    return "Start a new run with a lower learning rate or a longer warm-up."


def _advice_past_best(case: _Case) -> str:
    turn = case.learning.overfitting
    best = checkpoint_of(case.evidence, turn.best_step)
    if turn.reason == "turned but BLEU rises":
        best = "the checkpoint with the best BLEU"
    advice = f"Do not continue from here: use {best}."
    if turn.reason == "turned with the training sample":
        advice += " Or start a new run with a lower learning rate or a longer warm-up."
    return advice


def _confidence_past_best(case: _Case) -> Confidence:
    turn = case.learning.overfitting
    return "high" if turn.has_jumped or turn.probability >= VERY_LIKELY.value else "medium"


ROWS: Mapping[ConvergenceReason, Row[_Case]] = {
    "diverged": Row(
        verdict="no",
        tone="bad",
        confidence="high",
        note=lambda case: f"NaN or infinite since step {case.found.diverged_at or 0:,}",
        words=lambda case: (
            f"The training loss has been NaN or infinite since step {case.found.diverged_at:,}: "
            "the run diverged and has learned nothing since."
        ),
        advice=_advice_after_divergence,
    ),
    "no better than guessing": Row(
        verdict="no",
        tone="bad",
        confidence="high",
        note="no better than guessing",
        words=lambda case: (
            f"The lowest eval loss is {case.learning.lowest_loss:.3f}; guessing uniformly over "
            f"the vocabulary gives {case.found.guessing_loss:.3f}: the model was never better "
            "than that."
        ),
        advice=_advice_after_learning_nothing,
    ),
    "past its best": Row(
        verdict="no",
        tone=lambda case: "bad" if case.has_diverged_to_a_number else "caution",
        confidence=_confidence_past_best,
        note=lambda case: f"worse than at step {case.learning.overfitting.best_step:,}",
        words=_words_past_best,
        advice=_advice_past_best,
    ),
    "few evaluations": Row(
        verdict="unclear",
        confidence="low",
        note=lambda case: plural(case.found.evaluations, "evaluation"),
        words=_words_when_few,
        advice=lambda case: evaluate_more_often(case.evidence, case.schedule),
    ),
    "still improving": Row(
        verdict="no",
        tone="caution",
        confidence=_confidence,
        note=_note,
        words=_words_when_improving,
        advice=_go_on,
    ),
    "rate still to fall": Row(
        verdict="no",
        tone="caution",
        confidence="medium",
        note=_note,
        words=_and(
            "The schedule has yet to lower the learning rate, which will lower the loss as well."
        ),
        advice=_go_on,
    ),
    "longer schedule helps": Row(
        verdict="no",
        tone="caution",
        confidence="medium",
        note=_note,
        words=_and(
            "The learning-rate schedule has reached its end, so this run cannot simply continue."
        ),
        advice=lambda case: (
            ("S" if case.hardly_translates else "Use this model, or s")
            + f"tart a new run with a schedule of {case.more_steps} steps."
        ),
    ),
    "gain uncertain": Row(
        verdict="unclear",
        confidence="low",
        note=_note,
        words=_and("That is too uncertain for a verdict."),
        advice=_settle,
    ),
    "hardly translates": Row(
        verdict="no",
        tone="bad",
        confidence="medium",  # BLEU may have the wrong tokenizer.
        note=lambda case: f"best BLEU {case.learning.best_bleu:.2f}",
        words=lambda case: (
            f"{how_likely(case.found)} But the best BLEU is only {case.learning.best_bleu:.2f}: "
            "the model hardly translates at all."
        ),
        advice="Read the sample translations. If they are all alike, start a new run with a "
        "lower learning rate or a longer warm-up; if they are poor, check that source and "
        "target lines match; if they are good, evaluation.bleu_tokenize does not suit the "
        "language.",
    ),
    "at the ceiling": Row(
        verdict="yes",
        tone="good",
        confidence=_confidence,
        note=lambda case: f"BLEU {case.learning.best_bleu:.1f} of 100",
        words=lambda case: (
            f"BLEU has reached {case.learning.best_bleu:.1f} of 100: this validation set cannot "
            "show any further progress, even if the loss still falls."
        ),
        advice="Stop here. Only a harder validation set could show what is left to learn.",
    ),
    "nothing to gain": Row(
        verdict="yes",
        tone="good",
        confidence=_confidence,
        note=_note,
        words=_and("More training is unlikely to pay off."),
        advice="Stop here; average the last checkpoints (`--average`), or invest the time in a "
        "larger model or more data.",
    ),
    "nothing left in the schedule": Row(
        verdict="yes",
        tone="good",
        confidence="medium",
        note=_note,
        words=_and(
            "The learning-rate schedule has reached its end, and a longer one is unlikely to "
            "pay off."
        ),
        advice="Use this model, or average the last checkpoints (`--average`); a larger model "
        "or more data would help more than a longer schedule.",
    ),
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
