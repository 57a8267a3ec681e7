"""One answer from the verdicts on each validation set, and the checkpoints it may name."""

from collections.abc import Callable, Sequence
from dataclasses import replace

from dragoman.report.answers.answer import Answer, Confidence
from dragoman.report.evidence import Evidence
from dragoman.report.findings.convergence import Learning

_LESS_SURE: dict[Confidence, Confidence] = {"high": "medium", "medium": "low", "low": "low"}


def by_all_sets(sets: Sequence[Learning], answer_by: Callable[[Learning], Answer]) -> Answer:
    """The first set's answer, and whether the others agree with it."""
    (name, first), *others = (
        (one.evaluations.name if one.evaluations else "", answer_by(one)) for one in sets
    )
    if not others:
        return first
    differing = {other: answer for other, answer in others if _differ(first, answer)}
    agreeing = [other for other, _ in others if other not in differing]
    words = f"{first.answer} This is the verdict on {name}"
    if agreeing:
        words += f"; {' and '.join(agreeing)} {'agrees' if len(agreeing) == 1 else 'agree'}"
    if differing:
        verdicts = (f"{other} says {_verdict(answer)}" for other, answer in differing.items())
        words += f", but {' and '.join(verdicts)}"
    facts = {other: {"verdict": answer.verdict, **answer.evidence} for other, answer in others}
    told = replace(first, answer=f"{words}.", evidence=first.evidence | {"other_sets": facts})
    if not differing:
        return told
    advice = {name: first, **differing}
    return replace(
        told,
        note=f"{first.note}; different on {' and '.join(differing)}",
        tone="caution" if first.tone == "good" else first.tone,
        confidence=_LESS_SURE[first.confidence],
        next_step=" ".join(
            f"According to {other}: {one.next_step}" for other, one in advice.items()
        ),
    )


def _differ(first: Answer, other: Answer) -> bool:
    """A different verdict, or the same for a reason that asks for something else."""
    if first.verdict == other.verdict == "unclear":
        return False
    return bool(first.evidence["reason"] != other.evidence["reason"])


def _verdict(answer: Answer) -> str:
    return f"{answer.verdict} ({answer.evidence['reason']})"


def checkpoint_of(evidence: Evidence, step: int) -> str:
    """Words for the checkpoint of a step, or for the nearest one that was kept."""
    kept = [saved.step for saved in evidence.checkpoints.checkpoints]
    if not kept or step in kept:
        return f"the checkpoint of step {step:,}"
    nearest = min(kept, key=lambda one: abs(one - step))
    return f"the checkpoint of step {nearest:,} (none of step {step:,} was kept)"


def last_checkpoint_before(evidence: Evidence, step: int) -> int | None:
    """The last one that was saved before a step."""
    kept, written = evidence.checkpoints.checkpoints, evidence.history.checkpoints
    saved = [one.step for one in kept] or [one.step for one in written]
    return max((one for one in saved if one < step), default=None)
