"""Answers about what the devices did, step by step."""

from dataclasses import asdict

import numpy as np

from dragoman.report.answer import Answer, Tone
from dragoman.report.bottleneck import StepTimes
from dragoman.report.evidence import Evidence
from dragoman.report.findings import Findings
from dragoman.report.gpus import GpuJudgement
from dragoman.report.wording import in_percent, in_time, plural


def gpu_utilization(evidence: Evidence, findings: Findings) -> Answer:
    """Judge by the samples of all GPUs between the first step and the last line."""
    found = findings.gpus
    tones: dict[str, Tone] = {"full": "good", "partial": "caution", "low": "bad", "none": "plain"}
    return Answer(
        id="gpu_utilization",
        question="Were the GPUs fully used?",
        verdict=found.verdict,
        headline={"full": "Full", "partial": "Partly", "low": "Hardly", "none": "No GPU"}[
            found.verdict
        ]
        if found.verdict != "none" or not _on_gpus(evidence)
        else "Not measured",
        tone=tones[found.verdict],
        answer=_gpu_words(evidence, found),
        evidence={
            "mean_percent": found.mean,
            "gpus": [asdict(gpu) for gpu in found.gpus],
            "unused_gpus": found.unused,
            "by_activity": {
                dip.cause: {
                    "mean_percent": dip.mean_utilization,
                    "dips": dip.count,
                    "seconds_below_half": dip.seconds,
                }
                for dip in found.dips
            },
            "share_of_peak_arithmetic": found.arithmetic_share,
            "cpu_percent": found.cpu_percent,
        },
        confidence="low"
        if not found.gpus and _on_gpus(evidence)
        else ("high" if found.arithmetic_share is not None or not found.gpus else "medium"),
        next_step=_gpu_advice(evidence, findings),
    )


def _on_gpus(evidence: Evidence) -> bool:
    return evidence.life is not None and evidence.life.device == "cuda"


def _gpu_words(evidence: Evidence, found: GpuJudgement) -> str:
    share = found.arithmetic_share
    peak = "" if share is None else f"{in_percent(share)} of the arithmetic the devices can do"
    if not found.gpus:
        if _on_gpus(evidence):
            return "The run used GPUs, but no monitor file says how busy they were."
        busy = (
            f"; the processors were {found.cpu_percent:.0f}% busy"
            if found.cpu_percent is not None
            else ""
        )
        return f"The run used no GPU{busy}." + (f" It did {peak}." if peak else "")
    worst = min(found.gpus, key=lambda gpu: gpu.mean)
    verb = "was" if len(found.gpus) == 1 else "were"
    words = f"{plural(len(found.gpus), 'GPU')} {verb} busy {found.mean:.0f}% of the time on average"
    if len(found.gpus) > 1:
        words += f" (least: GPU {worst.index} of {worst.host}, {worst.mean:.0f}%)"
    other = [dip for dip in found.dips if dip.cause != "training" and dip.count]
    if other:
        named = " and ".join(f"{dip.mean_utilization:.0f}% during {dip.cause}s" for dip in other)
        words += f", {named}"
    useful = f" they did {peak}." if peak else " how much of it was arithmetic is not known."
    return f"{words}. Busy is not the same as useful (waiting in a collective counts):{useful}"


def _gpu_advice(evidence: Evidence, findings: Findings) -> str:
    found, network = findings.gpus, findings.network
    if found.verdict == "none":
        if _on_gpus(evidence):
            return "Keep the monitor files of all machines in the run folder."
        return "A GPU would be many times faster; the same config runs on one."
    if network is not None and network.verdict == "yes":
        return "Look at the network first: much of the busy time is waiting in a collective."
    if found.verdict == "full":
        return "Nothing to do; the share of peak arithmetic is what is left to win."
    causes = [dip for dip in found.dips if dip.cause != "training"]
    worst = max(causes, key=lambda dip: dip.seconds, default=None)
    training = next((dip.seconds for dip in found.dips if dip.cause == "training"), 0.0)
    if worst is not None and worst.seconds > training:
        return f"Most idle time falls into {worst.cause}s: make them rarer or shorter."
    return "Give the GPUs more to do at once (batches.rows_per_device), or look at data loading."


def step_time(evidence: Evidence, findings: Findings) -> Answer:
    """Mean, median and percentiles of the step time, and its phases."""
    times = findings.times
    question = "How long did a step take?"
    if times is None:
        return Answer(
            "step_time",
            question,
            "unclear",
            "Unclear",
            "plain",
            "No step has been logged yet.",
            {},
            "low",
            "Let the run make a few steps.",
        )
    known = {name: value for name, value in times.phases.items() if np.isfinite(value)}
    parts = ", ".join(
        f"{name} {in_percent(value / times.mean)}"
        for name, value in sorted(known.items(), key=lambda item: -item[1])
        if value / times.mean >= 0.005
    )
    largest = max(known, key=lambda name: known[name], default="")
    words = (
        f"{in_time(times.mean)} on average (median {in_time(times.median)}, 5% under "
        f"{in_time(times.low)}, 5% over {in_time(times.high)}), evaluations and checkpoints "
        "excluded."
    )
    return Answer(
        id="step_time",
        question=question,
        verdict=times.mean,
        headline=in_time(times.mean),
        tone="plain",
        answer=f"{words} It went into {parts}." if parts else words,
        evidence={
            "steps": times.steps,
            "left_out": times.left_out,
            "mean": times.mean,
            "median": times.median,
            "percentile_5": times.low,
            "percentile_95": times.high,
            "phases": times.phases,
        },
        confidence="high" if known and times.steps >= 100 else "medium",
        next_step=_step_advice(largest, times),
    )


def _step_advice(largest: str, times: StepTimes) -> str:
    if times.high > 2 * times.median:
        return "Some steps take more than twice the median: look for what else the machines do."
    return {
        "data": "The trainer waits for batches: look at the disk and at other load.",
        "exposed communication": "Look at the network's answer and the what-if table.",
        "optimizer": "Accumulate more rows per step: the update's cost is per step.",
        "other": "The time is spent outside the phases: look for other load on the machine.",
    }.get(largest, "Compute is the largest part, as it should be.")
