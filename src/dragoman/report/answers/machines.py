"""Answers about what the devices did, step by step."""

import numpy as np

from dragoman.report.answers.answer import Answer, Confidence, Tone, facts_of, unknown
from dragoman.report.bottleneck import StepTimes
from dragoman.report.evidence import Evidence
from dragoman.report.findings import Findings
from dragoman.report.gpus import GpuJudgement
from dragoman.report.thresholds import STEPS_FOR_CONFIDENCE, UNEVEN_STEPS
from dragoman.report.wording import in_percent, in_time, plural

_TOO_SMALL_TO_SAY = 0.005  # Of the step time.


def gpu_utilization(evidence: Evidence, findings: Findings) -> Answer:
    """Judge by the samples of all GPUs between the first step and the last line."""
    found = findings.gpus
    on_gpus = _on_gpus(evidence)
    headline, tone = _HEADLINES[found.verdict]
    if found.verdict == "none" and on_gpus:
        headline = "Not measured"
    confidence: Confidence = "high" if found.arithmetic_share is not None else "medium"
    if not found.gpus:
        confidence = "low" if on_gpus else "high"
    note = f"{found.mean:.0f}% busy" if found.gpus else ""
    if not found.gpus and found.cpu_percent is not None:
        note = f"processors {found.cpu_percent:.0f}% busy"
    return Answer(
        id="gpu_utilization",
        question="Were the GPUs fully used?",
        verdict=found.verdict,
        headline=headline,
        tone=tone,
        note=note,
        answer=_gpu_words(found, on_gpus),
        evidence=facts_of(found),
        confidence=confidence,
        next_step=_gpu_advice(findings, on_gpus),
    )


_HEADLINES: dict[str, tuple[str, Tone]] = {
    "full": ("Full", "good"),
    "partial": ("Partly", "caution"),
    "low": ("Hardly", "bad"),
    "none": ("No GPU", "plain"),
}


def _on_gpus(evidence: Evidence) -> bool:
    return evidence.life is not None and evidence.life.device == "cuda"


def _gpu_words(found: GpuJudgement, on_gpus: bool) -> str:
    share = found.arithmetic_share
    peak = "" if share is None else f"{in_percent(share)} of the arithmetic the devices can do"
    if not found.gpus and on_gpus:
        return "The run used GPUs, but no monitor file says how busy they were."
    if not found.gpus:
        percent = found.cpu_percent
        busy = f"; the processors were {percent:.0f}% busy" if percent is not None else ""
        return f"The run used no GPU{busy}." + (f" It did {peak}." if peak else "")
    worst = min(found.gpus, key=lambda gpu: gpu.mean)
    verb = "was" if len(found.gpus) == 1 else "were"
    words = f"{plural(len(found.gpus), 'GPU')} {verb} busy {found.mean:.0f}% of the time on average"
    if len(found.gpus) > 1:
        words += f" (least: GPU {worst.index} of {worst.host}, {worst.mean:.0f}%)"
    for dip in found.dips:
        if dip.cause != "training" and dip.count:
            words += f", {dip.mean_utilization:.0f}% during {dip.cause}s"
    useful = f"they did {peak}" if peak else "how much of it was arithmetic is not known"
    return f"{words}. Busy is not the same as useful (waiting in a collective counts): {useful}."


def _gpu_advice(findings: Findings, on_gpus: bool) -> str:
    found, network = findings.gpus, findings.network
    if found.verdict == "none":
        if on_gpus:
            return "Keep the monitor files of all machines in the run folder."
        return "A GPU would be many times faster; the same config runs on one."
    if network is not None and network.verdict == "yes":
        return "Look at the network first: much of the busy time is waiting in a collective."
    if found.verdict == "full":
        return "Nothing to do; the share of peak arithmetic is what is left to win."
    worst = max(found.dips, key=lambda dip: dip.seconds, default=None)
    if worst is not None and worst.cause != "training":
        return f"Most idle time falls into {worst.cause}s: make them rarer or shorter."
    return (
        "Look at data loading, or start a new run that gives the GPUs more to do at once "
        "(batches.rows_per_device)."
    )


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
        f"{name} {in_percent(known[name] / times.mean)}"
        for name in largest_first
        if known[name] / times.mean >= _TOO_SMALL_TO_SAY
    )
    words = (
        f"{in_time(times.mean)} on average (median {in_time(times.median)}, 5% under "
        f"{in_time(times.percentile_5)}, 5% over {in_time(times.percentile_95)}), evaluations "
        "and checkpoints excluded."
    )
    if parts:
        words += f" It went into {parts}."
    latest = findings.latest_times
    if latest is not None and len(evidence.history.latest_steps) < len(evidence.history.train):
        words += (
            f" The workers changed on the way: with the latest {evidence.workers:,} a step took "
            f"{in_time(latest.mean)}."
        )
    return Answer(
        id="step_time",
        question=question,
        verdict=times.mean,
        headline=in_time(times.mean),
        note=f"median {in_time(times.median)}",
        answer=words,
        evidence=facts_of(times),
        confidence="high" if known and times.steps >= STEPS_FOR_CONFIDENCE.value else "medium",
        next_step=_step_advice(largest_first[0] if known else "", times),
    )


def _step_advice(largest: str, times: StepTimes) -> str:
    if times.percentile_95 > UNEVEN_STEPS.value * times.median:
        return "Some steps take more than twice the median: look for what else the machines do."
    return {
        "data": "The trainer waits for batches: look at the disk and at other load.",
        "compute": "Compute is the largest part, as it should be.",
        "exposed communication": "Look at the network's answer and the what-if table.",
        "optimizer": "The update's cost is per step: start a new run with more "
        "batches.tokens_per_step.",
        "other": "The time is spent outside the phases: look for other load on the machine.",
    }.get(largest, "The steps do not say where their time went.")
