"""The answers about a run that started from another: what was gained, and what forgotten."""

from dataclasses import asdict

from dragoman.report.answers.answer import Answer, Tone, unknown
from dragoman.report.evidence import Evidence
from dragoman.report.findings.adaptation import Adaptation, Change, judge_adaptation

_GAINED = "What was gained on the new text?"
_FORGOTTEN = "What was forgotten of the old text?"


def adaptation_answers(evidence: Evidence) -> tuple[Answer, ...]:
    """Two answers; none if the run did not start from another."""
    found = judge_adaptation(evidence)
    if found is None:
        return ()
    if not found.new:
        words = "There is no evaluation after the first step to compare with the start of the run."
        return (unknown("gained", _GAINED, words), unknown("forgotten", _FORGOTTEN, words))
    return (_gained(found), _forgotten(found))


def _gained(found: Adaptation) -> Answer:
    best, enough, last = found.best, found.enough, found.new[-1]
    verdict, tone = _verdict_of(best, good="yes", bad="worse")
    if verdict == "worse":
        stop = f"{found.parent} itself translates this text better."
        advice = (
            f"Use {found.parent} itself, or start a new run with a lower learning rate; check the "
            "new text first (dragoman inspect)."
        )
    elif best != last and enough is None:
        stop = "That may be chance: the interval includes no gain at all."
        advice = (
            f"Use {found.parent} itself unless a larger validation set shows a gain, or start a "
            "new run with more text or another learning rate."
        )
    elif enough and enough.step < last.step:
        stop = (
            f"By step {enough.step:,} BLEU was as good as that, within the error of the comparison."
        )
        advice = f"Use the checkpoint of step {best.step:,}, which is kept as the best."
    else:
        stop = "The last evaluation is the best so far: more training may gain more."
        advice = "Train longer, or with a lower learning rate, to see whether more can be gained."
    return Answer(
        id="gained",
        question=_GAINED,
        verdict=verdict,
        headline=f"{_signed(best.gain)} BLEU",
        tone=tone,
        note=f"{_signed(best.low)} to {_signed(best.high)}, at step {best.step:,}",
        answer=f"On {best.set}, {_words(best)} compared with {found.parent}, at step "
        f"{best.step:,}, the best evaluation. {stop}",
        evidence={
            "parent": found.parent,
            "best": asdict(best),
            "last": asdict(last),
            "could_have_stopped_at": enough.step if enough else None,
            "by_step": [asdict(one) for one in found.new],
        },
        confidence="high" if verdict != "unclear" else "low",
        next_step=advice,
    )


def _forgotten(found: Adaptation) -> Answer:
    at_best = found.old_at(found.best.step)
    if not at_best:
        return unknown(
            "forgotten",
            _FORGOTTEN,
            "No validation set of the parent run's own text was kept apart from the new ones.",
            "Prepare the corpus with vocabulary.from_run, which keeps them, and start a new run.",
        )
    worst = min(at_best, key=lambda one: one.gain)
    verdict, tone = _verdict_of(worst, good="no", bad="yes")
    enough = found.enough
    at_enough = found.old_at(enough.step) if enough and enough != found.best else ()
    earlier = (
        f" At step {at_enough[0].step:,}, with a comparable gain, it was "
        f"{min(one.gain for one in at_enough):+.2f}."
        if at_enough
        else ""
    )
    others = "".join(f" On {one.set}: {_words(one)}." for one in at_best if one != worst)
    # The best checkpoint may be that of step 0, which there is nothing to blend with.
    chosen = "" if found.best.gain > 0 else " --checkpoint latest"
    advice = (
        "Mix in old text (corpus.train with weights), try weights between the two runs "
        f"(dragoman evaluate RUN --blend 0.5{chosen}), or start a new run with fewer steps."
    )
    return Answer(
        id="forgotten",
        question=_FORGOTTEN,
        verdict=verdict,
        headline={"no": "Nothing", "yes": f"{_signed(worst.gain)} BLEU"}.get(verdict, "Unclear"),
        tone=tone,
        note=f"{_signed(worst.low)} to {_signed(worst.high)} on {worst.set}",
        answer=f"On {worst.set}, {_words(worst)} by step {worst.step:,}, the best step on the "
        f"new text.{earlier}{others}",
        evidence={
            "at_best": [asdict(one) for one in at_best],
            "by_step": [[asdict(one) for one in series] for series in found.old],
        },
        confidence="high" if verdict != "unclear" else "low",
        next_step=advice if verdict == "yes" else "Nothing to do.",
    )


def _verdict_of(change: Change, good: str, bad: str) -> tuple[str, Tone]:
    """What the interval says: better, worse, or neither."""
    if change.high < 0:
        return bad, "bad"
    if change.low > 0 or (good == "no" and change.gain >= 0):
        return good, "good"
    return "unclear", "plain"


def _signed(bleu: float) -> str:
    """With its sign and one digit, and no minus before a zero."""
    return f"{round(bleu, 1) + 0.0:+.1f}"


def _words(change: Change) -> str:
    direction = "rose" if change.gain >= 0 else "fell"
    if abs(change.gain) < 0.005:
        return f"BLEU stayed at {change.bleu:.2f}"
    return (
        f"BLEU {direction} by {abs(change.gain):.2f} (95% {change.low:+.2f} to "
        f"{change.high:+.2f}), from {change.bleu_before:.2f} to {change.bleu:.2f}"
    )
