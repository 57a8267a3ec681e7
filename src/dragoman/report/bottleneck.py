"""Where the step time went: data, compute, network, optimizer, other."""

from dataclasses import dataclass, replace
from typing import Literal

import numpy as np

from dragoman.report.evidence import Evidence
from dragoman.report.evidence.records import TrainSteps
from dragoman.report.series import mean_of_known
from dragoman.report.thresholds import (
    EXPLAINED_WAIT,
    MODEL_AGREEMENT,
    NETWORK_IS_BOTTLENECK,
    NETWORK_IS_NOT_BOTTLENECK,
    STEADY_STEPS_NEEDED,
    WARM_UP_STEPS,
)
from dragoman.report.traffic import Traffic, measure_traffic
from dragoman.report.whatif import BACKWARD_SHARE

NetworkVerdict = Literal["yes", "no", "unclear", "single machine"]

PHASES = {
    "data": "seconds_data",
    "compute": "seconds_compute",
    "exposed communication": "seconds_exposed_communication",
    "optimizer": "seconds_optimizer",
    "other": "seconds_other",
}


@dataclass(frozen=True)
class StepTimes:
    """Step times, evaluation and checkpoints excluded; the first steps of a start left out."""

    steps: int
    left_out: int
    mean: float
    median: float
    percentile_5: float
    percentile_95: float
    phases: dict[str, float]  # Mean seconds of each, NaN if not known.


@dataclass(frozen=True)
class Straggler:
    """The worker that the others wait for most often."""

    worker: int
    host: str
    share_of_steps: float
    seconds: float  # Mean wait of worker 0 for the slowest one.


@dataclass(frozen=True)
class Network:
    """Whether the workers wait for the network, and how well that is understood."""

    verdict: NetworkVerdict
    machines: int
    local_steps: int  # From one exchange to the next.
    exposed_seconds: float
    network_seconds: float  # Exposed, less the wait for the slowest worker.
    network_share: float
    infinite_network_seconds: float
    straggler: Straggler | None
    bytes_per_step: float | None  # In theory, sent by one machine.
    all_reduce_seconds: float | None  # A gradient-sized buffer alone, measured.
    theory_seconds: float | None  # Of the same, from bytes, goodput and latency.
    model_seconds: tuple[float, float] | None  # All communication hidden, and none of it.
    model_infinite_seconds: float | None
    agrees: bool | None
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


def steady_steps(train: TrainSteps) -> TrainSteps:
    """All steps but the first few of each life, if enough are left."""
    warm = np.zeros(len(train), dtype=bool)
    for life in np.unique(train.life):
        warm[np.flatnonzero(train.life == life)[int(WARM_UP_STEPS.value) :]] = True
    warm &= np.isfinite(train.seconds)
    return train.take(warm) if warm.sum() >= STEADY_STEPS_NEEDED.value else train


def measure_steps(train: TrainSteps) -> StepTimes | None:
    """Distribution and phases of the step time."""
    steady = steady_steps(train)
    seconds = steady.seconds[np.isfinite(steady.seconds)]
    if not len(seconds):
        return None
    low, median, high = map(float, np.percentile(seconds, [5, 50, 95]))
    return StepTimes(
        steps=len(seconds),
        left_out=len(train) - len(seconds),
        mean=float(seconds.mean()),
        median=median,
        percentile_5=low,
        percentile_95=high,
        phases={name: mean_of_known(getattr(steady, field)) for name, field in PHASES.items()},
    )


def judge_network(evidence: Evidence, times: StepTimes) -> Network:
    """Weigh what the latest workers' steps waited for against what their links can carry."""
    steady = steady_steps(evidence.history.latest_steps)
    calibration, local_steps = evidence.history.calibration, evidence.local_steps
    exposed = times.phases["exposed communication"]
    straggler = _find_straggler(evidence, steady)
    waited = min(straggler.seconds if straggler else 0.0, exposed)
    all_reduce = calibration.exchange_alone if calibration else None
    theory = _exchange_in_theory(evidence)
    model_infinite, model = None, None
    if calibration and calibration.seconds_compute:
        others = (times.phases[name] for name in ("data", "optimizer", "other"))
        model_infinite = calibration.seconds_compute + waited + float(np.nansum(list(others)))
        model = _hidden_or_not(
            model_infinite, calibration.seconds_compute, all_reduce or theory, local_steps
        )
    network = Network(
        verdict="unclear",
        machines=len(evidence.hosts),
        local_steps=local_steps,
        exposed_seconds=exposed,
        network_seconds=exposed - waited,
        network_share=(exposed - waited) / times.mean,
        infinite_network_seconds=times.mean - (exposed - waited),
        straggler=straggler,
        bytes_per_step=calibration.bytes_per_step if calibration else None,
        all_reduce_seconds=all_reduce,
        theory_seconds=theory,
        model_seconds=model,
        model_infinite_seconds=model_infinite,
        agrees=_lies_within(times.mean, model) if model else None,
        traffic=measure_traffic(evidence) if len(evidence.hosts) > 1 else (),
    )
    is_enough = len(steady) >= STEADY_STEPS_NEEDED.value
    return replace(network, verdict=_verdict(network) if is_enough else "unclear")


def _exchange_in_theory(evidence: Evidence) -> float | None:
    """Bytes over the goodput of the slowest link, and a latency for every hop."""
    calibration = evidence.history.calibration
    if not calibration or not calibration.bytes_per_step or not np.isfinite(evidence.goodput):
        return None
    sent = evidence.local_steps * calibration.bytes_per_step
    hops = 2 * (len(evidence.hosts) - 1) * evidence.local_fragments
    return sent / evidence.goodput + hops * evidence.latency


def _hidden_or_not(
    infinite: float, compute: float, exchange: float | None, local_steps: int
) -> tuple[float, float] | None:
    """The step with all of an exchange hidden that can be, and with nothing of it hidden."""
    if exchange is None:
        return None
    could_hide = BACKWARD_SHARE * compute * local_steps
    return infinite + max(
        0.0, exchange - could_hide
    ) / local_steps, infinite + exchange / local_steps


def _lies_within(measured: float, predicted: tuple[float, float]) -> bool:
    tolerance = MODEL_AGREEMENT.value
    return (1 - tolerance) * predicted[0] <= measured <= (1 + tolerance) * predicted[1]


def _verdict(network: Network) -> NetworkVerdict:
    if network.machines == 1:
        return "single machine"
    if not network.machines or not np.isfinite(network.network_share):
        return "unclear"
    if network.network_share < NETWORK_IS_NOT_BOTTLENECK.value:
        return "no"
    # Workers that wait much longer than the bytes take are waiting for something else.
    is_large = network.network_share >= NETWORK_IS_BOTTLENECK.value
    return "yes" if is_large and network.is_explained else "unclear"


def _find_straggler(evidence: Evidence, steady: TrainSteps) -> Straggler | None:
    known = np.isfinite(steady.slowest_seconds) & np.isfinite(steady.seconds_compute)
    if not known.any() or evidence.workers < 2:
        return None
    waits = np.clip(steady.slowest_seconds[known] - steady.seconds_compute[known], 0, None)
    exposed = np.nan_to_num(steady.seconds_exposed_communication[known])
    workers, counts = np.unique(np.nan_to_num(steady.slowest_worker[known]), return_counts=True)
    worker = int(workers[np.argmax(counts)])
    hosts = evidence.life.hosts if evidence.life else ()
    return Straggler(
        worker=worker,
        host=hosts[worker] if worker < len(hosts) else "",
        share_of_steps=float(counts.max() / counts.sum()),
        seconds=float(np.minimum(waits, exposed).mean()),
    )
