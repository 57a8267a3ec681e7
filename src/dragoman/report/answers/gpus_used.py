"""The answer about the GPUs: a row for each reason."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Literal

import numpy as np

from dragoman.report.answers.advice import spare_evaluations
from dragoman.report.answers.answer import Answer, Confidence, Row, facts_of
from dragoman.report.evidence import Evidence
from dragoman.report.evidence.series import NAN
from dragoman.report.findings.analysis import Findings
from dragoman.report.findings.gpus import Dips
from dragoman.thresholds import (
    GPU_FULL,
    GPU_PARTIAL,
    LITTLE_ARITHMETIC,
    NETWORK_IS_BOTTLENECK,
    WAITING_FOR_DATA,
)
from dragoman.wording import in_percent, plural

_IDLE_WORTH_SAYING = 0.05  # Of all idle time.


GpuReason = Literal[
    "no GPU",
    "not measured",
    "hardly busy",
    "partly busy",
    "busy waiting",
    "little arithmetic",
    "full",
]


@dataclass(frozen=True)
class _Case:
    """What a row may speak of."""

    evidence: Evidence
    findings: Findings


def gpu_utilization(evidence: Evidence, findings: Findings) -> Answer:
    """Judge by the samples of all GPUs between the first step and the last line."""
    reason = _gpu_reason(evidence, findings)
    facts = {"reason": reason} | facts_of(findings.gpus)
    case, details = _Case(evidence, findings), _gpu_details(findings)
    question = "Were the GPUs fully used?"
    return GPU_ROWS[reason].answer("gpu_utilization", question, facts, case, details)


def _gpu_reason(evidence: Evidence, findings: Findings) -> GpuReason:
    match findings.gpus.verdict:
        case "none":
            return "not measured" if _on_gpus(evidence) else "no GPU"
        case "low":
            return "hardly busy"
        case "partial":
            return "partly busy"
        case "full":
            if _waits_long(findings):
                return "busy waiting"
            return "little arithmetic" if _does_little(findings) else "full"


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


def _arithmetic(case: _Case) -> str:
    share = case.findings.gpus.arithmetic_share
    return "" if share is None else f"{in_percent(share)} of the devices' peak compute"


def _words_without_gpu(case: _Case) -> str:
    percent, peak = case.findings.gpus.cpu_percent, _arithmetic(case)
    busy = (
        f"; the CPUs were {percent:.0f}% busy, other programs included"
        if percent is not None
        else ""
    )
    return f"The run used no GPU{busy}." + (f" It reached {peak}." if peak else "")


def _words_of_gpus(case: _Case) -> str:
    found, peak = case.findings.gpus, _arithmetic(case)
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
    useful = f"{doer} reached {peak}" if peak else "how much of it was useful compute is unknown"
    words += (
        ". Busy does not mean useful (waiting in a collective and other processes also count as "
        f"busy): {useful}."
    )
    return words


def _gpu_details(findings: Findings) -> tuple[str, ...]:
    if not findings.gpus.gpus or not _waits_long(findings):
        return ()
    return (
        f"The fastest worker spends {in_percent(_longest_wait(findings))} of each step waiting.",
    )


def _why_not_measured(evidence: Evidence) -> tuple[str, str]:
    """Why nothing is known about the GPUs, and what to do about it."""
    if not evidence.machines:
        words = "there are no monitor files for them"
        return words, "Keep the monitor files of all machines in the run folder."
    if any(machine.gpus for machine in evidence.machines):
        words = "no monitor sample was taken during training"
        return words, "Let the run continue for longer: a monitor samples once a second."
    words = "they did not report their utilisation"
    return words, "Check whether nvidia-smi shows their utilisation on that machine."


def _unless_the_network(advice: Callable[[_Case], str] | str) -> Callable[[_Case], str]:
    """Advice about GPUs, unless they wait for the network."""

    def words(case: _Case) -> str:
        network = case.findings.network
        if network is not None and network.reason == "large share":
            return (
                "Look at the network first: much of the busy time is spent waiting in collectives."
            )
        return advice(case) if callable(advice) else advice

    return words


def _advice_to_give_more(case: _Case) -> str:
    attempt = case.evidence.attempt
    is_wide = attempt is not None and attempt.began.precision == "float32"
    return "Start a new run that gives the GPUs more to do at once (batches.rows_per_device)" + (
        ", or a new run in 16 bits (training.precision)." if is_wide else "."
    )


def _advice_about_idling(case: _Case) -> str:
    dips = case.findings.gpus.dips
    return _idle_advice(max(dips, key=lambda dip: dip.idle_seconds), case.findings)


def _gpu_confidence(case: _Case) -> Confidence:
    found = case.findings.gpus
    is_whole = found.arithmetic_share is not None and len(found.gpus) == found.expected
    return "high" if is_whole else "medium"


def _gpu_note(case: _Case) -> str:
    found = case.findings.gpus
    if found.gpus:
        return f"{_busy(found.mean)} busy"
    return "" if found.cpu_percent is None else f"CPUs {found.cpu_percent:.0f}% busy"


def _waiting(case: _Case) -> str:
    mostly = "mostly" if _longest_wait(case.findings) >= 0.5 else "partly"
    return f"Busy, {mostly} waiting"


# What all rows about GPUs that were measured share.
_row = partial(Row[_Case], confidence=_gpu_confidence, note=_gpu_note, words=_words_of_gpus)

GPU_ROWS: Mapping[GpuReason, Row[_Case]] = {
    "no GPU": Row(
        verdict="none",
        headline="No GPU",
        confidence="high",
        note=_gpu_note,
        words=_words_without_gpu,
        advice="A GPU would be many times faster; the same config runs on one.",
    ),
    "not measured": Row(
        verdict="none",
        headline="Not measured",
        confidence="low",
        note=_gpu_note,
        words=lambda case: f"The run used GPUs, but {_why_not_measured(case.evidence)[0]}.",
        advice=lambda case: _why_not_measured(case.evidence)[1],
    ),
    "hardly busy": _row(
        verdict="low",
        headline="Hardly",
        tone="bad",
        advice=_unless_the_network(_advice_about_idling),
    ),
    "partly busy": _row(
        verdict="partial",
        headline="Partly",
        tone="caution",
        advice=_unless_the_network(_advice_about_idling),
    ),
    "busy waiting": _row(
        verdict="full",
        headline=_waiting,
        tone="caution",
        advice=_unless_the_network(
            "See the answer on the network: much of the busy time is spent waiting for other "
            "workers."
        ),
    ),
    "little arithmetic": _row(verdict="full", advice=_unless_the_network(_advice_to_give_more)),
    "full": _row(
        verdict="full",
        tone="good",
        advice=_unless_the_network(
            "Nothing to do; any further speed-up must come from a higher share of peak compute."
        ),
    ),
}


def _idle_advice(largest: Dips, findings: Findings) -> str:
    """What to do about the cause of most idle time."""
    times = findings.times
    if largest.cause == "gap":
        return (
            "Most idle time is in a gap that the log does not explain: find out what the "
            "machine was doing."
        )
    if largest.cause == "evaluation":
        return f"Most idle time is during evaluations. {spare_evaluations(findings)}"
    if largest.cause != "training":
        return f"Most idle time is during {largest.cause}s: make them rarer or shorter."
    data = times.share("data") if times else NAN
    if data >= WAITING_FOR_DATA.value:
        return (
            f"Most idle time is during training, which spends {in_percent(data)} of each step "
            "waiting for batches: check the disk and other load on the machine."
        )
    return (
        "Most idle time is during training: start a new run that gives the GPUs more to do at "
        "once (batches.rows_per_device)."
    )
