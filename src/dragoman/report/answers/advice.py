"""Advice that several answers give."""

from dragoman.report.findings import Findings
from dragoman.report.thresholds import EVALUATIONS_NEEDED

EVALUATE_MORE_OFTEN = (
    f"Evaluate more often: at least {3 * int(EVALUATIONS_NEEDED.value)} evaluations over the run "
    "(evaluation.every_steps)."
)


def spare_evaluations(findings: Findings) -> str:
    """How to spend less time on evaluations, without having too few of them."""
    if findings.convergence.reason == "few evaluations":
        return (
            "Make evaluations shorter, not rarer, in a new run that scores BLEU on fewer sentences "
            "(evaluation.bleu_pairs)."
        )
    return (
        "Evaluate less often (evaluation.every_steps), or start a new run that scores BLEU on "
        "fewer sentences (evaluation.bleu_pairs)."
    )
