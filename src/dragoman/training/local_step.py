"""Steps that a worker makes alone, synchronizing with the others periodically."""

import math
import time
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from datetime import timedelta

import torch.distributed as distributed
from torch import Tensor

from dragoman.cluster.local_steps import OuterSteps
from dragoman.cluster.mean_exchange import MeanExchange
from dragoman.cluster.processes import Workers
from dragoman.cluster.sync import Exchange
from dragoman.config import Config, DistributedSettings
from dragoman.corpus.rows import StepRows
from dragoman.model.transformer import RowTensors, Transformer, count_parameters
from dragoman.training.step import StepResult, TrainingStep

# The most that was tried, with four workers; more may be too much for a model.
LARGEST_RATE = 2.0


@dataclass(frozen=True)
class _FolderMates:
    """Those that save to one folder."""

    group: distributed.ProcessGroup
    workers: int
    machines: int


class LocalStep:
    """Wraps a step that knows no other workers."""

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
        self._rate = local_rate(settings, workers.count)
        self.lag = alone.lag
        self.exchange: Exchange | None = None
        mean = None
        if workers.count > 1:
            assert settings.compression != "powersgd", "the config's checks refuse it"
            mean = MeanExchange(workers, settings.compression, workers.device, self._timeout)
            self.exchange = Exchange(mean, 4 * count_parameters(model) / settings.local_fragments)
        self._outer = OuterSteps(model, settings, mean)
        self._seconds_waited = 0.0  # Since the last step was queued.
        self._waits: deque[float] = deque()  # Of the steps on their way.
        self._was_settled = True  # When it was saved.
        self._folder_mates: _FolderMates | None = None
        self.synchronizes_at = self._outer.synchronizes_at

    def begin(self, rows_per_device: int) -> None:
        """Get ready for steps."""
        self._alone.begin(rows_per_device)

    def go_on(self, writers: Sequence[int], step: int) -> None:
        """Be where it was after a step; `writers` names who writes each worker's run folder."""
        if not self._was_settled:
            self._outer.begin(step)
        for writer in sorted(set(writers)):
            ranks = [rank for rank, one in enumerate(writers) if one == writer]
            if len(ranks) > 1:
                group = distributed.new_group(ranks, self._timeout, backend="gloo")
                if self._workers.rank in ranks:
                    machines = {self._workers.hosts[rank] for rank in ranks}
                    self._folder_mates = _FolderMates(group, len(ranks), len(machines))

    def queue(
        self, batch: StepRows, step: int, learning_rate: float, seconds_waited: float
    ) -> None:
        """Update the weights from this worker's share of the batch; synchronize if it is time."""
        own = replace(batch, target_tokens=max(1, batch.rows.target_tokens))
        self._alone.queue(own, step, self._rate * learning_rate, seconds_waited)
        self._waits.append(self._seconds_waited)
        self._seconds_waited = 0.0
        if self.synchronizes_at(step):
            start = time.perf_counter()
            if self._outer.after_step(step):
                self._alone.weights_changed()
            # A device still had steps to make, so that the next one tells what it really waited.
            self._seconds_waited = time.perf_counter() - start
            if self.lag == 0:
                self._waits[-1] += self._seconds_waited
                self._seconds_waited = 0.0

    def result(self) -> StepResult:
        """Wait for the oldest queued step and tell how it went."""
        result, waited = self._alone.result(), self._waits.popleft()
        if result.seconds is not None:
            known = result.seconds_data + result.seconds_compute + result.seconds_optimizer
            waited = min(waited, max(0.0, result.seconds - known))
        return replace(result, seconds_exposed_communication=waited)

    def finish(self) -> None:
        """Give all workers the same weights, at the end of a run."""
        self._outer.settle()
        self._alone.weights_changed()

    @contextmanager
    def common_weights(self) -> Iterator[None]:
        """Let the model have the weights that all workers share, for scoring and saving."""
        with self._outer.common_weights():
            yield
        self._alone.weights_changed()

    def share_own(self) -> None:
        """Average what the workers that save to one folder have of their own: it holds one set.

        To be called while the model has the common weights. Machines with folders of their own
        keep their own, and nothing travels.
        """
        if self._folder_mates is None:
            return
        # Else some workers might send what they had before this, and others the mean.
        self._outer.wait_for_means()
        mates = self._folder_mates
        for name, tensor in self.tensors().items():
            # What rounding kept back is a machine's, and its first worker has it.
            is_of_machine = name.endswith(".error")
            mean = tensor.cpu() / (mates.machines if is_of_machine else mates.workers)
            if is_of_machine and not self._workers.is_first_on_host:
                mean.zero_()
            distributed.all_reduce(mean, group=mates.group)
            tensor.copy_(mean)

    def try_rows(self, rows: RowTensors) -> None:
        """Make one forward and backward pass that leaves no trace."""
        self._alone.try_rows(rows)

    def compute_only(self, batch: StepRows) -> float:
        """Seconds of a step's forward and backward passes."""
        return self._alone.compute_only(batch)

    def weights_changed(self) -> None:
        """Take note that someone else wrote the weights, which are the common ones."""
        self._outer.take_common()
        self._alone.weights_changed()

    def tensors(self) -> dict[str, Tensor]:
        """Moments and what the outer step keeps of every parameter, by name."""
        return {**self._alone.tensors(), **self._outer.tensors()}

    def state(self) -> dict[str, float]:
        """The few numbers beside the moments."""
        return {**self._alone.state(), "is_settled": float(self._outer.is_settled)}

    def load(self, tensors: Mapping[str, Tensor], state: Mapping[str, float]) -> None:
        """Go on from saved tensors."""
        self._alone.load(tensors, state)
        self._outer.load(tensors)
        self._was_settled = bool(state["is_settled"])


def alone(workers: Workers) -> Workers:
    """A worker as it sees itself between synchronizations; its rank still seeds its dropout."""
    return replace(workers, count=1)


def with_longer_memory(config: Config, workers: int) -> Config:
    """The settings of a worker's own steps: Adam's mean square remembers as many rows as ever.

    A rare word is in one of many steps of a worker. If that is forgotten before the next one, what
    pushes down all words that are absent is divided by next to nothing: rare words are unlearned.
    """
    forgotten = (1 - config.optimizer.beta2) / workers
    return replace(config, optimizer=replace(config.optimizer, beta2=1 - forgotten))


def local_rate(settings: DistributedSettings, workers: int) -> float:
    """Learning rate of local steps, as a multiple of the schedule's.

    A worker's gradient has the noise of fewer rows. Where noise is most of it, Adam's divisor is
    larger by the root of the number of workers, and so the workers' mean goes less far.
    """
    if settings.local_rate is not None:
        return settings.local_rate
    return min(math.sqrt(workers), LARGEST_RATE)
