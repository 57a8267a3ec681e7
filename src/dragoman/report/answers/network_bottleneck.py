"""The answer about the network between the machines."""

from collections.abc import Sequence

import numpy as np

from dragoman.prediction.step_model import ALONE, Prediction, Scenario, predict
from dragoman.prediction.sync_choice import choose_local_steps, choose_way, is_slower
from dragoman.report.answers.answer import Answer, Confidence, Tone, facts_of, unknown
from dragoman.report.evidence import Evidence
from dragoman.report.findings.analysis import Findings
from dragoman.report.findings.bottleneck import Network, StepTimes
from dragoman.thresholds import (
    NETWORK_IS_BOTTLENECK,
    NETWORK_IS_NOT_BOTTLENECK,
    STRAGGLER_WORTH_NAMING,
)
from dragoman.wording import (
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
    alone = _one_worker(findings)
    slower = "" if alone is None else _slower_than_one(found, times, alone)
    note += "; slower than one worker" if slower else ""
    if _waits_inside(found, times) or (slower and found.verdict == "no"):
        tones[found.verdict] = "caution"
    facts = facts_of(found) | {"seconds_per_step": times.mean, "steps": times.steps}
    return Answer(
        id="network_bottleneck",
        question=question,
        verdict=found.verdict,
        headline=found.verdict.capitalize(),
        tone=tones.get(found.verdict, "plain"),
        note=note if np.isfinite(found.network_share) else "",
        answer=_network_words(found, times, slower),
        evidence=facts | {"one_worker_seconds": alone.seconds_step if alone else None},
        confidence="low" if found.verdict == "unclear" else confidence,
        next_step=_network_advice(found, times, findings, bool(slower)),
        details=_network_details(found, unseen),
    )


def _one_worker(findings: Findings) -> Prediction | None:
    """What one worker alone would do, if there were several."""
    run = findings.calibration
    return predict(run, ALONE) if run is not None and run.workers > 1 else None


def _slower_than_one(found: Network, times: StepTimes, alone: Prediction) -> str:
    """Whether several machines were a loss; inside one, a prediction is not as sure as that."""
    if found.machines < 2 or times.are_few or not is_slower(times.mean, alone.seconds_step):
        return ""
    return (
        f"the {found.machines:,} machines took {times.mean / alone.seconds_step:.1f} times as long "
        f"as one worker alone would, {in_time(alone.seconds_step)} a step"
    )


def _unseen_hosts(evidence: Evidence, found: Network) -> list[str]:
    """Machines of the run whose traffic is not known."""
    seen = {traffic.host for traffic in found.traffic}
    return [host for host in evidence.hosts if host not in seen]


def _waits_inside(found: Network, times: StepTimes) -> bool:
    """Whether workers wait long though no network is between them."""
    is_long = found.exposed_seconds >= NETWORK_IS_BOTTLENECK.value * times.mean
    return found.verdict == "single machine" and is_long


def _network_words(found: Network, times: StepTimes, slower: str) -> str:
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
        f"({in_percent(found.network_share)}) waiting for the network; on an infinite network "
        f"they would take the rest, {in_time(found.infinite_network_seconds)}."
    )
    more = [_why_unclear(found, times)] if found.verdict == "unclear" else []
    more += [slower] if slower else []
    joined = "; ".join(more)
    return f"{words} {joined[0].upper()}{joined[1:]}." if more else words


def _network_details(found: Network, unseen: Sequence[str]) -> tuple[str, ...]:
    """What the verdict was held against."""
    if found.verdict == "single machine" or not np.isfinite(found.network_share):
        return ()
    details = []
    if found.model_infinite_seconds is not None:
        details.append(
            "Without the network, compute measured alone and the other phases add up to "
            f"{in_time(found.model_infinite_seconds)}."
        )
    if found.model_network_seconds is not None:
        waiting = in_time_range(*found.model_network_seconds)
        details.append(f"An exchange measured alone predicts {waiting} of waiting.")
    if found.agrees is not None:
        relation = "agrees" if found.agrees else "does not agree"
        details.append(f"What was measured alone {relation} with the run.")
    if found.traffic:
        busiest = max(found.traffic, key=lambda traffic: traffic.bytes_per_second)
        words = f"{busiest.host} sent {in_bits_per_second(busiest.bytes_per_second)}"
        if busiest.capacity:
            words += (
                f" of {in_bits_per_second(busiest.capacity)} ({busiest.capacity_source}, "
                f"{in_percent(busiest.bytes_per_second / busiest.capacity)})"
            )
        details.append(f"{words}.")
    if found.traffic and unseen:
        few = " and ".join(unseen[:3]) + " …" * (len(unseen) > 3)
        details.append(f"What {few} sent is not known.")
    return tuple(details)


def _why_unclear(found: Network, times: StepTimes) -> str:
    if times.are_few:
        return "but too few steps were made"
    no, yes = NETWORK_IS_NOT_BOTTLENECK.value, NETWORK_IS_BOTTLENECK.value
    if no <= found.network_share < yes:
        return f"that is between {in_percent(no)} (no) and {in_percent(yes)} (yes)"
    if found.network_share >= yes and not found.is_explained:
        return (
            f"the bytes of an exchange need only {in_time(found.exchange_seconds or 0.0)}, so "
            "the workers must be waiting for something else"
        )
    return "but the machines are not known"


def _network_advice(found: Network, times: StepTimes, findings: Findings, is_loss: bool) -> str:
    straggler = straggler_words(found, times)
    if found.verdict == "single machine":
        if not straggler and _waits_inside(found, times):
            return (
                "Start a new run that exchanges less: fewer workers, more tokens between two "
                'exchanges (batches.tokens_per_step), or distributed.compression = "bf16".'
            )
        return straggler or "Nothing to do."
    if found.verdict == "yes":
        advice = f"{_remedy(findings)} The what-if table has more."
    elif is_loss:
        advice = "" if straggler else "Train on one machine, or give each worker more to do."
    elif found.verdict == "unclear" and not times.are_few:
        advice = "Run `dragoman check` to measure machines and links again."
    else:
        advice = "Let the run make more steps." if found.verdict == "unclear" else ""
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
        f"fastest: look at {'that machine' if found.machines > 1 else 'what else runs beside it'}"
        + (", or let distributed.balance give it fewer rows." if found.machines > 1 else ".")
    )


def _remedy(findings: Findings) -> str:
    """The way to send less that gives up the least of those that help."""
    run = findings.calibration
    if run is None:
        return "Send less in a new run: 16 bits (distributed.compression) or local steps."
    ways = {}
    if run.compression == "none":
        ways['Start a new run with distributed.compression = "bf16"'] = Scenario(compression="bf16")
    if run.local_steps == 1:
        way = choose_local_steps(run)
        steps = f"{way.local_steps} local steps in {way.compression}"
        ways[f'Start a new run with distributed.sync = "auto" ({steps})'] = way
    if not ways:
        return (
            "Start a new run with more distributed.local_steps, or cut them into "
            "distributed.local_fragments."
        )
    alone = predict(run, ALONE)
    best = choose_way([predict(run, way, name) for name, way in ways.items()], alone)
    if is_slower(best.seconds_step, alone.seconds_step):
        return (
            "Train on one machine: even sending less, a step is predicted to take "
            f"{in_time(best.seconds_step)}, against {in_time(alone.seconds_step)} for one worker."
        )
    more = "A faster link costs no quality."
    if best.local_steps == run.local_steps:
        more = f"{'L' if run.local_steps == 1 else 'More l'}ocal steps or a faster link save more."
    return f"{best.label}: {in_time(best.seconds_step)} a step is predicted. {more}"
