"""Answers about what the devices did, step by step."""

import numpy as np

from dragoman.report.answers.advice import spare_evaluations
from dragoman.report.answers.answer import Answer, Confidence, Tone, facts_of, unknown
from dragoman.report.answers.network_bottleneck import straggler_words
from dragoman.report.evidence import Evidence
from dragoman.report.evidence.series import NAN
from dragoman.report.findings.analysis import Findings
from dragoman.report.findings.bottleneck import StepTimes
from dragoman.report.findings.gpus import Dips
from dragoman.thresholds import (
    GPU_FULL,
    GPU_PARTIAL,
    LITTLE_ARITHMETIC,
    NETWORK_IS_BOTTLENECK,
    STEPS_FOR_CONFIDENCE,
    UNEVEN_STEPS,
    WAITING_FOR_DATA,
)
from dragoman.wording import in_percent, in_time, plural

_TOO_SMALL_TO_SAY = 0.005  # Of the step time.
_IDLE_WORTH_SAYING = 0.05  # Of all idle time.


def gpu_utilization(evidence: Evidence, findings: Findings) -> Answer:
    """Judge by the samples of all GPUs between the first step and the last line."""
    found = findings.gpus
    on_gpus = _on_gpus(evidence)
    headline, tone = _HEADLINES[found.verdict]
    if found.verdict == "none" and on_gpus:
        headline = "Not measured"
    if found.verdict == "full" and _waits_long(findings):
        mostly = "mostly" if _longest_wait(findings) >= 0.5 else "partly"
        headline, tone = f"Busy, {mostly} waiting", "caution"
    elif found.verdict == "full" and _does_little(findings):
        tone = "plain"
    is_whole = found.arithmetic_share is not None and len(found.gpus) == found.expected
    confidence: Confidence = "high" if is_whole else "medium"
    if not found.gpus:
        confidence = "low" if on_gpus else "high"
    note = f"{_busy(found.mean)} busy" if found.gpus else ""
    if not found.gpus and found.cpu_percent is not None:
        note = f"processors {found.cpu_percent:.0f}% busy"
    return Answer(
        id="gpu_utilization",
        question="Were the GPUs fully used?",
        verdict=found.verdict,
        headline=headline,
        tone=tone,
        note=note,
        answer=_gpu_words(evidence, findings),
        details=_gpu_details(findings),
        evidence=facts_of(found),
        confidence=confidence,
        next_step=_gpu_advice(evidence, findings),
    )


_HEADLINES: dict[str, tuple[str, Tone]] = {
    "full": ("Full", "good"),
    "partial": ("Partly", "caution"),
    "low": ("Hardly", "bad"),
    "none": ("No GPU", "plain"),
}


def _busy(percent: float) -> str:
    """Rounded, but never up to a threshold that was not reached."""
    for limit in (GPU_FULL.value, GPU_PARTIAL.value):
        if percent < limit <= round(percent):
            return f"{min(percent, limit - 0.1):.1f}%"
    return f"{percent:.0f}%"


def _on_gpus(evidence: Evidence) -> bool:
    return evidence.attempt is not None and evidence.attempt.began.device == "cuda"


def _longest_wait(findings: Findings) -> float:
    """What the fastest worker waits for the others and the network, as part of a step."""
    network, times = findings.network, findings.latest_times
    return network.longest_wait_seconds / times.mean if network and times else NAN


def _waits_long(findings: Findings) -> bool:
    return _longest_wait(findings) >= NETWORK_IS_BOTTLENECK.value


def _does_little(findings: Findings) -> bool:
    share = findings.gpus.arithmetic_share
    return share is not None and share < LITTLE_ARITHMETIC.value


def _gpu_words(evidence: Evidence, findings: Findings) -> str:
    found = findings.gpus
    share = found.arithmetic_share
    peak = "" if share is None else f"{in_percent(share)} of the arithmetic the devices can do"
    if not found.gpus and _on_gpus(evidence):
        return f"The run used GPUs, but {_why_not_measured(evidence)[0]}."
    if not found.gpus:
        percent = found.cpu_percent
        busy = f"; the processors were {percent:.0f}% busy" if percent is not None else ""
        return f"The run used no GPU{busy}." + (f" It did {peak}." if peak else "")
    worst = min(found.gpus, key=lambda gpu: gpu.mean)
    verb = "was" if len(found.gpus) == 1 else "were"
    of_all = "" if len(found.gpus) == found.expected else f"{len(found.gpus)} of "
    gpus = f"{of_all}{plural(found.expected, 'GPU')}"
    words = f"{gpus} {verb} busy {_busy(found.mean)} of the time on average"
    if len(found.gpus) > 1:
        words += f" (least: GPU {worst.index} of {worst.host}, {worst.mean:.0f}%)"
    idle = sum(dip.idle_seconds for dip in found.dips)
    for dip in found.dips:
        is_much = dip.idle_seconds > _IDLE_WORTH_SAYING * idle
        if dip.cause != "training" and is_much and np.isfinite(dip.mean_utilization):
            words += f", {dip.mean_utilization:.0f}% during {dip.cause}s"
    doer = "it" if found.expected == 1 else "they"
    useful = f"{doer} did {peak}" if peak else "how much of it was arithmetic is not known"
    words += (
        ". Busy is not the same as useful (waiting in a collective counts, and so does what other "
        f"processes do): {useful}."
    )
    return words


