"""The answer on step time and network traffic: a row for each reason."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from dragoman.report.answers.answer import Answer, Confidence, Row, facts_of
from dragoman.report.evidence import Evidence
from dragoman.report.findings.analysis import Findings
from dragoman.report.findings.bottleneck import Network
from dragoman.report.findings.intervals import Correlation
from dragoman.report.findings.traffic import TrafficCorrelation, TrafficReason, Windows
from dragoman.thresholds import NARROW_CORRELATION, TRAFFIC_AGREEMENT
from dragoman.wording import in_bytes, plural

_QUESTION = "How does the step time relate to network traffic?"


@dataclass(frozen=True)
class _Case:
    """What a row may speak of."""

    found: TrafficCorrelation
    network: Network | None
    first_host: str  # Whose step times these are.

    @property
    def windows(self) -> Windows:
        assert self.found.windows is not None
        return self.found.windows

    @property
    def correlation(self) -> Correlation:
        assert self.found.correlation is not None
        return self.found.correlation


def step_time_vs_network(evidence: Evidence, findings: Findings) -> Answer:
    """Correlate over windows, and compare bytes per step with theory."""
    first = evidence.hosts[0] if evidence.hosts else ""
    case = _Case(findings.correlation, findings.network, first)
    row = ROWS[case.found.reason]
    return row.answer("step_time_vs_network", _QUESTION, _facts(case), case, _details(case))


def _facts(case: _Case) -> dict[str, Any]:
    found, network = case.found, case.network
    facts: dict[str, Any] = {"windows": len(found.windows) if found.windows else 0}
    if found.windows:
        facts |= {"host": found.host, "seconds_per_window": found.windows.seconds}
    if correlation := found.correlation:
        other = found.with_other_traffic
        facts |= {
            "correlation": correlation.value,
            "interval_95": [correlation.low, correlation.high],
            "effective_windows": correlation.effective_points,
            "with_other_traffic": facts_of(other) if other else None,
        }
    if network and network.traffic:
        seen = {traffic.host: traffic.bytes_per_step for traffic in network.traffic}
        facts |= {"bytes_per_step_seen": seen, "bytes_per_step_theory": network.bytes_per_step}
    return facts


def _details(case: _Case) -> tuple[str, ...]:
    found = case.found
    if found.correlation is None:
        return ()
    details = []
    if other := found.with_other_traffic:
        slower = "steps are slower" if other.low > 0 else "steps are not measurably slower"
        details.append(
            f"Without the steps' own bytes, r = {other.value:.2f} ({other.low:.2f} to "
            f"{other.high:.2f}): {slower} while others use the link."
        )
    if found.host != case.first_host:
        details.append(f"Step times are from {case.first_host}, traffic is from {found.host}.")
    return tuple(details)


def _and_bytes(words: str | Callable[[_Case], str]) -> Callable[[_Case], str]:
    """What the correlation says, and what a step sends against theory."""

    def both(case: _Case) -> str:
        return (words(case) if callable(words) else words) + _bytes_against_theory(case.network)

    return both


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


def _few_windows(case: _Case) -> str:
    return (
        f"Only {plural(len(case.windows), 'window')} of {case.windows.seconds:.0f} s contain only "
        "training: too few to correlate step time with traffic."
    )


def _advice_unless_slowed(case: _Case) -> str:
    other = case.found.with_other_traffic
    if other and other.low > 0:
        return _WHO_ELSE
    if case.network is not None and case.network.reason == "large share":
        return "See the answer on the bottleneck: sending fewer bytes shortens every step."
    return "Nothing to do."


def _confidence(case: _Case) -> Confidence:
    correlation = case.correlation
    is_narrow = correlation.high - correlation.low < NARROW_CORRELATION.value
    # What follows from each step's sending the same bytes is no finding about the network.
    is_finding = correlation.low > 0 or case.found.with_other_traffic is not None
    is_own = case.found.host == case.first_host
    return "high" if is_narrow and is_finding and is_own else "medium"


def _not_correlated(words: str | Callable[[_Case], str]) -> Row[_Case]:
    return Row(
        verdict="unclear",
        confidence="low",
        words=_and_bytes(words),
        advice="Run longer, and keep the monitor files of all machines.",
    )


def _correlated(meaning: str, advice: str | Callable[[_Case], str]) -> Row[_Case]:
    def words(case: _Case) -> str:
        windows, correlation = case.windows, case.correlation
        return (
            f"Over {len(windows):,} windows of {windows.seconds:.0f} s, step time and traffic "
            f"correlate with r = {correlation.value:.2f} (95% interval {correlation.low:.2f} to "
            f"{correlation.high:.2f}): {meaning}."
        )

    return Row(
        verdict=lambda case: case.correlation.value,
        headline=lambda case: f"r = {case.correlation.value:.2f}",
        confidence=_confidence,
        note=lambda case: f"95% interval {case.correlation.low:.2f} to {case.correlation.high:.2f}",
        words=_and_bytes(words),
        advice=advice,
    )


_WHO_ELSE = "Find out what else uses the link, or use a faster one."

ROWS: Mapping[TrafficReason, Row[_Case]] = {
    "single machine": Row(
        verdict="single machine",
        headline="No network",
        confidence="high",
        words="All workers are on one machine: steps cause no network traffic.",
        advice="Nothing to do.",
    ),
    "no samples": _not_correlated("No machine has samples of its network interface."),
    "no windows": _not_correlated(
        "No uninterrupted stretch of training was long enough to compare with traffic."
    ),
    "few windows": _not_correlated(_few_windows),
    "nothing varies": _not_correlated(
        "Step time or traffic does not vary at all, so there is nothing to correlate."
    ),
    "slower with more traffic": _correlated(
        "steps are slower when there is more traffic, so the link was saturated or shared",
        _WHO_ELSE,
    ),
    "slower with less traffic": _correlated(
        "there is less traffic while steps are slower; each step sends the same bytes, so "
        "anything that slows steps has this effect, and it says nothing about the network",
        _advice_unless_slowed,
    ),
    "no relation": _correlated("no significant relation", _advice_unless_slowed),
}
