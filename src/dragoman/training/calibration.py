"""Measured before the first step: the cost of compute alone, and of an exchange alone."""

import statistics
import time
from dataclasses import dataclass

import torch

from dragoman.cluster.device_timer import wait_for
from dragoman.cluster.processes import Workers
from dragoman.cluster.sync import Exchange
from dragoman.config import Config, ModelShape
from dragoman.corpus.rows import StepRows
from dragoman.model.transformer import Transformer, count_parameters
from dragoman.prediction.network import bytes_sent_per_step
from dragoman.records import Calibration
from dragoman.training.step import TrainingStep

COMPUTE_PASSES = 3
TINY_SUMS = 10
FIRST_SUM_BYTES = 1 << 18
SECONDS_PER_SUM = 0.2
MATRIX_SIZES = {"cpu": 1_024, "cuda": 8_192}


@dataclass(frozen=True)
class SumTimes:
    """What it takes to sum a gradient over all workers, with nothing else going on."""

    seconds: float  # For a whole gradient.
    seconds_latency: float  # For a single number.
    measured_bytes: int  # On slow links a part is summed and the rest extrapolated.


def calibrate(
    step: TrainingStep, model: Transformer, batch: StepRows, workers: Workers, config: Config
) -> Calibration:
    """Measure; all workers take part and learn the same."""
    computing = seconds_of_compute(step, batch, workers)
    parameters = count_parameters(model)
    sums = time_sums(step.exchange, 4 * parameters, workers) if step.exchange else None
    shapes = [parameter.shape for parameter in model.parameters()]
    arithmetic = operations(model.shape, len(model.target_embedding.weight), batch)
    return Calibration(
        seconds_compute=computing[0],
        seconds_compute_by_worker=tuple(computing),
        seconds_all_reduce=sums.seconds if sums else None,
        bytes_per_step=bytes_sent_per_step(shapes, len(set(workers.hosts)), config.distributed),
        gradient_bytes=4 * parameters,
        parameters=parameters,
        compression=config.distributed.compression,
        arithmetic_per_token=arithmetic / batch.target_tokens,
        peak_flops=peak_operations_per_second(workers.device, config.training.precision),
        seconds_all_reduce_latency=sums.seconds_latency if sums else None,
        all_reduce_measured_bytes=sums.measured_bytes if sums else None,
    )


def seconds_of_compute(step: TrainingStep, batch: StepRows, workers: Workers) -> list[float]:
    """Median seconds of a step's passes without synchronisation, of every worker."""
    step.compute_only(batch)  # The first pass allocates, and does not count.
    mine = statistics.median(step.compute_only(batch) for _ in range(COMPUTE_PASSES))
    return workers.gather_number(mine)


def time_sums(exchange: Exchange, gradient_bytes: int, workers: Workers) -> SumTimes:
    """Time sums of growing size until one takes long enough to be trusted."""
    tiny = [_seconds_of_sum(exchange, 4, workers) for _ in range(TINY_SUMS)]
    latency = statistics.median(tiny)
    size = min(FIRST_SUM_BYTES, gradient_bytes)
    _seconds_of_sum(exchange, size, workers)  # The first one may compile, and does not count.
    while True:
        seconds = _seconds_of_sum(exchange, size, workers)
        if size == gradient_bytes or seconds > SECONDS_PER_SUM:
            break
        size = min(4 * size, gradient_bytes)
    whole = latency + max(seconds - latency, 0.0) * gradient_bytes / size
    return SumTimes(whole, latency, size)


def _seconds_of_sum(exchange: Exchange, size: int, workers: Workers) -> float:
    """Time of the slowest worker, so that all decide alike; in pieces, as gradients travel."""
    buffer = torch.zeros(size // 4, device=exchange.total.device)
    pieces = torch.split(buffer, max(1, round(min(size, exchange.piece_bytes)) // 4))
    wait_for(exchange.total.device)
    workers.barrier()
    start = time.perf_counter()
    for piece in pieces:
        exchange.total(piece)
    wait_for(exchange.total.device)
    return max(workers.gather_number(time.perf_counter() - start))


def operations(shape: ModelShape, words: int, batch: StepRows) -> float:
    """Floating-point operations of a step's passes; backward costs twice forward."""
    width, inner = shape.d_model, shape.feed_forward
    source, target = batch.source_tokens, batch.target_tokens
    source_length, target_length = source / batch.pairs, target / batch.pairs
    encoder = source * (4 * width**2 + 2 * width * inner + 2 * source_length * width)
    decoder = target * (
        4 * width**2  # Self-attention's projections,
        + target_length * width  # each token seeing half of its sentence on average,
        + 2 * width**2  # and attention to the source.
        + 2 * source_length * width
        + 2 * width * inner
    )
    memory = source * 2 * width**2
    layers = shape.encoder_layers * encoder + shape.decoder_layers * (decoder + memory)
    return 3 * 2 * (layers + target * words * width)


def peak_operations_per_second(device: torch.device, precision: str) -> float:
    """What the device reaches on one large matrix product."""
    size = MATRIX_SIZES[device.type]
    matrix = torch.randn(size, size, device=device, dtype=getattr(torch, precision))
    matrix @ matrix
    times = []
    for _ in range(5):
        wait_for(device)
        start = time.perf_counter()
        matrix @ matrix
        wait_for(device)
        times.append(time.perf_counter() - start)
    return 2 * size**3 / min(times)
