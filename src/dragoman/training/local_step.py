"""Steps that a worker makes alone, with a meeting now and then."""

import time
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import replace
from datetime import timedelta

import torch
import torch.distributed as distributed
from torch import Tensor

from dragoman.cluster.device_clock import wait_for
from dragoman.cluster.local_steps import OuterSteps
from dragoman.cluster.processes import Workers
from dragoman.cluster.sync import BufferSum, Exchange
from dragoman.config import DistributedSettings
from dragoman.corpus.rows import StepRows
from dragoman.model.transformer import RowTensors, Transformer, count_parameters
from dragoman.training.step import StepResult, TrainingStep


class LocalStep:
    """Wraps a step that knows no other workers."""

    lag = 0  # A meeting waits for the device: every step before it is done.

    def __init__(
        self,
        alone: TrainingStep,
        model: Transformer,
        workers: Workers,
        settings: DistributedSettings,
    ) -> None:
        self._alone = alone
        self._workers = workers
        self._timeout = timedelta(seconds=settings.timeout_seconds)
        self.exchange: Exchange | None = None
        total = None
        if workers.count > 1:
            total = BufferSum(workers, settings, torch.device("cpu"))
            self.exchange = Exchange(total, 4 * count_parameters(model) / settings.local_fragments)
        self._outer = OuterSteps(dict(model.named_parameters()), workers.count, settings, total)
        self._seconds_met: deque[float] = deque()
        self._folder_mates: object | None = None

    def begin(self, rows_per_device: int, writers: Sequence[int]) -> None:
        """Get ready for steps; `writers` names who writes the run folder of each worker."""
        self._alone.begin(rows_per_device, writers)
        self._outer.begin()
        for writer in sorted(set(writers)):
            ranks = [rank for rank, one in enumerate(writers) if one == writer]
            if len(ranks) > 1:
                group = distributed.new_group(ranks, self._timeout, backend="gloo")
                if self._workers.rank in ranks:
                    self._folder_mates, self._mate_count = group, len(ranks)

    def queue(
        self, batch: StepRows, step: int, learning_rate: float, seconds_waited: float
    ) -> None:
        """Update the weights from this worker's share of the batch; meet if it is time."""
        own = replace(batch, target_tokens=max(1, batch.rows.target_tokens))
        self._alone.queue(own, step, learning_rate, seconds_waited)
        self._seconds_met.append(self._meet(step) if self.meets_at(step) else 0.0)

    def result(self) -> StepResult:
        """Wait for the oldest queued step and tell how it went."""
        result, seconds_met = self._alone.result(), self._seconds_met.popleft()
        # The host's own clock includes the meeting, a device's does not.
        seconds = None if result.seconds is None else result.seconds + seconds_met
        return replace(result, seconds_exposed_communication=seconds_met, seconds=seconds)

    def meets_at(self, step: int) -> bool:
        """Whether the workers meet after this step."""
        return self._outer.meets_at(step)

    def settle(self, step: int) -> None:
        """Give all workers the same weights."""
        self._outer.settle(step)
        self._alone.weights_changed()

    def share_moments(self) -> None:
        """Average the moments of the workers that save to one folder, which holds one set.

        Machines with folders of their own keep their own moments, and nothing travels.
        """
        if self._folder_mates is None:
            return
        for moment in self._alone.tensors().values():
            mean = moment.cpu() / self._mate_count
            distributed.all_reduce(mean, group=self._folder_mates)
            moment.copy_(mean)

    def try_rows(self, rows: RowTensors) -> None:
        """Make one forward and backward pass that leaves no trace."""
        self._alone.try_rows(rows)

    def compute_only(self, batch: StepRows) -> float:
        """Seconds of a step's forward and backward passes."""
        return self._alone.compute_only(batch)

    def weights_changed(self) -> None:
        """Take note that someone else wrote the weights."""
        self._alone.weights_changed()

    def tensors(self) -> dict[str, Tensor]:
        """The moments and the outer momentum of every parameter, by name."""
        return {**self._alone.tensors(), **self._outer.tensors()}

    def state(self) -> dict[str, float]:
        """The few numbers beside the moments."""
        return self._alone.state()

    def load(self, tensors: Mapping[str, Tensor], state: Mapping[str, float]) -> None:
        """Go on from saved moments."""
        self._alone.load(tensors, state)
        self._outer.load(tensors)

    def _meet(self, step: int) -> float:
        """Meet the others, and tell how many seconds that took."""
        wait_for(self._workers.device)  # Steps that it has not finished are no communication.
        start = time.perf_counter()
        self._outer.meet(step)
        seconds = time.perf_counter() - start
        self._alone.weights_changed()
        return seconds


def alone(workers: Workers) -> Workers:
    """A worker as it sees itself between meetings; its rank still seeds its dropout."""
    return replace(workers, count=1)
