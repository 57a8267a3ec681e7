"""The answer on step time and network traffic."""

from typing import Any

from dragoman.report.answers.answer import Answer, Confidence, facts_of
from dragoman.report.evidence import Evidence
from dragoman.report.findings.analysis import Findings
from dragoman.report.findings.bottleneck import Network
from dragoman.report.findings.traffic import TrafficCorrelation
from dragoman.thresholds import NARROW_CORRELATION, TRAFFIC_AGREEMENT, WINDOWS_NEEDED
from dragoman.wording import in_bytes, plural


def step_time_vs_network(evidence: Evidence, findings: Findings) -> Answer:
    """Correlate over windows, and compare bytes per step with theory."""
    question = "How does the step time relate to network traffic?"
    if len(evidence.hosts) == 1:
        return Answer(
            id="step_time_vs_network",
            question=question,
            verdict="unclear",
            headline="No network",
            answer="All workers are on one machine: steps cause no network traffic.",
            evidence={"windows": 0},
            confidence="high",
            next_step="Nothing to do.",
        )
    found, network = findings.correlation, findings.network
    correlation = found.correlation if found else None
    facts: dict[str, Any] = {"windows": len(found.windows) if found else 0}
    if found:
        facts |= {"host": found.host, "seconds_per_window": found.windows.seconds}
    headline, note = "Unclear", ""
    confidence: Confidence = "low"
    if found and correlation:
        other = found.with_other_traffic
        facts |= {
            "correlation": correlation.value,
            "interval_95": [correlation.low, correlation.high],
            "effective_windows": correlation.effective_points,
            "with_other_traffic": facts_of(other) if other else None,
        }
        headline = f"r = {correlation.value:.2f}"
        note = f"95% interval {correlation.low:.2f} to {correlation.high:.2f}"
        is_narrow = correlation.high - correlation.low < NARROW_CORRELATION.value
        # What follows from each step's sending the same bytes is no finding about the network.
        is_finding = correlation.low > 0 or other is not None
        is_own = found.host in evidence.hosts[:1]
        confidence = "high" if is_narrow and is_finding and is_own else "medium"
    if network and network.traffic:
        seen = {traffic.host: traffic.bytes_per_step for traffic in network.traffic}
        facts |= {"bytes_per_step_seen": seen, "bytes_per_step_theory": network.bytes_per_step}
    return Answer(
        id="step_time_vs_network",
        question=question,
        verdict=correlation.value if correlation else "unclear",
        headline=headline,
        note=note,
        answer=_correlation_words(evidence, found) + _bytes_against_theory(network),
        details=_correlation_details(evidence, found),
        evidence=facts,
        confidence=confidence,
        next_step=_correlation_advice(found, network),
    )


def _correlation_words(evidence: Evidence, found: TrafficCorrelation | None) -> str:
    if found is None:
        if any(len(machine) > 1 and machine.interface for machine in evidence.machines):
            return "No uninterrupted stretch of training was long enough to compare with traffic."
        return "No machine has samples of its network interface."
    windows, correlation = found.windows, found.correlation
    if correlation is None:
        if len(windows) < WINDOWS_NEEDED.value:
            return (
                f"Only {plural(len(windows), 'window')} of {windows.seconds:.0f} s contain only "
                "training: too few to correlate step time with traffic."
            )
        return "Step time or traffic does not vary at all, so there is nothing to correlate."
    meaning = "no significant relation"
    if correlation.low > 0:
        meaning = "steps are slower when there is more traffic, so the link was saturated or shared"
    elif correlation.high < 0:
        meaning = (
            "there is less traffic while steps are slower; each step sends the same bytes, so "
            "anything that slows steps has this effect, and it says nothing about the network"
        )
    return (
        f"Over {len(windows):,} windows of {windows.seconds:.0f} s, step time and traffic "
        f"correlate with r = {correlation.value:.2f} (95% interval {correlation.low:.2f} to "
        f"{correlation.high:.2f}): {meaning}."
    )


def _correlation_details(evidence: Evidence, found: TrafficCorrelation | None) -> tuple[str, ...]:
    if found is None or found.correlation is None:
        return ()
    details = []
    if other := found.with_other_traffic:
        slower = "steps are slower" if other.low > 0 else "steps are not measurably slower"
        details.append(
            f"Without the steps' own bytes, r = {other.value:.2f} ({other.low:.2f} to "
            f"{other.high:.2f}): {slower} while others use the link."
        )
    first = evidence.hosts[0] if evidence.hosts else ""
    if found.host != first:
        details.append(f"Step times are from {first}, traffic is from {found.host}.")
    return tuple(details)


def _bytes_against_theory(network: Network | None) -> str:
    if network is None or not network.traffic:
        return ""
    busiest = max(network.traffic, key=lambda traffic: traffic.bytes_per_step)
    words = f" A step sends {in_bytes(busiest.bytes_per_step)} from {busiest.host}"
    if not network.bytes_per_step:
        return f"{words}."
    ratio = busiest.bytes_per_step / network.bytes_per_step
    words += f"; theory says {in_bytes(network.bytes_per_step)}"
    if abs(ratio - 1) <= TRAFFIC_AGREEMENT.value:
        return f"{words}, which agrees."
    if ratio > 1:
        return f"{words}: the interface carries other traffic too."
    return f"{words}: gradients take another path (another interface, or RDMA)."


def _correlation_advice(found: TrafficCorrelation | None, network: Network | None) -> str:
    if found is None or found.correlation is None:
        return "Run longer, and keep the monitor files of all machines."
    other = found.with_other_traffic
    if found.correlation.low > 0 or (other and other.low > 0):
        return "Find out what else uses the link, or use a faster one."
    if network is not None and network.reason == "large share":
        return "See the answer on the bottleneck: sending fewer bytes shortens every step."
    return "Nothing to do."
