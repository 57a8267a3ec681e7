"""One training step of one worker: forward, backward, synchronize, update."""

from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Protocol, TypeVar

import torch
from torch import Tensor

from dragoman.cluster.device_timer import DeviceTimer
from dragoman.cluster.processes import Workers
from dragoman.cluster.sync import AllReduce, Exchange, GradientSync
from dragoman.config import Config
from dragoman.corpus.order import keyed_seed
from dragoman.corpus.rows import StepRows
from dragoman.model.precision import arithmetic
from dragoman.model.transformer import RowTensors, Transformer
from dragoman.training.capacity import full_rows
from dragoman.training.loss_scale import LossScale
from dragoman.training.optimizer import Optimizer

Item = TypeVar("Item")


@dataclass(frozen=True)
class StepResult:
    """What one step came to on this worker, and where its time went."""

    loss: float  # Sums over the target tokens of this worker.
    nll: float
    gradient_norm: float
    skipped: bool
    loss_scale: float | None  # None where the loss is not scaled.
    seconds_data: float
    seconds_compute: float
    seconds_exposed_communication: float
    seconds_optimizer: float
    seconds: float | None = None  # None if the host's own clock tells.


class TrainingStep(Protocol):
    """How a worker makes its steps; several may be on their way to a device at a time."""

    exchange: Exchange | None  # None if there is one worker, or sums are only a part of it.
    lag: int  # So many steps may be queued without anyone having asked for their results.

    def begin(self, rows_per_device: int) -> None:
        """Get ready for steps; all workers have the same weights by now."""

    def queue(
        self, batch: StepRows, step: int, learning_rate: float, seconds_waited: float
    ) -> None:
        """Update the weights once from all micro-batches of all workers."""

    def result(self) -> StepResult:
        """Wait for the oldest queued step and tell how it went."""

    def try_rows(self, rows: RowTensors) -> None:
        """Make one forward and backward pass that leaves no trace."""

    def compute_only(self, batch: StepRows) -> float:
        """Seconds of a step's forward and backward passes, without the others; no trace is left."""

    def weights_changed(self) -> None:
        """Take note that someone else wrote the weights."""

    def tensors(self) -> dict[str, Tensor]:
        """The moments of every parameter, by name."""

    def state(self) -> dict[str, float]:
        """The few numbers beside the moments."""

    def load(self, tensors: Mapping[str, Tensor], state: Mapping[str, float]) -> None:
        """Go on from saved moments."""


class PlainStep:
    """The step in plain PyTorch: runs anywhere, and is what faster ones are compared with."""

    lag = 0

    def __init__(self, config: Config, model: Transformer, workers: Workers) -> None:
        self._config = config
        self._model = model
        self._workers = workers
        scale = LossScale(config.training.precision, workers.device)
        self._is_scaled = scale.is_dynamic
        embeddings = (model.source_embedding.weight, model.target_embedding.weight)
        self._frozen = embeddings if config.training.freeze_embeddings else ()
        self._optimizer = Optimizer(model, config.optimizer, scale)
        self._results: deque[StepResult] = deque()
        self.exchange: Exchange | None = None
        self.tensors = self._optimizer.tensors
        self.state = self._optimizer.state
        self.load = self._optimizer.load

    def begin(self, rows_per_device: int) -> None:
        """Get ready for steps; all workers have the same weights by now."""
        self._rows_per_device = rows_per_device
        settings = self._config.distributed
        total = None
        if self._workers.count > 1:
            device = self._workers.device
            total = AllReduce(self._workers, settings, device, is_scaled=self._is_scaled)
        self._sync = GradientSync(self._model, self._workers, settings, total)
        if total and settings.compression != "powersgd":
            self.exchange = Exchange(total, settings.bucket_megabytes * 2**20)
        if total:
            # The engine settles the order of its sums in the first backward pass. One that does
            # not count keeps the first step of an attempt like any other, to the last bit.
            with self._sync.gradients(enabled=True):
                row = full_rows(1, self._config.batches.row_tokens, self._workers.device)
                self._sync.model(row, 0.0).loss.backward()
            self._model.zero_grad()

    def queue(
        self, batch: StepRows, step: int, learning_rate: float, seconds_waited: float
    ) -> None:
        """Update the weights once from all micro-batches of all workers."""
        start, computed, updated = (DeviceTimer(self._workers.device) for _ in range(3))
        start.mark()
        self._seed_dropout(step)
        loss = torch.zeros((), device=self._workers.device)
        nll = torch.zeros((), device=self._workers.device)
        # Gradients are summed over workers, so that every token weighs the same.
        share = self._sync.divisor / batch.target_tokens
        for rows, is_last in mark_last(self._micro_batches(batch)):
            with self._sync.gradients(enabled=is_last):
                with self._arithmetic():
                    sums = self._sync.model(rows, self._config.training.label_smoothing)
                (sums.loss * (self._optimizer.loss_scale * share)).backward()
            loss += sums.loss.detach()
            nll += sums.nll
        computed.mark()
        for frozen in self._frozen:
            # They take part in every sum, so that workers and checkpoints need not know.
            frozen.grad = torch.zeros_like(frozen)
        loss_scale = float(self._optimizer.loss_scale) if self._is_scaled else None
        update = self._optimizer.step(learning_rate)
        updated.mark()
        skipped = bool(update.skipped)
        if skipped:
            self._sync.forget()
        seconds_exposed = self._sync.seconds_exposed
        self._results.append(
            StepResult(
                loss=float(loss),
                nll=float(nll),
                gradient_norm=float(update.gradient_norm),
                skipped=skipped,
                loss_scale=loss_scale,
                seconds_data=seconds_waited,
                seconds_compute=start.seconds_until(computed) - seconds_exposed,
                seconds_exposed_communication=seconds_exposed,
                seconds_optimizer=computed.seconds_until(updated),
            )
        )

    def result(self) -> StepResult:
        """Tell how the oldest queued step went."""
        return self._results.popleft()

    def try_rows(self, rows: RowTensors) -> None:
        """Make one forward and backward pass that leaves no trace."""
        with self._arithmetic():
            sums = self._model(rows, self._config.training.label_smoothing)
        sums.loss.backward()
        self._model.zero_grad()

    def compute_only(self, batch: StepRows) -> float:
        """Seconds of a step's forward and backward passes, without the others; no trace is left."""
        start, end = DeviceTimer(self._workers.device), DeviceTimer(self._workers.device)
        start.mark()
        for rows in self._micro_batches(batch):
            with self._sync.gradients(enabled=False), self._arithmetic():
                sums = self._sync.model(rows, self._config.training.label_smoothing)
            sums.loss.backward()
        end.mark()
        self._model.zero_grad()
        return start.seconds_until(end)

    def weights_changed(self) -> None:
        """Nothing to do: there are no copies."""

    def _seed_dropout(self, step: int) -> None:
        # Dropout depends on the seed, the step and the worker alone, so that a resumed run
        # repeats it without saving any generator's state.
        torch.manual_seed(keyed_seed(self._config.training.seed, step, self._workers.rank))

    def _micro_batches(self, batch: StepRows) -> list[RowTensors]:
        size = self._rows_per_device
        return [
            RowTensors.copy_to(self._workers.device, batch.rows[start : start + size].arrays())
            for start in range(0, len(batch.rows), size)
        ]

    def _arithmetic(self) -> AbstractContextManager[object]:
        return arithmetic(self._config.training.precision, self._workers.device)


def mark_last(items: Sequence[Item]) -> Iterator[tuple[Item, bool]]:
    """Pair each item with whether it is the last."""
    for index, item in enumerate(items, start=1):
        yield item, index == len(items)
