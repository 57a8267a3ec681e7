"""The answer about the network between the machines."""

from collections.abc import Sequence

import numpy as np

from dragoman.report.answers.answer import Answer, Confidence, Tone, facts_of, unknown
from dragoman.report.bottleneck import Network, StepTimes
from dragoman.report.evidence import Evidence
from dragoman.report.findings import Findings
from dragoman.report.thresholds import (
    NETWORK_IS_BOTTLENECK,
    NETWORK_IS_NOT_BOTTLENECK,
    STRAGGLER_WORTH_NAMING,
)
from dragoman.report.whatif import USUAL_LOCAL_STEPS, Scenario, predict
from dragoman.report.wording import (
    in_bits_per_second,
    in_percent,
    in_time,
    in_time_range,
    plural,
)


def network_bottleneck(evidence: Evidence, findings: Findings) -> Answer:
    """Judge by exposed communication, against what bytes and links can explain."""
    found, times = findings.network, findings.latest_times
    question = "Was the network the bottleneck?"
    if found is None or times is None:
        words = "No step has been measured, so nothing can be said."
        return unknown("network_bottleneck", question, words, "Let the run make a few steps.")
    tones: dict[str, Tone] = {"yes": "bad", "no": "good"}
    unseen = _unseen_hosts(evidence, found)
    confidence: Confidence = "high" if found.agrees and not unseen else "medium"
    note = f"{in_percent(found.network_share)} of each step"
    if found.verdict == "single machine":
        confidence, note = "high", plural(evidence.workers, "worker")
        if _waits_inside(found, times):
            tones["single machine"] = "caution"
    return Answer(
        id="network_bottleneck",
        question=question,
        verdict=found.verdict,
        headline=found.verdict.capitalize(),
        tone=tones.get(found.verdict, "plain"),
        note=note if np.isfinite(found.network_share) else "",
        answer=_network_words(found, times, unseen),
        evidence=facts_of(found) | {"seconds_per_step": times.mean, "steps": times.steps},
        confidence="low" if found.verdict == "unclear" else confidence,
        next_step=_network_advice(found, times, findings),
    )


def _unseen_hosts(evidence: Evidence, found: Network) -> list[str]:
    """Machines of the run whose traffic is not known."""
    seen = {traffic.host for traffic in found.traffic}
    return [host for host in evidence.hosts if host not in seen]


def _waits_inside(found: Network, times: StepTimes) -> bool:
    """Whether workers wait long though no network is between them."""
    return found.exposed_seconds >= NETWORK_IS_BOTTLENECK.value * times.mean


def _network_words(found: Network, times: StepTimes, unseen: Sequence[str]) -> str:
    if found.verdict == "single machine":
        words = "All workers are on one machine: no network took part."
        if _waits_inside(found, times):
            words += (
                f" Yet {in_time(found.exposed_seconds)} of each step of {in_time(times.mean)} "
                f"({in_percent(times.share('exposed communication'))}) is waiting for each other."
            )
        return words
    if not np.isfinite(found.network_share):
        return "The steps do not say how long they waited for gradients of other machines."
    words = (
        f"Steps take {in_time(times.mean)} on average, {in_time(found.network_seconds)} of it "
        f"({in_percent(found.network_share)}) waiting for the network. On an infinite network "
        f"they would take the rest, {in_time(found.infinite_network_seconds)}"
    )
    if found.model_infinite_seconds is not None:
        words += (
            f"; compute measured alone and the other phases add up to "
            f"{in_time(found.model_infinite_seconds)}"
        )
    words += "."
    if found.traffic:
        busiest = max(found.traffic, key=lambda traffic: traffic.bytes_per_second)
        words += f" {busiest.host} sent {in_bits_per_second(busiest.bytes_per_second)}"
        if busiest.capacity:
            words += (
                f" of {in_bits_per_second(busiest.capacity)} ({busiest.capacity_source}, "
                f"{in_percent(busiest.bytes_per_second / busiest.capacity)})"
            )
        words += "."
        if unseen:
            few = " and ".join(unseen[:3]) + " …" * (len(unseen) > 3)
            words += f" What {few} sent is not known."
    if found.verdict == "unclear":
        words += f" {_why_unclear(found, times)}"
    elif found.model_network_seconds is not None and found.agrees is not None:
        waiting = in_time_range(*found.model_network_seconds)
        relation = "agrees" if found.agrees else "does not agree"
        words += (
            f" An exchange measured alone foretells {waiting} of waiting. What was measured "
            f"alone {relation} with the run."
        )
    return words


def _why_unclear(found: Network, times: StepTimes) -> str:
    if times.are_few:
        return "But too few steps were made."
    no, yes = NETWORK_IS_NOT_BOTTLENECK.value, NETWORK_IS_BOTTLENECK.value
    if no <= found.network_share < yes:
        return f"That is between {in_percent(no)} (no) and {in_percent(yes)} (yes)."
    if found.network_share >= yes and not found.is_explained:
        return (
            f"The bytes of an exchange need only {in_time(found.exchange_seconds or 0.0)}, so "
            "something else must be waited for."
        )
    return "But the machines are not known."


def _network_advice(found: Network, times: StepTimes, findings: Findings) -> str:
    straggler = straggler_words(found, times)
    if found.verdict == "single machine":
        if not straggler and _waits_inside(found, times):
            return (
                "Start a new run that exchanges less: fewer workers, more tokens between two "
                'exchanges (batches.tokens_per_step), or distributed.compression = "bf16".'
            )
        return straggler or "Nothing to do."
    advice = {
        "yes": f"{_remedy(findings)} The what-if table has more.",
        "unclear": "Let the run make more steps."
        if times.are_few
        else "Run `dragoman check` to measure machines and links again.",
    }.get(found.verdict, "")
    return f"{advice} {straggler}".strip() or "Nothing to do."


def straggler_words(found: Network, times: StepTimes) -> str:
    """Name the worker that the others wait for, if there is one."""
    straggler = found.straggler
    if straggler is None or not straggler.is_behind:
        return ""
    share = straggler.seconds_behind / times.mean
    if share <= STRAGGLER_WORTH_NAMING.value:
        return ""
    where = f" on {straggler.host}" if straggler.host else ""
    return (
        f"Worker {straggler.worker}{where} is the slowest in "
        f"{in_percent(straggler.share_of_steps)} of steps and computes "
        f"{in_time(straggler.seconds_behind)} ({in_percent(share)} of a step) longer than the "
        f"fastest: look at {'that machine' if found.machines > 1 else 'what else runs beside it'}."
    )


def _remedy(findings: Findings) -> str:
    """The cheapest way to send less that the run does not use yet."""
    calibration = findings.calibration
    if calibration is None:
        return "Send less in a new run: 16 bits (distributed.compression) or local steps."
    if calibration.compression == "none":
        seconds = predict(calibration, Scenario(compression="bf16")).seconds_step
        saver = "Local steps" if calibration.local_steps == 1 else "More local steps"
        return (
            f'Start a new run with distributed.compression = "bf16": {in_time(seconds)} a step are '
            f"predicted. {saver} or a faster link save more."
        )
    if calibration.local_steps > 1:
        return (
            "Start a new run with more distributed.local_steps, or cut them into "
            "distributed.local_fragments."
        )
    local = Scenario(compression="bf16", local_steps=USUAL_LOCAL_STEPS)
    return (
        f"Send less often in a new run: with {USUAL_LOCAL_STEPS} local steps (distributed.sync) "
        f"{in_time(predict(calibration, local).seconds_step)} a step are predicted. A faster link "
        "costs no quality."
    )