def _gpu_details(findings: Findings) -> tuple[str, ...]:
    if not findings.gpus.gpus or not _waits_long(findings):
        return ()
    return (f"The fastest worker waits {in_percent(_longest_wait(findings))} of each step.",)


def _why_not_measured(evidence: Evidence) -> tuple[str, str]:
    """Why nothing is known about the GPUs, and what to do about it."""
    if not evidence.machines:
        words = "no monitor file says how busy they were"
        return words, "Keep the monitor files of all machines in the run folder."
    if any(machine.gpus for machine in evidence.machines):
        words = "their monitors took no sample between the first step and the last line"
        return words, "Let the run go on for longer: a monitor samples once a second."
    words = "they did not tell how busy they were"
    return words, "See whether nvidia-smi shows their utilisation where the run is."


def _gpu_advice(evidence: Evidence, findings: Findings) -> str:
    found, network = findings.gpus, findings.network
    if found.verdict == "none":
        if _on_gpus(evidence):
            return _why_not_measured(evidence)[1]
        return "A GPU would be many times faster; the same config runs on one."
    if network is not None and network.reason == "large share":
        return "Look at the network first: much of the busy time is waiting in a collective."
    if found.verdict == "full":
        if _waits_long(findings):
            return "See the network's answer: much of the busy time is waiting for other workers."
        if _does_little(findings):
            is_wide = evidence.attempt is not None and evidence.attempt.began.precision == "float32"
            return (
                "Start a new run that gives the GPUs more to do at once (batches.rows_per_device)"
                + (", or a new run in 16 bits (training.precision)." if is_wide else ".")
            )
        return "Nothing to do; the share of peak arithmetic is what is left to win."
    return _idle_advice(max(found.dips, key=lambda dip: dip.idle_seconds), findings)


def _idle_advice(largest: Dips, findings: Findings) -> str:
    """What to do about the cause of most idle time."""
    times = findings.times
    if largest.cause == "gap":
        return (
            "Most idle time is during a gap that nothing in the log explains: find out what the "
            "machine did then."
        )
    if largest.cause == "evaluation":
        return f"Most idle time is during evaluations. {spare_evaluations(findings)}"
    if largest.cause != "training":
        return f"Most idle time is during {largest.cause}s: make them rarer or shorter."
    data = times.share("data") if times else NAN
    if data >= WAITING_FOR_DATA.value:
        return (
            f"Most idle time is during training, which waits for batches in {in_percent(data)} "
            "of each step: look at the disk and at other load."
        )
    return (
        "Most idle time is during training: start a new run that gives the GPUs more to do at "
        "once (batches.rows_per_device)."
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
        f"{name} {in_percent(times.share(name))}"
        for name in largest_first
        if times.share(name) >= _TOO_SMALL_TO_SAY
    )
    words = f"{in_time(times.mean)} on average{_spread_words(times)}, evaluations and "
    words += "checkpoints excluded."
    details = []
    if times.are_few:
        few = plural(times.steps, "step")
        details.append(f"Only {few} count, the first ones after a start too.")
    if parts:
        words += f" It went into {parts}."
    latest = findings.latest_times
    if latest is not None and len(evidence.history.latest_steps) < len(evidence.history.train):
        details.append(
            f"The workers changed on the way: with the latest {evidence.workers:,} a step took "
            f"{in_time(latest.mean)}."
        )
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
        return f"Some {steps} take more than twice the median: look for what else the machines do."
    if times.median > UNEVEN_STEPS.value * times.percentile_5:
        return (
            f"Half of the {steps} take more than twice as long as the fastest: look for what else "
            "uses the devices (a GPU's utilisation counts other processes too)."
        )
    data = times.share("data")
    if data >= WAITING_FOR_DATA.value:
        return (
            f"The trainer waits for batches in {in_percent(data)} of each step: look at the disk "
            "and at other load."
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
        "exposed communication": "Workers wait for each other's gradients: see the network's "
        "answer.",
        "optimizer": "The update's cost is per step: start a new run with more "
        "batches.tokens_per_step.",
        "other": "The time is spent outside the phases: look for other load on the machine.",
    }.get(largest, "The steps do not say where their time went.")
