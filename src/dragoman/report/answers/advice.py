"""Advice that several answers give."""

import numpy as np

from dragoman.prediction.run_schedule import RunSchedule
from dragoman.report.evidence import Evidence
from dragoman.report.findings.analysis import Findings
from dragoman.thresholds import EVALUATIONS_FOR_CONFIDENCE

GIVE_IT_A_RATE = (
    "Start a new run with a learning rate above zero (schedule.peak, or schedule.scale of the "
    "transformer schedule)."
)


def evaluate_more_often(evidence: Evidence, schedule: RunSchedule | None) -> str:
    """How to have enough evaluations, in this run or, if its schedule has ended, in another."""
    enough = int(EVALUATIONS_FOR_CONFIDENCE.value)
    last_step = evidence.history.train.last_step
    enough_at = _planned_step(evidence, enough)
    if enough_at is not None:
        wait = "Wait" if evidence.state == "running" else "Resume the run and wait"
        return f"{wait} for step {enough_at:,}, when there will be {enough} evaluations."
    if (
        schedule is not None
        and schedule.has_end
        and last_step >= (schedule.total_steps or 0) >= enough
    ):
        return (
            f"Start a new run that evaluates more often: at least {enough} times, every "
            f"{last_step // enough:,} steps (evaluation.every_steps)."
        )
    more = "; the run is complete, so raise the limit that ended it too"
    return (
        f"Evaluate more often: at least {enough} evaluations over the run "
        f"(evaluation.every_steps){more if evidence.state == 'finished' else ''}."
    )


def _planned_step(evidence: Evidence, enough: int) -> int | None:
    """The step at which a run that goes on as planned has so many evaluations, if it will."""
    total = evidence.setting("training", "steps")
    every = evidence.setting("evaluation", "every_steps")
    if total is None or every is None or evidence.state == "finished":
        return None
    series, last_step = evidence.evaluations, evidence.history.train.last_step
    lacking = enough - (int(np.isfinite(series.loss).sum()) if series else 0)
    step: int = (last_step // every + lacking) * every
    # There is always one at the end.
    return min(step, total) if lacking > 0 and last_step < total > step - every else None


def spare_evaluations(findings: Findings) -> str:
    """How to spend less time on evaluations, without having too few of them."""
    found = findings.convergence
    if found.reason == "gain uncertain":
        return "Keep them: even with all of them it is unclear whether the model is fully trained."
    # Of half as many, too few would be left.
    if found.evaluations < 2 * EVALUATIONS_FOR_CONFIDENCE.value:
        return (
            "Make evaluations shorter, not rarer: in a new run, compute BLEU on fewer sentences "
            "(evaluation.bleu_pairs)."
        )
    return (
        "Evaluate less often (evaluation.every_steps), or compute BLEU on fewer sentences in a "
        "new run (evaluation.bleu_pairs)."
    )
