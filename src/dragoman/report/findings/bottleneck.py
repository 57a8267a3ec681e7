"""Whether the workers wait for the network, or for one of them."""

import math
from dataclasses import dataclass, replace
from typing import Literal

import numpy as np

from dragoman.prediction.network import hideable_seconds, ring_hops, travelling_steps
from dragoman.records import Calibration
from dragoman.report.evidence import Evidence
from dragoman.report.evidence.series import mean_of_known
from dragoman.report.evidence.step_series import TrainSteps
from dragoman.report.findings.intervals import lowest_mean
from dragoman.report.findings.step_times import StepTimes, steady_steps
from dragoman.report.findings.traffic import Traffic, measure_traffic
from dragoman.thresholds import (
    EXPLAINED_WAIT,
    MODEL_AGREEMENT,
    NETWORK_IS_BOTTLENECK,
    NETWORK_IS_NOT_BOTTLENECK,
    SAME_SPEED,
    STRAGGLER_WORTH_NAMING,
)

NetworkReason = Literal[
    "single machine",
    "waits inside one machine",
    "machines not known",
    "waits not known",
    "few steps",
    "small share",
    "middling share",
    "unexplained wait",
    "large share",
]


@dataclass(frozen=True)
class Straggler:
    """The worker that the others wait for most often."""

    worker: int
    host: str
    share_of_steps: float
    seconds: float  # Mean wait of worker 0 for the slowest one.
    seconds_behind: float  # Its compute beyond the fastest one's, less where it is that itself.
    is_behind: bool  # For certain, not by chance.

    def is_worth_naming(self, step_seconds: float) -> bool:
        """Whether it holds the others up for more than a moment."""
        return self.is_behind and self.seconds_behind > STRAGGLER_WORTH_NAMING.value * step_seconds


@dataclass(frozen=True)
class Network:
    """Whether the workers wait for the network, and how well that is understood."""

    reason: NetworkReason
    machines: int
    local_steps: int  # From one exchange to the next.
    exposed_seconds: float
    network_seconds: float  # Exposed, less the wait for the slowest worker.
    network_share: float
    longest_wait_seconds: float  # Of the fastest worker: exposed, and what worker 0 takes longer.
    infinite_network_seconds: float
    straggler: Straggler | None
    is_balanced: bool  # Whether a worker's rows go by its speed.
    bytes_per_step: float | None  # In theory, sent by one machine.
    all_reduce_seconds: float | None  # A gradient-sized buffer alone, measured.
    theory_seconds: float | None  # Of the same, from bytes, goodput and latency.
    model_network_seconds: tuple[float, float] | None  # All that can be is hidden, and nothing.
    model_infinite_seconds: float | None
    agrees: bool | None  # What was measured with the steps, with what was measured before them.
    traffic: tuple[Traffic, ...]

    @property
    def exchange_seconds(self) -> float | None:
        """Time of one exchange, measured or else in theory."""
        return self.all_reduce_seconds or self.theory_seconds

    @property
    def is_explained(self) -> bool:
        """Whether the bytes of an exchange can take as long as the workers wait."""
        exchange = self.exchange_seconds
        waited = self.local_steps * self.network_seconds
        return exchange is None or exchange >= EXPLAINED_WAIT.value * waited


def judge_network(evidence: Evidence, times: StepTimes) -> Network:
    """Weigh what the latest workers' steps waited for against what their links can carry."""
    steady = steady_steps(evidence.history.latest_steps)
    calibration, local_steps = evidence.history.calibration, evidence.local_steps
    exposed = times.phases["exposed communication"]
    straggler = _find_straggler(evidence, steady)
    waited = min(straggler.seconds if straggler else 0.0, exposed)
    all_reduce = _exchange_alone(calibration)
    theory = _exchange_in_theory(evidence)
    model_infinite, model = None, None
    if calibration and calibration.seconds_compute:
        others = (times.phases[name] for name in ("data", "optimizer", "other"))
        model_infinite = calibration.seconds_compute + waited + float(np.nansum(list(others)))
        if exchange := all_reduce or theory:
            hidden = _could_hide(evidence, steady, calibration.seconds_compute)
            model = max(0.0, exchange - hidden) / local_steps, exchange / local_steps
    ahead = mean_of_known(steady.seconds_compute - steady.fastest_seconds)
    network = Network(
        reason="waits not known",
        machines=len(evidence.hosts),
        local_steps=local_steps,
        exposed_seconds=exposed,
        network_seconds=exposed - waited,
        network_share=(exposed - waited) / times.mean,
        longest_wait_seconds=exposed + max(0.0, float(np.nan_to_num(ahead))),
        infinite_network_seconds=times.mean - (exposed - waited),
        straggler=straggler,
        is_balanced=calibration is not None and calibration.balanced_rows is not None,
        bytes_per_step=calibration.bytes_per_step if calibration else None,
        all_reduce_seconds=all_reduce,
        theory_seconds=theory,
        model_network_seconds=model,
        model_infinite_seconds=model_infinite,
        agrees=None,
        traffic=measure_traffic(evidence) if len(evidence.hosts) > 1 else (),
    )
    return replace(
        network, reason=_reason(network, times), agrees=_model_agrees(network, times.mean)
    )


def _exchange_alone(calibration: Calibration | None) -> float | None:
    """Seconds of an exchange, if what was summed is what an exchange of the run sums."""
    if calibration is None or calibration.compression == "powersgd":
        return None
    return calibration.seconds_all_reduce


