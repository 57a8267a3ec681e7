"""Advice that several answers give."""

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
    if (
        schedule is not None
        and schedule.has_end
        and last_step >= (schedule.total_steps or 0) >= enough
    ):
        return (
            f"Start a new run that evaluates more often: at least {enough} times, every "
            f"{last_step // enough:,} steps (evaluation.every_steps)."
        )
    return (
        f"Evaluate more often: at least {enough} evaluations over the run (evaluation.every_steps)."
    )


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
