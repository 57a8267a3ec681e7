"""A few steps before any training, to know what steps and sums of gradients will take."""

import math
from dataclasses import replace

from dragoman.cluster.processes import Workers
from dragoman.cluster.sync import AllReduce, Exchange
from dragoman.config import Config
from dragoman.contradictions import refuse_idle_workers
from dragoman.corpus.rows import Position
from dragoman.model.transformer import count_parameters
from dragoman.prediction.step_model import StepFacts
from dragoman.training.calibration import SumTimes, seconds_of_compute, time_sums
from dragoman.training.kernels import refuse_mixed_kernels
from dragoman.training.local_step import alone
from dragoman.training.parts import Parts, choose_rows_per_device, make_lockstep, make_parts

STEPS_TO_TRY = 3
# Slower sums are not made whole: on a slow link that takes minutes. What of them could be hidden
# behind the backward pass is small then.
QUICK_SECONDS = 2.0


def trial_parts(config: Config, workers: Workers) -> tuple[Config, Parts]:
    """Parts to try, of a worker by itself; from plain gradients all else is predicted."""
    refuse_idle_workers(config.batches, workers.count)
    distributed = replace(config.distributed, sync="gradients", compression="none")
    plain = replace(config, distributed=distributed)
    return plain, make_parts(plain, alone(workers))


def try_steps(config: Config, parts: Parts, workers: Workers) -> StepFacts:
    """Time sums, passes and updates; all workers take part and learn the same."""
    refuse_mixed_kernels(parts.kernels, workers)
    rows, step = choose_rows_per_device(config, parts, workers), parts.step
    is_plain = parts.kernels.kind == "plain"
    sums = _time_sums(config, parts, workers, is_plain) if workers.count > 1 else None
    # Other kernels hide nothing behind the backward pass.
    is_whole = is_plain and sums is not None and sums.seconds < QUICK_SECONDS
    if is_whole:
        step = make_lockstep(config, parts.model, workers, parts.kernels)
    step.begin(rows)
    batch = next(parts.stream.steps(Position())).share(workers.rank, workers.count)
    computing = seconds_of_compute(step, batch, workers)
    results = []
    for number in range(1, STEPS_TO_TRY + 1):
        step.queue(batch, number, learning_rate=0.0, seconds_waited=0.0)
        results.append(step.result())
    optimizer = min(one.seconds_optimizer for one in results)
    exposed = sums.seconds if sums else 0.0
    if is_whole:
        exposed = min(one.seconds_exposed_communication for one in results)
    return StepFacts(
        parameters=count_parameters(parts.model),
        target_tokens=batch.target_tokens,
        seconds_compute_by_worker=tuple(computing),
        seconds_optimizer=max(workers.gather_number(optimizer)),
        seconds_exposed=max(workers.gather_number(exposed)),
        seconds_all_reduce=sums.seconds if sums else None,
        device=workers.device.type,
    )


def _time_sums(config: Config, parts: Parts, workers: Workers, is_plain: bool) -> SumTimes:
    """How long a gradient takes as it would travel; of a large one a part is sent."""
    total = AllReduce(workers, config.distributed, workers.device)
    piece_bytes = config.distributed.bucket_megabytes * 2**20 if is_plain else math.inf
    return time_sums(Exchange(total, piece_bytes), 4 * count_parameters(parts.model), workers)