def _exchange_in_theory(evidence: Evidence) -> float | None:
    """Bytes over the goodput of the slowest link, and a latency for every hop."""
    calibration = evidence.history.calibration
    if not calibration or not calibration.bytes_per_step or not np.isfinite(evidence.goodput):
        return None
    sent = evidence.local_steps * calibration.bytes_per_step
    hops = ring_hops(len(evidence.hosts)) * evidence.local_fragments
    return sent / evidence.goodput + hops * evidence.latency


def _could_hide(evidence: Evidence, steady: TrainSteps, compute: float) -> float:
    """Seconds of an exchange that can run beside the computing, as predictions have it."""
    if evidence.local_steps == 1:
        return hideable_seconds(compute, micro_batches_of(evidence, steady))
    steps = travelling_steps(evidence.local_steps, evidence.local_fragments, evidence.local_delay)
    return steps * compute


def micro_batches_of(evidence: Evidence, steady: TrainSteps) -> int:
    """How often a worker computes before gradients are exchanged."""
    rows_at_once = evidence.attempt.began.rows_per_device if evidence.attempt else 0
    rows = rows_of(evidence, steady)
    if not rows_at_once or rows is None:
        return 1
    return max(1, math.ceil(rows / evidence.workers / rows_at_once))


def rows_of(evidence: Evidence, steady: TrainSteps) -> float | None:
    """Rows of a step, of all workers together; None if nothing says so."""
    row_tokens = evidence.setting("batches", "row_tokens")
    slots = steady.slots[np.isfinite(steady.slots)]
    if not isinstance(row_tokens, int) or not len(slots):
        return None
    rows = float(np.median(slots)) / row_tokens
    return rows if rows >= evidence.workers else None  # Else a setting was edited.


def _model_agrees(network: Network, step_seconds: float) -> bool | None:
    """Whether a step without waiting, and the wait, are what was foretold; None if nothing was."""
    if network.model_infinite_seconds is None or not np.isfinite(network.network_seconds):
        return None
    compute = network.model_infinite_seconds
    foretold = [(network.infinite_network_seconds, compute, compute)]
    if network.model_network_seconds is not None:
        foretold.append((network.network_seconds, *network.model_network_seconds))
    # Whatever is too small to slow a step down agrees.
    slack = SAME_SPEED.value * step_seconds
    least, most = 1 - MODEL_AGREEMENT.value, 1 + MODEL_AGREEMENT.value
    return all(
        least * low - slack <= measured <= most * high + slack for measured, low, high in foretold
    )


def _reason(network: Network, times: StepTimes) -> NetworkReason:
    if network.machines == 1:
        is_long = network.exposed_seconds >= NETWORK_IS_BOTTLENECK.value * times.mean
        return "waits inside one machine" if is_long else "single machine"
    if not np.isfinite(network.network_share):
        return "waits not known"
    if times.are_few:
        return "few steps"
    if not network.machines:
        return "machines not known"
    if network.network_share < NETWORK_IS_NOT_BOTTLENECK.value:
        return "small share"
    if network.network_share < NETWORK_IS_BOTTLENECK.value:
        return "middling share"
    # Workers that wait much longer than the bytes take are waiting for something else.
    return "large share" if network.is_explained else "unexplained wait"


def _find_straggler(evidence: Evidence, steady: TrainSteps) -> Straggler | None:
    known = np.isfinite(steady.slowest_seconds) & np.isfinite(steady.seconds_compute)
    if not known.any() or evidence.workers < 2:
        return None
    steps = steady.take(known)
    workers, counts = np.unique(np.nan_to_num(steps.slowest_worker), return_counts=True)
    worker = int(workers[np.argmax(counts)])
    hosts = evidence.attempt.began.hosts if evidence.attempt else ()
    # Where workers are slower by turns, each is behind as often as ahead.
    ahead_or_behind = (steps.slowest_worker == worker).astype(float)
    ahead_or_behind -= steps.fastest_worker == worker
    behind = ahead_or_behind * np.nan_to_num(steps.slowest_seconds - steps.fastest_seconds)
    return Straggler(
        worker=worker,
        host=hosts[worker] if worker < len(hosts) else "",
        share_of_steps=float(counts.max() / counts.sum()),
        seconds=_wait_for_slowest(steps, evidence.local_steps, evidence.workers),
        seconds_behind=float(behind.mean()),
        is_behind=lowest_mean(behind) > 0,
    )


def _wait_for_slowest(steps: TrainSteps, local_steps: int, workers: int) -> float:
    """Mean seconds a step that worker 0 waits for the one that is last at a synchronization.

    Between two synchronizations a worker falls behind, or catches up, step by step. Of each step
    the slowest and the fastest worker are known; of the others nothing is counted.
    """
    _, rounds = np.unique((steps.step - 1) // local_steps, return_inverse=True)
    who = np.append(steps.slowest_worker, steps.fastest_worker)
    behind = np.append(steps.slowest_seconds, steps.fastest_seconds)
    behind = np.nan_to_num(behind - np.tile(steps.seconds_compute, 2))
    keys = np.tile(rounds, 2) * workers + np.clip(np.nan_to_num(who), 0, workers - 1).astype(int)
    keys, places = np.unique(keys, return_inverse=True)
    waits = np.zeros(rounds.max() + 1)
    np.maximum.at(waits, keys // workers, np.bincount(places, behind))
    exposed = np.bincount(rounds, np.nan_to_num(steps.seconds_exposed_communication))
    return float(np.minimum(waits, exposed).sum() / len(steps))
