"""A run's own measurements, as a what-if needs them."""

import math
import time
from pathlib import Path

import numpy as np

from dragoman.errors import UserError
from dragoman.report.bottleneck import (
    BACKWARD_SHARE,
    Network,
    StepTimes,
    judge_network,
    measure_steps,
    steady_steps,
)
from dragoman.report.evidence import Evidence, load_evidence
from dragoman.report.whatif import COMPRESSED, Calibration, ring_bytes


def load_calibration(run: Path) -> Calibration:
    """Read what `dragoman whatif RUN` starts from."""
    evidence = load_evidence(run, time.time())
    times = measure_steps(evidence.history.train)
    calibration = calibrate(evidence, times, judge_network(evidence, times)) if times else None
    if calibration is None:
        raise UserError(
            f"{run} has no steps or no calibration line yet: a prediction needs both; "
            "let the run make a few steps first"
        )
    return calibration


def calibrate(evidence: Evidence, times: StepTimes, network: Network) -> Calibration | None:
    """Join the step's phases, the calibration line and the links; None if too little is known."""
    line = evidence.history.calibration
    gradient_bytes = _gradient_bytes(evidence)
    compute = times.phases["compute"]
    if not gradient_bytes or not math.isfinite(compute):
        return None
    steady = steady_steps(evidence.history.train)
    links = evidence.history.links
    goodputs = [link.goodput_bytes_per_second for link in links if link.goodput_bytes_per_second]
    machines = max(1, network.machines)
    local_steps = _local_steps(evidence)
    # Where nobody measured an exchange, all of it is taken to have been exposed.
    exchange = network.communication_seconds or _known(network.network_seconds) * local_steps
    overhead = max(0.0, exchange - (network.theory_seconds or 0.0))
    micro_batches = _micro_batches(evidence, float(np.nanmedian(steady.slots)))
    could_hide = min(exchange, BACKWARD_SHARE / micro_batches * compute)
    hidden = exchange - _known(network.network_seconds) * local_steps
    compression = line.compression if line and line.compression in COMPRESSED else "none"
    return Calibration(
        machines=machines,
        workers=evidence.workers,
        gradient_bytes=gradient_bytes,
        tokens_per_step=float(np.nanmean(steady.target_tokens)),
        seconds_compute=compute,
        seconds_optimizer=_known(times.phases["optimizer"]),
        seconds_fixed=_known(times.phases["data"]) + _known(times.phases["other"]),
        seconds_straggling=_known(network.exposed_seconds - network.network_seconds),
        seconds_step=times.mean,
        bytes_per_second=min(goodputs, default=math.inf),
        latency_seconds=max((link.latency_seconds or 0.0 for link in links), default=0.0),
        seconds_overhead=overhead / COMPRESSED[compression],
        overlap=min(max(hidden / could_hide, 0.0), 1.0) if could_hide > 0 else 0.0,
        compression=compression,
        local_steps=local_steps,
        reduces_inside=_reduces_inside(
            line.bytes_per_step if line else None,
            COMPRESSED[compression] * gradient_bytes,
            machines,
            evidence.workers,
        ),
        micro_batches=micro_batches,
        device=evidence.life.device if evidence.life else "cpu",
    )


def _gradient_bytes(evidence: Evidence) -> float | None:
    """Four bytes a parameter, from the calibration or else from the model."""
    line = evidence.history.calibration
    if line and line.parameters:
        return 4 * line.parameters
    if line and line.gradient_bytes:
        return line.gradient_bytes
    model = evidence.provenance.get("model")
    parameters = model.get("parameters") if isinstance(model, dict) else None
    return 4.0 * parameters if isinstance(parameters, int) else None


def _local_steps(evidence: Evidence) -> int:
    if evidence.setting("distributed", "sync") != "local":
        return 1
    return max(1, int(evidence.setting("distributed", "local_steps") or 1))


def _micro_batches(evidence: Evidence, slots: float) -> int:
    """How often a worker computes before gradients are exchanged."""
    rows_at_once = evidence.life.rows_per_device if evidence.life else None
    row_tokens = evidence.setting("batches", "row_tokens")
    if not rows_at_once or not isinstance(row_tokens, int) or not math.isfinite(slots):
        return 1
    return max(1, math.ceil(slots / row_tokens / evidence.workers / rows_at_once))


def _reduces_inside(sent: float | None, gradient_bytes: float, machines: int, workers: int) -> bool:
    """Whether the bytes of a step are those of a ring of machines rather than of workers."""
    if not sent or machines < 2 or machines == workers:
        return True
    by_machine = ring_bytes(gradient_bytes, machines, workers, inside=True)
    by_worker = ring_bytes(gradient_bytes, machines, workers, inside=False)
    return abs(sent - by_machine) <= abs(sent - by_worker)


def _known(value: float) -> float:
    return value if math.isfinite(value) else 0.0
