"""The answer about the learning rate: a row for each reason."""

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from functools import partial
from typing import Any

from dragoman.prediction.run_schedule import RunSchedule
from dragoman.report.answers.advice import GIVE_IT_A_RATE
from dragoman.report.answers.answer import Answer, Row
from dragoman.report.evidence import Evidence
from dragoman.report.findings.analysis import Findings
from dragoman.report.findings.followed_schedule import LearningRate, LearningRateReason, LoggedRate
from dragoman.wording import plural

_QUESTION = "What did the learning rate do?"


@dataclass(frozen=True)
class _Case:
    """What a row may speak of."""

    kind: str
    found: LearningRate
    known: RunSchedule | None  # From the settings.

    @property
    def logged(self) -> LoggedRate:
        assert self.found.logged is not None
        return self.found.logged

    @property
    def schedule(self) -> RunSchedule:
        assert self.known is not None
        return self.known

    @property
    def name_and_formula(self) -> str:
        return f"The schedule is {self.kind.replace('_', ' ')}: {self.schedule.formula}"

    @property
    def rise(self) -> str:
        step, peak = self.schedule.peak_step, self.schedule.peak
        return f"It rises for {plural(step, 'step')} to its peak of {peak:.3g}"

    @property
    def rise_and_now(self) -> str:
        so_far = " (not reached yet)" if self.logged.now_step < self.schedule.peak_step else ""
        now = f"at step {self.logged.now_step:,} it is {self.logged.now:.3g}"
        return f"{self.rise}{so_far}; {now}."


def learning_rate(evidence: Evidence, findings: Findings) -> Answer:
    """Explain the curve from the settings and hold the log against them."""
    found, schedule = findings.learning_rate, findings.schedule
    kind = schedule.settings.kind if schedule else evidence.setting("schedule", "kind")
    case = _Case(str(kind or "unclear"), found, schedule)
    facts: dict[str, Any] = {}
    if found.logged is not None:
        facts["logged"] = asdict(found.logged)
    if schedule is not None:
        facts["law"] = {
            "formula": schedule.formula,
            "warmup_steps": schedule.settings.warmup_steps,
            "peak": schedule.peak,
            "peak_step": schedule.peak_step,
        }
        facts["largest_deviation_from_law"] = found.largest_deviation
    return ROWS[found.reason].answer("learning_rate", _QUESTION, facts, case)


def _note_of_peak(case: _Case) -> str:
    return f"peak {case.schedule.peak:.2g} at step {case.schedule.peak_step:,}"


_row = partial(
    Row[_Case],
    verdict=lambda case: case.kind,
    headline=lambda case: case.kind.replace("_", " ").capitalize(),
)

_KEEP_THE_SETTINGS = "Keep config.toml in the run folder: the schedule is read from it."

ROWS: Mapping[LearningRateReason, Row[_Case]] = {
    "always zero": _row(
        tone="bad",
        confidence="high",
        note="zero",
        words=lambda case: (
            f"It was zero at every step up to {case.logged.now_step:,}: nothing was learned."
        ),
        advice=GIVE_IT_A_RATE,
    ),
    "nothing known": _row(
        confidence="low",
        words="Neither the settings nor the log contain the learning rate.",
        advice=_KEEP_THE_SETTINGS,
    ),
    "schedule not known": _row(
        confidence="low",
        words=lambda case: (
            "The settings do not name a known schedule; the log shows a peak of "
            f"{case.logged.peak:.3g} at step {case.logged.peak_step:,} and {case.logged.now:.3g} "
            f"at step {case.logged.now_step:,}."
        ),
        advice=_KEEP_THE_SETTINGS,
    ),
    "nothing logged": _row(
        confidence="medium",
        note=_note_of_peak,
        words=lambda case: f"{case.name_and_formula}. {case.rise}; no step has been logged yet.",
        advice="Nothing to do.",
    ),
    "follows the schedule": _row(
        confidence="high",
        note=_note_of_peak,
        words=lambda case: (
            f"{case.name_and_formula}; the logged curve follows it exactly. {case.rise_and_now}"
        ),
        advice="Nothing to do.",
    ),
    "leaves the schedule": _row(
        tone="caution",
        confidence="medium",
        note=_note_of_peak,
        words=lambda case: (
            f"{case.name_and_formula}; the logged curve deviates from it by up to "
            f"{100 * (case.found.largest_deviation or 0.0):.2g}% of the peak. {case.rise_and_now}"
        ),
        advice="Check whether config.toml was changed, or another version of Dragoman was used.",
    ),
}
