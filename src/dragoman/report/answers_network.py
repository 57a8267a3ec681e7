"""Answers about the network between the machines."""

from dataclasses import asdict
from typing import Any

import numpy as np

from dragoman.report.answer import Answer, Confidence, Tone
from dragoman.report.bottleneck import Network, StepTimes
from dragoman.report.evidence import Evidence
from dragoman.report.findings import Findings
from dragoman.report.intervals import Correlation
from dragoman.report.thresholds import (
    EXPLAINED_WAIT,
    NETWORK_IS_BOTTLENECK,
    NETWORK_IS_NOT_BOTTLENECK,
    TRAFFIC_AGREEMENT,
    WINDOWS_NEEDED,
)
from dragoman.report.wording import in_bits_per_second, in_bytes, in_percent, in_time, plural

_WORTH_NAMING = 0.02  # A straggler costs at least this share of a step.


def network_bottleneck(evidence: Evidence, findings: Findings) -> Answer:
    """Judge by exposed communication, against what bytes and links can explain."""
    found, times = findings.network, findings.times
    verdict = found.verdict if found else "unclear"
    tones: dict[str, Tone] = {"yes": "bad", "no": "good"}
    headlines = {"yes": "Yes", "no": "No", "single machine": "Single machine"}
    return Answer(
        id="network_bottleneck",
        question="Was the network the bottleneck?",
        verdict=verdict,
        headline=headlines.get(verdict, "Unclear"),
        tone=tones.get(verdict, "plain"),
        answer=_network_words(found, times),
        evidence=_network_json(found, times) if found and times else {},
        confidence=_network_confidence(found),
        next_step=_network_advice(found, findings),
    )


def _network_words(found: Network | None, times: StepTimes | None) -> str:
    if found is None or times is None:
        return "No step has been measured, so nothing can be said."
    if found.verdict == "single machine":
        return "All workers are on one machine: no network took part."
    if not np.isfinite(found.network_share):
        return "The steps do not say how long they waited for gradients of other machines."
    words = (
        f"Steps take {in_time(times.mean)} on average, {in_time(found.network_seconds)} of it "
        f"({in_percent(found.network_share)}) waiting for the network; on an infinite network "
        f"they would take {in_time(found.infinite_network_seconds)}."
    )
    if found.traffic:
        busiest = max(found.traffic, key=lambda traffic: traffic.bytes_per_second)
        words += f" {busiest.host} sent {in_bits_per_second(busiest.bytes_per_second)}"
        if busiest.capacity:
            words += (
                f" of {in_bits_per_second(busiest.capacity)} ({busiest.capacity_source}, "
                f"{in_percent(busiest.bytes_per_second / busiest.capacity)})"
            )
        words += "."
    if found.verdict == "unclear":
        words += " " + _why_unclear(found)
    elif found.agrees is not None:
        relation = "agrees" if found.agrees else "does not agree"
        words += f" The model of the step {relation} with the measurement."
    return words


def _why_unclear(found: Network) -> str:
    exchange = found.communication_seconds
    if (
        found.network_share >= NETWORK_IS_BOTTLENECK.value
        and exchange is not None
        and exchange < EXPLAINED_WAIT.value * found.network_seconds
    ):
        return (
            f"The bytes of a step need only {in_time(exchange)}, so something else must be "
            "waited for."
        )
    return (
        f"That is between {in_percent(NETWORK_IS_NOT_BOTTLENECK.value)} (no) and "
        f"{in_percent(NETWORK_IS_BOTTLENECK.value)} (yes)."
    )


def _network_json(found: Network, times: StepTimes) -> dict[str, Any]:
    return {
        "machines": found.machines,
        "seconds_per_step": times.mean,
        "seconds_exposed_communication": found.exposed_seconds,
        "seconds_network": found.network_seconds,
        "network_share": found.network_share,
        "seconds_per_step_infinite_network": found.infinite_network_seconds,
        "slowest_worker": asdict(found.straggler) if found.straggler else None,
        "bytes_per_step_theory": found.bytes_per_step,
        "seconds_all_reduce_alone": found.all_reduce_seconds,
        "seconds_all_reduce_theory": found.theory_seconds,
        "model_seconds_all_hidden_and_none_hidden": found.model_seconds,
        "model_seconds_infinite_network": found.model_infinite_seconds,
        "model_agrees": found.agrees,
        "traffic": [asdict(traffic) for traffic in found.traffic],
    }


def _network_confidence(found: Network | None) -> Confidence:
    if found is None or found.verdict == "unclear":
        return "low"
    if found.verdict == "single machine" or (found.agrees and found.traffic):
        return "high"
    return "medium"


