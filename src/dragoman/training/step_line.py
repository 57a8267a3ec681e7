"""What is logged about one step: the `train` line of metrics.jsonl."""

from collections.abc import Sequence

from dragoman.records import TrainStep, WorkerSeconds
from dragoman.training.step import StepResult
from dragoman.training.step_exchange import QueuedStep, WorkerStep


def train_line(
    queued: QueuedStep, mine: StepResult, everyone: Sequence[WorkerStep], seconds_collecting: float
) -> TrainStep:
    """Make a step's line; hearing from the others counts as communication."""
    batch = queued.batch
    if mine.seconds is None:
        seconds = queued.seconds + seconds_collecting
    else:
        # The device has its own clock, and works on while the host hears from others.
        seconds, seconds_collecting = mine.seconds, 0.0
    exposed = mine.seconds_exposed_communication + seconds_collecting
    accounted = mine.seconds_data + mine.seconds_compute + exposed + mine.seconds_optimizer
    slowest = fastest = None
    if len(everyone) > 1:
        computing = [WorkerSeconds(rank, one.seconds_compute) for rank, one in enumerate(everyone)]
        slowest = max(computing, key=lambda one: one.seconds)
        fastest = min(computing, key=lambda one: one.seconds)
    return TrainStep(
        loss=sum(one.loss for one in everyone) / batch.target_tokens,
        nll=sum(one.nll for one in everyone) / batch.target_tokens,
        learning_rate=queued.learning_rate,
        gradient_norm=mine.gradient_norm,
        target_tokens=batch.target_tokens,
        source_tokens=batch.source_tokens,
        pairs=batch.pairs,
        slots=batch.slots,
        epoch=batch.epoch,
        seconds=seconds,
        seconds_data=mine.seconds_data,
        seconds_compute=mine.seconds_compute,
        seconds_exposed_communication=exposed,
        seconds_optimizer=mine.seconds_optimizer,
        seconds_other=seconds - accounted,
        slowest=slowest,
        fastest=fastest,
        loss_scale=mine.loss_scale,
        skipped=mine.skipped,
        corpora=batch.corpora,
    )


def end_times(seconds: Sequence[float], now: float) -> list[float]:
    """When each step ended, of steps whose results are known now: one came after the other."""
    return [now - sum(seconds[place + 1 :]) for place in range(len(seconds))]
