"""The answer about the network between the machines: a row for each reason."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial

import numpy as np

from dragoman.prediction.step_model import ALONE, Prediction, Scenario, predict
from dragoman.prediction.sync_choice import choose_local_steps, choose_way, is_slower
from dragoman.report.answers.answer import Answer, Confidence, Row, facts_of, unknown
from dragoman.report.evidence import Evidence
from dragoman.report.findings.analysis import Findings
from dragoman.report.findings.bottleneck import Network, NetworkReason
from dragoman.report.findings.step_times import StepTimes
from dragoman.thresholds import NETWORK_IS_BOTTLENECK, NETWORK_IS_NOT_BOTTLENECK
from dragoman.wording import (
    in_bits_per_second,
    in_percent,
    in_time,
    in_time_range,
    plural,
)

_QUESTION = "Was the network the bottleneck?"


@dataclass(frozen=True)
class _Case:
    """What a row may speak of."""

    findings: Findings
    found: Network
    times: StepTimes
    workers: int
    unseen: tuple[str, ...]  # Machines of the run whose traffic is not known.
    alone: Prediction | None  # One worker alone, if there were several.

    @property
    def slower(self) -> str:
        """Whether several machines were a loss; inside one, a prediction is not as sure as that."""
        found, times, alone = self.found, self.times, self.alone
        if alone is None or found.machines < 2 or times.are_few:
            return ""
        # One long step may be an accident.
        if not is_slower(min(times.mean, times.median), alone.seconds_step):
            return ""
        return (
            f"The {found.machines:,} machines took {times.mean / alone.seconds_step:.1f} times "
            f"as long as a single worker would, {in_time(alone.seconds_step)} per step."
        )

    @property
    def straggler(self) -> str:
        return straggler_words(self.found, self.times)


def network_bottleneck(evidence: Evidence, findings: Findings) -> Answer:
    """Judge by exposed communication, against what bytes and links can explain."""
    found, times = findings.network, findings.latest_times
    if found is None or times is None:
        words = "No step has been measured yet."
        return unknown(
            "network_bottleneck", _QUESTION, words, "Let the run continue for a few steps."
        )
    seen = {traffic.host for traffic in found.traffic}
    unseen = tuple(host for host in evidence.hosts if host not in seen)
    run = findings.calibration
    alone = predict(run, ALONE) if run is not None and run.workers > 1 else None
    case = _Case(findings, found, times, evidence.workers, unseen, alone)
    facts = facts_of(found) | {
        "seconds_per_step": times.mean,
        "steps": times.steps,
        "one_worker_seconds": alone.seconds_step if alone else None,
    }
    row = ROWS[found.reason]
    return row.answer("network_bottleneck", _QUESTION, facts, case, _details(found, unseen))


def _workers(case: _Case) -> str:
    return plural(case.workers, "worker")


def _share(case: _Case) -> str:
    slower = "; slower than one worker" if case.slower else ""
    return f"{in_percent(case.found.network_share)} of each step{slower}"


def _and(why: str | Callable[[_Case], str]) -> Callable[[_Case], str]:
    """How long steps wait for the network, and why no more can be said, if so."""

    def words(case: _Case) -> str:
        found, times = case.found, case.times
        waiting = (
            f"Steps take {in_time(times.mean)} on average, {in_time(found.network_seconds)} of "
            f"it ({in_percent(found.network_share)}) waiting for the network; with an infinitely "
            f"fast network they would take {in_time(found.infinite_network_seconds)}."
        )
        reason = why(case) if callable(why) else why
        more = (
            f"{one[0].upper()}{one[1:].removesuffix('.')}." for one in (reason, case.slower) if one
        )
        return " ".join((waiting, *more))

    return words


def _advice(first: str | Callable[[_Case], str]) -> Callable[[_Case], str]:
    """What to do, and who holds the others up."""

    def words(case: _Case) -> str:
        advice = first(case) if callable(first) else first
        return f"{advice} {case.straggler}".strip() or "Nothing to do."

    return words


def _if_not_a_loss(advice: str) -> Callable[[_Case], str]:
    """Unless one worker alone would be faster, which is worth more than anything else."""

    def words(case: _Case) -> str:
        if case.slower:
            return "" if case.straggler else "Train on one machine, or give each worker more work."
        return advice

    return words


def _takes_only(case: _Case) -> str:
    return (
        "sending the bytes of an exchange takes only "
        f"{in_time(case.found.exchange_seconds or 0.0)}, so the workers must be waiting for "
        "something else"
    )


def _remedy_inside(found: Network) -> str:
    """What to do about workers of one machine that wait for each other."""
    if not found.is_explained:
        return "Look at what else keeps the machine's cores busy, or start fewer workers."
    return (
        "Start a new run that communicates less: fewer workers, more tokens between exchanges "
        '(batches.tokens_per_step), or distributed.compression = "bf16".'
    )


def _confidence(case: _Case) -> Confidence:
    return "high" if case.found.agrees and not case.unseen else "medium"


_MEASURE_AGAIN = _advice(
    _if_not_a_loss("Run `dragoman check` to measure machines and links again.")
)
_MORE_STEPS = _advice(_if_not_a_loss("Let the run continue for more steps."))

_unclear = partial(Row[_Case], verdict="unclear", confidence="low", note=_share)

ROWS: Mapping[NetworkReason, Row[_Case]] = {
    "single machine": Row(
        verdict="single machine",
        confidence="high",
        note=_workers,
        words="All workers are on one machine: no network was involved.",
        advice=lambda case: case.straggler or "Nothing to do.",
    ),
    "waits inside one machine": Row(
        verdict="single machine",
        tone="caution",
        confidence=lambda case: "high" if case.found.is_explained else "medium",
        note=_workers,
        words=lambda case: (
            "All workers are on one machine: no network was involved. Yet they spend "
            f"{in_time(case.found.exposed_seconds)} of each step of {in_time(case.times.mean)} "
            f"({in_percent(case.times.share('exposed communication'))}) waiting for each other."
            + ("" if case.found.is_explained else f" {_takes_only(case).capitalize()}.")
        ),
        advice=lambda case: case.straggler or _remedy_inside(case.found),
    ),
    "machines not known": _unclear(
        words=_and("but the machines are unknown"), advice=_MEASURE_AGAIN
    ),
    "waits not known": Row(
        verdict="unclear",
        confidence="low",
        words="The log does not say how long steps waited for gradients from other machines.",
        advice=lambda case: (_MORE_STEPS if case.times.are_few else _MEASURE_AGAIN)(case),
    ),
    "few steps": _unclear(words=_and("but there are too few steps so far"), advice=_MORE_STEPS),
    "small share": Row(
        verdict="no",
        tone=lambda case: "caution" if case.slower else "good",
        confidence=_confidence,
        note=_share,
        words=_and(""),
        advice=_advice(_if_not_a_loss("")),
    ),
    "middling share": _unclear(
        words=_and(
            f"that is between {in_percent(NETWORK_IS_NOT_BOTTLENECK.value)} (no) and "
            f"{in_percent(NETWORK_IS_BOTTLENECK.value)} (yes)"
        ),
        advice=_MEASURE_AGAIN,
    ),
    "unexplained wait": _unclear(
        words=_and(lambda case: f"but {_takes_only(case)}"),
        advice=_MEASURE_AGAIN,
    ),
    "large share": Row(
        verdict="yes",
        tone="bad",
        confidence=_confidence,
        note=_share,
        words=_and(""),
        advice=_advice(lambda case: f"{_remedy(case.findings)} The what-if table has more."),
    ),
}


def _details(found: Network, unseen: Sequence[str]) -> tuple[str, ...]:
    """What the verdict was held against."""
    if found.machines == 1 or not np.isfinite(found.network_share):
        return ()
    details = []
    if found.model_infinite_seconds is not None:
        details.append(
            "Without the network, compute measured in isolation and the other phases add up to "
            f"{in_time(found.model_infinite_seconds)}."
        )
    if found.model_network_seconds is not None:
        waiting = in_time_range(*found.model_network_seconds)
        details.append(f"An exchange measured in isolation predicts {waiting} of waiting.")
    if found.agrees is not None:
        relation = "agrees" if found.agrees else "does not agree"
        details.append(f"What was measured in isolation {relation} with the run.")
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
        details.append(f"Traffic of {few} is unknown.")
    return tuple(details)


def straggler_words(found: Network, times: StepTimes) -> str:
    """Name the worker that the others wait for, if there is one."""
    straggler = found.straggler
    if straggler is None or not straggler.is_worth_naming(times.mean):
        return ""
    share = straggler.seconds_behind / times.mean
    where = f" on {straggler.host}" if straggler.host else ""
    more = "let distributed.balance give it fewer rows"
    if found.machines == 1 or found.is_balanced:
        more = ""
    return (
        f"Worker {straggler.worker}{where} is the slowest in "
        f"{in_percent(straggler.share_of_steps)} of steps and computes "
        f"{in_time(straggler.seconds_behind)} ({in_percent(share)} of a step) longer than the "
        f"fastest: look at {'that machine' if found.machines > 1 else 'what else runs beside it'}"
        + (f", or {more}." if more else ".")
    )


def _remedy(findings: Findings) -> str:
    """The way to send less that gives up the least of those that help."""
    run = findings.calibration
    if run is None:
        return "Send less in a new run: 16-bit gradients (distributed.compression) or local steps."
    ways = {}
    if run.compression == "none":
        ways['Start a new run with distributed.compression = "bf16"'] = Scenario(compression="bf16")
    if run.local_steps == 1:
        way = choose_local_steps(run)
        steps = f"{way.local_steps} local steps in {way.compression}"
        ways[f'Start a new run with distributed.sync = "auto" ({steps})'] = way
    if not ways:
        return (
            "Start a new run with more distributed.local_steps, or with "
            "distributed.local_fragments."
        )
    alone = predict(run, ALONE)
    best = choose_way([predict(run, way, name) for name, way in ways.items()], alone)
    if is_slower(best.seconds_step, alone.seconds_step):
        return (
            "Train on one machine: even when sending less, a step is predicted to take "
            f"{in_time(best.seconds_step)}, against {in_time(alone.seconds_step)} for one worker."
        )
    more = "A faster link would not affect quality."
    if best.local_steps == run.local_steps:
        more = f"{'L' if run.local_steps == 1 else 'More l'}ocal steps or a faster link save more."
    return f"{best.label}: predicted {in_time(best.seconds_step)} per step. {more}"
