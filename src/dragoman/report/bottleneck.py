"""Where the step time went: data, compute, network, optimizer, other."""

from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from dragoman.report.evidence import Evidence
from dragoman.report.records import TrainSteps
from dragoman.report.thresholds import (
    EXPLAINED_WAIT,
    MODEL_AGREEMENT,
    NETWORK_IS_BOTTLENECK,
    NETWORK_IS_NOT_BOTTLENECK,
    WARM_UP_STEPS,
)
from dragoman.report.traffic import Traffic, measure_traffic

PHASES = {
    "data": "seconds_data",
    "compute": "seconds_compute",
    "exposed communication": "seconds_exposed_communication",
    "optimizer": "seconds_optimizer",
    "other": "seconds_other",
}
BACKWARD_SHARE = 2 / 3  # Of compute: the backward pass does twice the forward's arithmetic.
_FEWEST_STEADY_STEPS = 10


@dataclass(frozen=True)
class StepTimes:
    """Step times, evaluation and checkpoints excluded; the first steps of a start left out."""

    steps: int
    left_out: int
    mean: float
    median: float
    low: float  # 5th percentile.
    high: float  # 95th percentile.
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

    verdict: Literal["yes", "no", "unclear", "single machine"]
    machines: int
    exposed_seconds: float
    network_seconds: float  # Exposed, less the wait for the slowest worker.
    network_share: float
    infinite_network_seconds: float
    straggler: Straggler | None
    bytes_per_step: float | None  # In theory, sent by one machine.
    all_reduce_seconds: float | None  # A gradient-sized buffer alone, measured.
    theory_seconds: float | None  # bytes_per_step / goodput, and latency.
    model_seconds: tuple[float, float] | None  # All communication hidden, and none of it.
    model_infinite_seconds: float | None
    agrees: bool | None
    traffic: tuple[Traffic, ...]

    @property
    def communication_seconds(self) -> float | None:
        """Time of one exchange, measured or else in theory."""
        return self.all_reduce_seconds or self.theory_seconds


def steady_steps(train: TrainSteps) -> TrainSteps:
    """All steps but the first few of each life, if enough are left."""
    if not len(train):
        return train
    warm = np.zeros(len(train), dtype=bool)
    for life in np.unique(train.life):
        places: NDArray[np.int64] = np.flatnonzero(train.life == life)
        warm[places[int(WARM_UP_STEPS.value) :]] = True
    warm &= np.isfinite(train.seconds)
    return train.take(warm) if warm.sum() >= _FEWEST_STEADY_STEPS else train


def measure_steps(train: TrainSteps) -> StepTimes | None:
    """Distribution and phases of the step time."""
    steady = steady_steps(train)
    seconds = steady.seconds[np.isfinite(steady.seconds)]
    if not len(seconds):
        return None
    low, median, high = np.percentile(seconds, [5, 50, 95])
    return StepTimes(
        steps=len(seconds),
        left_out=len(train) - len(seconds),
        mean=float(seconds.mean()),
        median=float(median),
        low=float(low),
        high=float(high),
        phases={name: _mean(getattr(steady, field)) for name, field in PHASES.items()},
    )


def judge_network(evidence: Evidence, times: StepTimes) -> Network:
    """Weigh what the steps waited for against what the links can carry."""
    steady = steady_steps(evidence.history.train)
    machines = len(evidence.hosts)
    exposed = times.phases["exposed communication"]
    straggler = _find_straggler(evidence, steady)
    waited = min(straggler.seconds if straggler else 0.0, exposed)
    network_seconds = exposed - waited
    calibration = evidence.history.calibration
    theory = exchange_seconds(evidence)
    all_reduce = calibration.seconds_all_reduce if calibration else None
    communication = all_reduce or theory
    model_infinite, model = None, None
    if calibration and calibration.seconds_compute:
        others = (times.phases[name] for name in ("data", "optimizer", "other"))
        model_infinite = calibration.seconds_compute + waited + float(np.nansum(list(others)))
        if communication is not None:
            hidden = BACKWARD_SHARE * calibration.seconds_compute
            least = model_infinite + max(0.0, communication - hidden)
            model = (least, model_infinite + communication)
    tolerance = MODEL_AGREEMENT.value
    share = network_seconds / times.mean
    return Network(
        verdict=_network_verdict(machines, steady, share, network_seconds, communication),
        machines=machines,
        exposed_seconds=exposed,
        network_seconds=network_seconds,
        network_share=share,
        infinite_network_seconds=times.mean - network_seconds,
        straggler=straggler,
        bytes_per_step=calibration.bytes_per_step if calibration else None,
        all_reduce_seconds=all_reduce,
        theory_seconds=theory,
        model_seconds=model,
        model_infinite_seconds=model_infinite,
        agrees=(1 - tolerance) * model[0] <= times.mean <= (1 + tolerance) * model[1]
        if model
        else None,
        traffic=measure_traffic(evidence, evidence.history.train) if machines > 1 else (),
    )


def exchange_seconds(evidence: Evidence) -> float | None:
    """Time of one gradient exchange in theory: bytes over goodput, and latency of every hop."""
    calibration = evidence.history.calibration
    goodputs = [link.goodput_bytes_per_second for link in evidence.history.links]
    known = [goodput for goodput in goodputs if goodput]
    if calibration is None or not calibration.bytes_per_step or not known:
        return None
    latency = max((link.latency_seconds or 0.0 for link in evidence.history.links), default=0.0)
    hops = 2 * (len(evidence.hosts) - 1)
    return calibration.bytes_per_step / min(known) + hops * latency


def _network_verdict(
    machines: int,
    steady: TrainSteps,
    share: float,
    network_seconds: float,
    communication: float | None,
) -> Literal["yes", "no", "unclear", "single machine"]:
    if machines == 1:
        return "single machine"
    if not np.isfinite(share) or len(steady) < _FEWEST_STEADY_STEPS or not machines:
        return "unclear"
    if share < NETWORK_IS_NOT_BOTTLENECK.value:
        return "no"
    # Workers that wait much longer than the bytes take are waiting for something else.
    explained = communication is None or communication >= EXPLAINED_WAIT.value * network_seconds
    return "yes" if share >= NETWORK_IS_BOTTLENECK.value and explained else "unclear"


def _find_straggler(evidence: Evidence, steady: TrainSteps) -> Straggler | None:
    known = np.isfinite(steady.slowest_seconds) & np.isfinite(steady.seconds_compute)
    if not known.any() or evidence.workers < 2:
        return None
    waits = np.clip(steady.slowest_seconds[known] - steady.seconds_compute[known], 0, None)
    exposed = np.nan_to_num(steady.seconds_exposed_communication[known])
    workers, counts = np.unique(steady.slowest_worker[known], return_counts=True)
    worker = int(workers[np.argmax(counts)]) if np.isfinite(workers).any() else 0
    hosts = evidence.life.hosts if evidence.life else ()
    return Straggler(
        worker=worker,
        host=hosts[worker] if worker < len(hosts) else "",
        share_of_steps=float(counts.max() / counts.sum()),
        seconds=float(np.minimum(waits, exposed).mean()),
    )


def _mean(values: NDArray[np.float64]) -> float:
    known = values[np.isfinite(values)]
    return float(known.mean()) if len(known) else float("nan")