def _network_advice(found: Network | None, findings: Findings) -> str:
    if found is None:
        return "Let the run make a few steps."
    straggler = found.straggler
    slow = ""
    if found.machines == 1:
        return "Nothing to do."
    if straggler and findings.times and straggler.seconds > _WORTH_NAMING * findings.times.mean:
        where = f" on {straggler.host}" if straggler.host else ""
        slow = (
            f" Worker {straggler.worker}{where} is the slowest in "
            f"{in_percent(straggler.share_of_steps)} of steps: look at that machine."
        )
    if found.verdict == "yes":
        return f"{_remedy(findings)} The what-if table has more.{slow}"
    if found.verdict == "unclear":
        return f"Run `dragoman check` to measure machines and links again.{slow}"
    return (slow or " Nothing to do.").strip()


def _remedy(findings: Findings) -> str:
    """The cheapest way to send less that the run does not use yet."""
    calibration = findings.calibration
    steps = {row.label: in_time(row.seconds_step) for row in findings.predictions}
    if calibration is not None and calibration.compression == "none":
        predicted = steps.get("bf16 compression", "less")
        return (
            f'Set distributed.compression = "bf16": {predicted} a step are predicted. Local steps '
            "or a faster link save more."
        )
    predicted = steps.get("8 local steps", "less")
    return (
        f"Send less often: with 8 local steps {predicted} a step are predicted. A faster link "
        "costs no quality."
    )


def step_time_vs_network(evidence: Evidence, findings: Findings) -> Answer:
    """Correlate over windows, and compare bytes per step with theory."""
    found, network = findings.correlation, findings.network
    correlation = found.correlation if found else None
    facts: dict[str, Any] = {"windows": len(found.windows) if found else 0}
    if found:
        facts |= {"host": found.host, "seconds_per_window": found.windows.seconds}
    if correlation:
        facts |= {
            "correlation": correlation.value,
            "interval_95": [correlation.low, correlation.high],
            "effective_windows": correlation.effective_points,
        }
    theory = _bytes_against_theory(network)
    if network and network.traffic:
        facts["bytes_per_step_seen"] = {
            traffic.host: traffic.bytes_per_step for traffic in network.traffic
        }
        facts["bytes_per_step_theory"] = network.bytes_per_step
    confidence: Confidence = "low"
    if correlation:
        confidence = "high" if correlation.high - correlation.low < 0.5 else "medium"
    return Answer(
        id="step_time_vs_network",
        question="How does the step time relate to network traffic?",
        verdict=correlation.value if correlation else "unclear",
        headline=f"r = {correlation.value:.2f}"
        if correlation
        else ("No network" if len(evidence.hosts) == 1 else "Unclear"),
        tone="plain",
        answer=_correlation_words(evidence, findings) + theory,
        evidence=facts,
        confidence=confidence,
        next_step=_correlation_advice(evidence, network, correlation),
    )


def _correlation_words(evidence: Evidence, findings: Findings) -> str:
    found = findings.correlation
    if len(evidence.hosts) == 1:
        return "All workers are on one machine: steps cause no traffic on a network."
    if found is None:
        return "No machine has samples of its network interface while the run trained."
    correlation = found.correlation
    if correlation is None:
        if len(found.windows) < WINDOWS_NEEDED.value:
            return (
                f"Only {plural(len(found.windows), 'window')} of {found.windows.seconds:.0f} s in "
                "which the run did nothing but train: too few for a correlation."
            )
        return "Step time or traffic did not vary at all, so there is nothing to correlate."
    if correlation.low > 0:
        meaning = "steps are slower when more flows, so the link was full or shared with others"
    elif correlation.high < 0:
        meaning = (
            "less flows while steps are slower; each step sends the same bytes, so this happens "
            "whatever slows them and does not blame the network"
        )
    else:
        meaning = "no relation can be told from chance"
    return (
        f"Over {len(found.windows):,} windows of {found.windows.seconds:.0f} s, step time and "
        f"traffic correlate with r = {correlation.value:.2f} (95% interval "
        f"{correlation.low:.2f} to {correlation.high:.2f}): {meaning}."
    )


def _bytes_against_theory(network: Network | None) -> str:
    if network is None or not network.traffic:
        return ""
    busiest = max(network.traffic, key=lambda traffic: traffic.bytes_per_step)
    words = f" A step sends {in_bytes(busiest.bytes_per_step)} from {busiest.host}"
    if not network.bytes_per_step:
        return f"{words}."
    ratio = busiest.bytes_per_step / network.bytes_per_step
    theory = f"; theory says {in_bytes(network.bytes_per_step)}"
    if abs(ratio - 1) <= TRAFFIC_AGREEMENT.value:
        return f"{words}{theory}, which agrees."
    if ratio > 1:
        return f"{words}{theory}: the interface carries other traffic too."
    return f"{words}{theory}: gradients take another way (another interface, or RDMA)."


def _correlation_advice(
    evidence: Evidence, network: Network | None, correlation: Correlation | None
) -> str:
    if len(evidence.hosts) == 1:
        return "Nothing to do."
    if correlation is None:
        return "Run longer, and keep the monitor files of all machines."
    if correlation.low > 0:
        return "Find out who else uses the link, or give the run a faster one."
    if network is not None and network.verdict == "yes":
        return "See the answer about the bottleneck: sending fewer bytes shortens every step."
    return "Nothing to do."
