"""What is written down about one step: the `train` line of metrics.jsonl."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from dragoman.corpus.rows import StepRows
from dragoman.training.step import StepResult


@dataclass(frozen=True)
class QueuedStep:
    """A step on its way, whose result nobody has asked for yet."""

    step: int
    batch: StepRows
    learning_rate: float
    seconds: float  # On the host's clock, waiting for the batch included.


class WorkerStep(NamedTuple):
    """What every worker tells the others about its step."""

    loss: float
    nll: float
    seconds_compute: float


def train_line(
    queued: QueuedStep, mine: StepResult, everyone: Sequence[WorkerStep], seconds_hearing: float
) -> dict[str, Any]:
    """Fields of a step's line; hearing from the others counts as communication."""
    batch = queued.batch
    line: dict[str, Any] = {
        "loss": sum(one.loss for one in everyone) / batch.target_tokens,
        "nll": sum(one.nll for one in everyone) / batch.target_tokens,
        "learning_rate": queued.learning_rate,
        "gradient_norm": mine.gradient_norm,
        "target_tokens": batch.target_tokens,
        "source_tokens": batch.source_tokens,
        "pairs": batch.pairs,
        "slots": batch.slots,
        "epoch": batch.epoch,
        **_phases(queued, mine, seconds_hearing),
    }
    if len(everyone) > 1:
        computing = [one.seconds_compute for one in everyone]
        for name, chosen in (("slowest", max(computing)), ("fastest", min(computing))):
            line[name] = {"worker": computing.index(chosen), "seconds": chosen}
    return line


def end_times(seconds: Sequence[float], now: float) -> list[float]:
    """When each step ended, of steps whose results are known now: one came after the other."""
    return [now - sum(seconds[place + 1 :]) for place in range(len(seconds))]


def _phases(queued: QueuedStep, mine: StepResult, seconds_hearing: float) -> dict[str, float]:
    """Where a step's time went; what is not accounted for is `seconds_other`."""
    if mine.seconds is None:
        seconds = queued.seconds + seconds_hearing
    else:
        # The device has its own clock, and works on while the host hears from others.
        seconds, seconds_hearing = mine.seconds, 0.0
    phases = {
        "seconds_data": mine.seconds_data,
        "seconds_compute": mine.seconds_compute,
        "seconds_exposed_communication": mine.seconds_exposed_communication + seconds_hearing,
        "seconds_optimizer": mine.seconds_optimizer,
    }
    return {"seconds": seconds, **phases, "seconds_other": seconds - sum(phases.values())}
