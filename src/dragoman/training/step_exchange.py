"""What workers share about the steps they have finished, and ask of each other."""

import time
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import chain, islice
from typing import NamedTuple

from dragoman.cluster.processes import Gathering, Workers
from dragoman.corpus.rows import StepRows
from dragoman.training.step import StepResult


@dataclass(frozen=True)
class QueuedStep:
    """A step on its way, whose result nobody has asked for yet."""

    step: int
    batch: StepRows
    rows_by_worker: tuple[int, ...]
    learning_rate: float
    seconds: float  # On the host's clock, waiting for the batch included.


class WorkerStep(NamedTuple):
    """What every worker tells the others about its step."""

    loss: float
    nll: float
    seconds_compute: float


class Requests(NamedTuple):
    """What a worker asks of all the others when they hear of each other's steps."""

    stop: float
    saves_asked: float
    is_collection_due: float  # Worker 0's word counts for all.


@dataclass(frozen=True)
class PendingResults:
    """Steps whose results this worker has shared, and those of the others on their way."""

    finished: list[tuple[QueuedStep, StepResult]]
    moment: float  # When the last of them was.
    answers: Gathering

    def collect(self) -> tuple[list[Requests], list[list[WorkerStep]]]:
        """Wait for everyone; give their requests and, for each step, how it went, by rank."""
        answers = [iter(values) for values in self.answers.wait()]
        requests = [Requests(*islice(values, len(Requests._fields))) for values in answers]
        steps = [
            [WorkerStep(*islice(values, len(WorkerStep._fields))) for values in answers]
            for _ in self.finished
        ]
        return requests, steps


def share_results(
    workers: Workers, requests: Requests, finished: Sequence[tuple[QueuedStep, StepResult]]
) -> PendingResults:
    """Share how steps went, without waiting for anyone."""
    steps = (WorkerStep(one.loss, one.nll, one.seconds_compute) for _, one in finished)
    answers = workers.start_gather([*requests, *chain(*steps)])
    return PendingResults(list(finished), time.time(), answers)
