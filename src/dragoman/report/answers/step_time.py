"""The answer on the step time: a row for each reason."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import numpy as np

from dragoman.report.answers.answer import Answer, Confidence, Row, Tone, facts_of, unknown
from dragoman.report.answers.network_bottleneck import straggler_words
from dragoman.report.evidence import Evidence
from dragoman.report.findings.analysis import Findings
from dragoman.report.findings.step_times import StepTimeReason, StepTimes
from dragoman.thresholds import STEPS_FOR_CONFIDENCE
from dragoman.wording import in_percent, in_time, plural

_QUESTION = "How long did a step take?"
_TOO_SMALL_TO_SAY = 0.005  # Of the step time.


@dataclass(frozen=True)
class _Case:
    """What a row may speak of."""

    findings: Findings
    times: StepTimes

    @property
    def steps(self) -> str:
        return "steps" if self.times.local_steps == 1 else "rounds"

    @property
    def straggler(self) -> str:
        network, latest = self.findings.network, self.findings.latest_times
        assert network is not None
        assert latest is not None
        return straggler_words(network, latest)


def step_time(evidence: Evidence, findings: Findings) -> Answer:
    """Mean, median and percentiles of the step time, and its phases."""
    times, reason = findings.usual_times, findings.step_reason
    if times is None or reason is None:
        words = "No step has been logged yet."
        return unknown("step_time", _QUESTION, words, "Let the run continue for a few steps.")
    case, details = _Case(findings, times), _details(evidence, findings, times)
    return ROWS[reason].answer("step_time", _QUESTION, facts_of(times), case, details)


def _words(case: _Case) -> str:
    times = case.times
    words = f"{in_time(times.mean)} on average{_spread_words(times)}, evaluations and "
    words += "checkpoints excluded."
    parts = ", ".join(
        f"{name} {in_percent(times.share(name))}"
        for name in times.largest_first
        if times.share(name) >= _TOO_SMALL_TO_SAY
    )
    return f"{words} Breakdown: {parts}." if parts else words


def _details(evidence: Evidence, findings: Findings, times: StepTimes) -> tuple[str, ...]:
    details = []
    if times.are_few:
        few = plural(times.steps, "step")
        details.append(f"Only {few} count, including the first ones after a start.")
    latest, everything = findings.latest_times, findings.times
    if latest and everything and evidence.history.have_workers_changed:
        told = (
            f"these are the steps of the latest {evidence.workers:,}; all steps took "
            f"{in_time(everything.mean)} on average"
            if times is latest
            else f"with the latest {evidence.workers:,} a step took {in_time(latest.mean)}"
        )
        details.append(f"The workers changed during the run: {told}.")
    if balanced := _balance_words(evidence):
        details.append(balanced)
    return tuple(details)


def _balance_words(evidence: Evidence) -> str:
    """How unequal the workers are, and what balancing their rows won, as measured at the start."""
    line = evidence.history.calibration
    if line is None or line.balanced_rows is None:
        return ""
    seconds, rows = line.seconds_compute_by_worker, line.balanced_rows
    if len(seconds) != len(rows) or not sum(rows) or not min(seconds, default=0.0) > 0:
        return ""
    split = ":".join(map(str, rows))
    if len(set(rows)) == 1:
        return (
            f"Rows were split {split} (distributed.balance), because the workers were about "
            "equally fast before the first step."
        )
    even = sum(rows) / len(rows)
    balanced = max(one * own / even for one, own in zip(seconds, rows, strict=True))
    slowest = seconds.index(max(seconds))
    hosts = evidence.attempt.began.hosts if evidence.attempt else ()
    where = f" on {hosts[slowest]}" if slowest < len(hosts) else ""
    return (
        f"With equal shares worker {slowest}{where} would compute {in_time(max(seconds))} a "
        f"step, {max(seconds) / min(seconds):.1f} times as long as the fastest, and the others "
        f"would wait. Rows were split {split} instead (distributed.balance): {in_time(balanced)}, "
        "measured before the first step; while it trains the split is corrected."
    )


def _spread_words(times: StepTimes) -> str:
    if not np.isfinite(times.median):
        return ""
    rounds = f"of rounds of {times.local_steps} steps: " if times.local_steps > 1 else ""
    return (
        f" ({rounds}median {in_time(times.median)}, 5% under {in_time(times.percentile_5)}, 5% "
        f"over {in_time(times.percentile_95)})"
    )


def _confidence(case: _Case) -> Confidence:
    times = case.times
    if times.are_few:
        return "low"
    is_sure = times.largest_first and times.steps >= STEPS_FOR_CONFIDENCE.value
    return "high" if is_sure else "medium"


def _note(case: _Case) -> str:
    median = case.times.median
    return f"median {in_time(median)}" if np.isfinite(median) else ""


def _row(advice: str | Callable[[_Case], str], tone: Tone = "plain") -> Row[_Case]:
    """How long a step took is said the same way whatever the reason; what to do is not."""
    return Row(
        verdict=lambda case: case.times.mean,
        headline=lambda case: in_time(case.times.mean),
        tone=tone,
        confidence=_confidence,
        note=_note,
        words=_words,
        advice=advice,
    )


ROWS: Mapping[StepTimeReason, Row[_Case]] = {
    "some slow steps": _row(
        lambda case: (
            f"Some {case.steps} take more than twice the median: check what else runs on the "
            "machines."
        ),
        "caution",
    ),
    "half of the steps slow": _row(
        lambda case: (
            f"Half of the {case.steps} take more than twice as long as the fastest: check what "
            "else uses the devices."
        ),
        "caution",
    ),
    "waits for data": _row(
        lambda case: (
            f"The trainer spends {in_percent(case.times.share('data'))} of each step waiting for "
            "batches: check the disk and other load on the machine."
        ),
        "caution",
    ),
    "waits for a worker": _row(lambda case: case.straggler, "caution"),
    "few steps": _row("Let the run continue for more steps."),
    "waits for gradients": _row(
        "Workers wait for each other's gradients: see the answer on the network."
    ),
    "mostly compute": _row("Compute is the largest part, as it should be."),
    "mostly optimizer": _row(
        "The optimizer's cost is per step: start a new run with a larger batches.tokens_per_step."
    ),
    "mostly outside the phases": _row(
        "The time is spent outside the measured phases: check for other load on the machine."
    ),
    "phases not known": _row("The log does not say where the step time went."),
}
