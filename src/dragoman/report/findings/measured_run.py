"""A run's own measurements, as a what-if needs them."""

import math
from pathlib import Path

from dragoman.config import COMPRESSIONS
from dragoman.errors import UserError
from dragoman.prediction.network import compressed_share, hideable_seconds, seconds_beside_link
from dragoman.prediction.step_model import MeasuredRun, share_of_fastest, split_excess
from dragoman.records import Calibration
from dragoman.report.evidence import Evidence
from dragoman.report.evidence.series import mean_of_known
from dragoman.report.findings.bottleneck import Network, micro_batches_of, rows_of
from dragoman.report.findings.step_times import StepTimes, steady_steps
from dragoman.wording import in_time, in_time_range


def demand_calibration(run: Path, found: MeasuredRun | None) -> MeasuredRun:
    """Refuse a run that measured too little for a prediction."""
    if found is None:
        raise UserError(
            f"{run} has no timed steps, or no model size: a prediction needs both; let the run "
            "make a few steps first"
        )
    return found


def calibrate(evidence: Evidence, times: StepTimes, network: Network) -> MeasuredRun | None:
    """Join the step's phases, the calibration line and the links; None if too little is known."""
    line, compute = evidence.history.calibration, times.phases["compute"]
    if not evidence.parameters or not math.isfinite(compute):
        return None
    steady = steady_steps(evidence.history.latest_steps)
    known = [one for one in COMPRESSIONS if line and line.compression == one]
    compression = known[0] if known else "none"
    exposed = network.local_steps * _known(network.network_seconds)
    # Where nobody measured an exchange, all of it is taken to have been exposed.
    exchange = network.exchange_seconds or exposed
    device = evidence.attempt.began.device if evidence.attempt else "cpu"
    explained = network.theory_seconds or 0.0
    if network.local_steps > 1:
        # Predictions add these by themselves, whatever is sent.
        explained += seconds_beside_link(evidence.parameters, compression, device)
    bits = compressed_share(compression)
    on_link = (network.bytes_per_step or 0.0) * network.local_steps / evidence.goodput
    sent_bytes = 4.0 * evidence.parameters * bits
    overhead, link_share = split_excess(exchange - explained, on_link, sent_bytes)
    if compression == "powersgd":
        overhead, link_share = 0.0, 1.0  # Its exchange is never measured alone.
    micro_batches = micro_batches_of(evidence, steady)
    could_hide = min(exchange, hideable_seconds(compute, micro_batches))
    return MeasuredRun(
        machines=max(1, network.machines),
        workers=evidence.workers,
        gradient_bytes=4.0 * evidence.parameters,
        tokens_per_step=mean_of_known(steady.target_tokens),
        rows_per_step=rows_of(evidence, steady) or math.inf,
        seconds_compute=compute,
        seconds_optimizer=_known(times.phases["optimizer"]),
        seconds_fixed=_known(times.phases["data"]) + _known(times.phases["other"]),
        seconds_straggling=_known(network.exposed_seconds - network.network_seconds),
        seconds_overhead=overhead / bits,
        link_share=link_share,
        seconds_step=times.mean,
        overlap=min(max((exchange - exposed) / could_hide, 0.0), 1.0) if could_hide > 0 else 0.0,
        bytes_per_second=evidence.goodput,
        latency_seconds=evidence.latency,
        compression=compression,
        local_steps=network.local_steps,
        local_fragments=evidence.local_fragments,
        local_delay=evidence.local_delay,
        micro_batches=micro_batches,
        device=device,
        fastest=_share_of_fastest(line),
    )


def _share_of_fastest(line: Calibration | None) -> float:
    """What the fastest worker takes for an equal share, in what worker 0 takes for its own."""
    seconds = line.seconds_compute_by_worker if line else ()
    if line is None or len(seconds) < 2:
        return 1.0
    rows = line.balanced_rows or (1,) * len(seconds)
    own = seconds[0] * rows[0] * len(rows) / max(1, sum(rows))
    return share_of_fastest(seconds, own) if own > 0 else 1.0


def describe_fit(times: StepTimes, network: Network, predicted_seconds: float) -> str:
    """How far the model can be trusted: what it was fitted to, and what it was not."""
    error = round(100 * (predicted_seconds / times.mean - 1), 1) + 0.0
    off = f"{abs(error):.1f}% too {'high' if error > 0 else 'low'}" if error else "exact"
    words = (
        "Every row is predicted from this run's own measurements. The prediction is fitted to "
        f"the run's mean step of {in_time(times.mean)}; for the run itself (first row) it is {off}."
    )
    if network.model_infinite_seconds is None:
        return (
            f"{words} There are no independent measurements to test it: trust the differences "
            "between rows more than their exact values."
        )
    words += (
        " Compute measured in isolation, before the first step, predicted "
        f"{in_time(network.model_infinite_seconds)} without waiting for the network; "
        f"{in_time(network.infinite_network_seconds)} was measured"
    )
    if network.model_network_seconds is not None:
        waiting = in_time_range(*network.model_network_seconds)
        words += (
            f". The exchange measured in isolation predicted {waiting} of waiting; "
            f"{in_time(network.network_seconds)} was measured"
        )
    return f"{words}: they {'agree' if network.agrees else 'do not agree'}."


def _known(value: float) -> float:
    return value if math.isfinite(value) else 0.0
