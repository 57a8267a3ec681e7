"""The answer about the learning rate."""

from typing import Any

import numpy as np

from dragoman.prediction.run_schedule import RunSchedule
from dragoman.report.answers.advice import GIVE_IT_A_RATE, was_zero
from dragoman.report.answers.answer import Answer, Confidence
from dragoman.report.evidence import Evidence
from dragoman.report.findings.analysis import Findings
from dragoman.thresholds import LEARNING_RATE_DEVIATION


def learning_rate(evidence: Evidence, findings: Findings) -> Answer:
    """Explain the curve from the settings and hold the log against the law."""
    train, schedule = evidence.history.train, findings.schedule
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
    if schedule is not None:
        deviation = float(np.abs(rates - schedule.at(steps)).max(initial=0.0) / schedule.peak)
        follows = deviation <= LEARNING_RATE_DEVIATION.value
        facts["law"] = {
            "formula": schedule.formula,
            "warmup_steps": schedule.settings.warmup_steps,
            "peak": schedule.peak,
            "peak_step": schedule.peak_step,
        }
        facts["largest_deviation_from_law"] = deviation
    kind = (
        schedule.settings.kind
        if schedule
        else str(evidence.setting("schedule", "kind") or "unclear")
    )
    advice = "Check whether config.toml was changed, or another version of Dragoman was used."
    is_zero = was_zero(train)
    if is_zero:
        advice = GIVE_IT_A_RATE
    elif schedule is None:
        advice = "Keep config.toml in the run folder: the schedule is read from it."
    return Answer(
        id="learning_rate",
        question="What did the learning rate do?",
        verdict=kind,
        headline=kind.replace("_", " ").capitalize(),
        tone="bad" if is_zero else "caution" if schedule and not follows else "plain",
        note="zero"
        if is_zero
        else f"peak {schedule.peak:.2g} at step {schedule.peak_step:,}"
        if schedule
        else "",
        answer=_zero_words(facts) if is_zero else _schedule_words(schedule, facts, follows),
        evidence=facts,
        confidence="high" if is_zero else _confidence(schedule, follows and len(rates) > 0),
        next_step="Nothing to do." if follows else advice,
    )


def _confidence(schedule: RunSchedule | None, is_seen_to_follow: bool) -> Confidence:
    if schedule is None:
        return "low"
    return "high" if is_seen_to_follow else "medium"


def _zero_words(facts: dict[str, Any]) -> str:
    return f"It was zero at every step up to {facts['logged']['now_step']:,}: nothing was learned."


def _schedule_words(schedule: RunSchedule | None, facts: dict[str, Any], follows: bool) -> str:
    logged = facts.get("logged")
    if schedule is None:
        if logged is None:
            return "Neither the settings nor the log contain the learning rate."
        return (
            "The settings do not name a known schedule; the log shows a peak of "
            f"{logged['peak']:.3g} at step {logged['peak_step']:,} and {logged['now']:.3g} at "
            f"step {logged['now_step']:,}."
        )
    words = f"The schedule is {schedule.settings.kind.replace('_', ' ')}: {schedule.formula}"
    peak = f"It rises for {schedule.peak_step:,} steps to its peak of {schedule.peak:.3g}"
    if logged is None:
        return f"{words}. {peak}; no step has been logged yet."
    logged_words = "follows it exactly"
    if not follows:
        percent = 100 * facts["largest_deviation_from_law"]
        logged_words = f"deviates from it by up to {percent:.2g}% of the peak"
    so_far = " (not reached yet)" if logged["now_step"] < schedule.peak_step else ""
    return (
        f"{words}; the logged curve {logged_words}. {peak}{so_far}; at step "
        f"{logged['now_step']:,} it is {logged['now']:.3g}."
    )
