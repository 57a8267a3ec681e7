"""The answer on the step time."""

import numpy as np

from dragoman.report.answers.answer import Answer, Confidence, facts_of, unknown
from dragoman.report.answers.network_bottleneck import straggler_words
from dragoman.report.evidence import Evidence
from dragoman.report.findings.analysis import Findings
from dragoman.report.findings.bottleneck import StepTimes
from dragoman.thresholds import (
    NETWORK_IS_BOTTLENECK,
    STEPS_FOR_CONFIDENCE,
    UNEVEN_STEPS,
    WAITING_FOR_DATA,
)
from dragoman.wording import in_percent, in_time, plural

_TOO_SMALL_TO_SAY = 0.005  # Of the step time.


def step_time(evidence: Evidence, findings: Findings) -> Answer:
    """Mean, median and percentiles of the step time, and its phases."""
    times = findings.times
    question = "How long did a step take?"
    if times is None:
        return unknown(
            "step_time", question, "No step has been logged yet.", "Let the run make a few steps."
        )
    known = {name: value for name, value in times.phases.items() if np.isfinite(value)}
    largest_first = sorted(known, key=lambda name: -known[name])
    parts = ", ".join(
        f"{name} {in_percent(times.share(name))}"
        for name in largest_first
        if times.share(name) >= _TOO_SMALL_TO_SAY
    )
    words = f"{in_time(times.mean)} on average{_spread_words(times)}, evaluations and "
    words += "checkpoints excluded."
    details = []
    if times.are_few:
        few = plural(times.steps, "step")
        details.append(f"Only {few} count, including the first ones after a start.")
    if parts:
        words += f" The time went into {parts}."
    latest = findings.latest_times
    if latest is not None and len(evidence.history.latest_steps) < len(evidence.history.train):
        details.append(
            f"The workers changed during the run: with the latest {evidence.workers:,} "
            f"a step took {in_time(latest.mean)}."
        )
    if balanced := _balance_words(evidence):
        details.append(balanced)
    confidence: Confidence = "medium"
    if times.are_few:
        confidence = "low"
    elif known and times.steps >= STEPS_FOR_CONFIDENCE.value:
        confidence = "high"
    warning = _step_warning(findings, times)
    return Answer(
        id="step_time",
        question=question,
        verdict=times.mean,
        headline=in_time(times.mean),
        tone="caution" if warning else "plain",
        note=f"median {in_time(times.median)}" if np.isfinite(times.median) else "",
        answer=words,
        details=tuple(details),
        evidence=facts_of(times),
        confidence=confidence,
        next_step=warning or _step_advice(largest_first[0] if known else "", times),
    )


def _balance_words(evidence: Evidence) -> str:
    """How unequal the workers are, and what balancing their rows won, as measured at the start."""
    line = evidence.history.calibration
    if line is None or line.balanced_rows is None:
        return ""
    seconds, rows = line.seconds_compute_by_worker, line.balanced_rows
    if len(seconds) != len(rows) or not sum(rows) or not min(seconds, default=0.0) > 0:
        return ""
    even = sum(rows) / len(rows)
    balanced = max(one * own / even for one, own in zip(seconds, rows, strict=True))
    slowest = seconds.index(max(seconds))
    hosts = evidence.attempt.began.hosts if evidence.attempt else ()
    where = f" on {hosts[slowest]}" if slowest < len(hosts) else ""
    return (
        f"With equal shares worker {slowest}{where} would compute {in_time(max(seconds))} a "
        f"step, {max(seconds) / min(seconds):.1f} times as long as the fastest, and the others "
        f"would wait. Rows were split {':'.join(map(str, rows))} instead (distributed.balance): "
        f"{in_time(balanced)}, measured before the first step."
    )


def _spread_words(times: StepTimes) -> str:
    if not np.isfinite(times.median):
        return ""
    rounds = f"of rounds of {times.local_steps} steps: " if times.local_steps > 1 else ""
    return (
        f" ({rounds}median {in_time(times.median)}, 5% under {in_time(times.percentile_5)}, 5% "
        f"over {in_time(times.percentile_95)})"
    )


def _step_warning(findings: Findings, times: StepTimes) -> str:
    """What is wrong with the steps, or nothing."""
    steps = "steps" if times.local_steps == 1 else "rounds"
    if times.percentile_95 > UNEVEN_STEPS.value * times.median:
        return (
            f"Some {steps} take more than twice the median: check what else runs on the machines."
        )
    if times.median > UNEVEN_STEPS.value * times.percentile_5:
        return (
            f"Half of the {steps} take more than twice as long as the fastest: check what else "
            "uses the devices (GPU utilisation includes other processes)."
        )
    data = times.share("data")
    if data >= WAITING_FOR_DATA.value:
        return (
            f"The trainer spends {in_percent(data)} of each step waiting for batches: check the "
            "disk and other load on the machine."
        )
    if findings.network is not None and findings.latest_times is not None:
        return straggler_words(findings.network, findings.latest_times)
    return ""


def _step_advice(largest: str, times: StepTimes) -> str:
    if times.are_few:
        return "Let the run make more steps."
    if times.share("exposed communication") >= NETWORK_IS_BOTTLENECK.value:
        largest = "exposed communication"
    return {
        "compute": "Compute is the largest part, as it should be.",
        "exposed communication": "Workers wait for each other's gradients: see the answer on "
        "the network.",
        "optimizer": "The optimizer's cost is per step: start a new run with a larger "
        "batches.tokens_per_step.",
        "other": "The time is spent outside the measured phases: check for other load on the "
        "machine.",
    }.get(largest, "The log does not say where the step time went.")
