"""The step as two CUDA graphs, replayed without the host ever waiting.

They are made of fused kernels, or of what PyTorch's compiler makes of the plain model.
"""

import math
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

import numpy as np
import torch
from torch import Tensor

from dragoman.cluster.processes import Workers
from dragoman.cluster.sync import AllReduce, Exchange
from dragoman.config import Config
from dragoman.corpus.order import keyed_seed
from dragoman.corpus.rows import Rows, StepRows
from dragoman.model.fused.flat_weights import FlatWeights
from dragoman.model.transformer import RowTensors, Transformer
from dragoman.training.loss_scale import LossScale
from dragoman.training.step import StepResult

# Before the rows of a micro-batch: two integers that are the key of its dropout, and two floats,
# one over the step's target tokens and the learning rate.
HEADER = 4
RESULTS = 5


@dataclass
class _HostRoom:
    """Pinned memory for one step on its way: what goes to the device and what comes back."""

    results: Tensor
    inputs: list[Tensor] = field(default_factory=list)  # One for each micro-batch.


def _event() -> torch.cuda.Event:
    return torch.cuda.Event(enable_timing=True, blocking=True)  # type: ignore[no-untyped-call]


@dataclass(frozen=True)
class _Flight:
    """A queued step: its room, and when the device came past."""

    room: _HostRoom
    seconds_waited: float
    previous_end: torch.cuda.Event | None  # None if nothing was queued before it.
    start: torch.cuda.Event = field(default_factory=_event)
    computed: torch.cuda.Event = field(default_factory=_event)
    summed: torch.cuda.Event = field(default_factory=_event)
    end: torch.cuda.Event = field(default_factory=_event)


class FusedStep:
    """One worker's steps on a GPU.

    One graph adds the gradients of a micro-batch, one updates the weights from them; between them
    workers synchronize. Everything that differs from step to step travels in the inputs.
    """

    lag = 2

    def __init__(
        self, config: Config, model: Transformer, workers: Workers, *, is_compiled: bool = False
    ) -> None:
        # Imported here: this module is, where triton is not installed.
        from dragoman.model.fused.adam import adam
        from dragoman.model.fused.compiled import CompiledTransformer
        from dragoman.model.fused.forward import FusedTransformer
        from dragoman.model.fused.muon import muon

        self._adam, self._muon = adam, muon
        self._config, self._workers, self._device = config, workers, workers.device
        copy_type = getattr(torch, config.training.precision)
        self._flat = FlatWeights(model, copy_type, config.optimizer.kind)
        smoothing = config.training.label_smoothing
        self._compiled: CompiledTransformer | None = None
        self._fused: FusedTransformer | None = None
        if is_compiled:
            self._compiled = CompiledTransformer(model, self._flat, smoothing)
        else:
            joint, row_tokens = config.vocabulary.joint, config.batches.row_tokens
            self._fused = FusedTransformer(config.model, self._flat, joint, row_tokens, smoothing)
        self._loss_scale = LossScale(config.training.precision, self._device)
        self._updates = torch.zeros((), dtype=torch.float64, device=self._device)
        self._sums = torch.zeros(2, device=self._device)  # Loss and nll.
        self._results = torch.zeros(RESULTS, device=self._device)
        self._rooms: list[_HostRoom] = []  # Those free.
        self._flights: deque[_Flight] = deque()
        self._last_end: torch.cuda.Event | None = None
        self._last_replay: torch.cuda.Event | None = None
        self._has_company = config.distributed.sync == "local"  # Threads that exchange weights.
        self.exchange: Exchange | None = None

    def begin(self, rows_per_device: int) -> None:
        """Compile the kernels and record both graphs; all workers have the same weights by now."""
        self.weights_changed()
        if self._workers.count > 1:
            total = AllReduce(
                self._workers,
                self._config.distributed,
                self._device,
                is_scaled=self._loss_scale.is_dynamic,
            )
            self.exchange = Exchange(total, piece_bytes=math.inf)
        shape = len(RowTensors._fields), rows_per_device, self._config.batches.row_tokens
        self._inputs = torch.zeros(
            HEADER + int(np.prod(shape)), dtype=torch.int32, device=self._device
        )
        self._rows = RowTensors(*self._inputs[HEADER:].view(shape))
        self._mask_key = self._inputs[:2]
        self._share, self._learning_rate = self._inputs[2:HEADER].view(torch.float32)
        self._gradient_graph = _record(self._add_gradients)
        # A gradient that is not finite changes no weight; only the loss scale takes note.
        scale, good_steps = self._loss_scale.value.clone(), self._loss_scale.good_steps.clone()
        self._flat.gradients.fill_(float("nan"))
        self._update_graph = _record(self._update)
        self._loss_scale.value.copy_(scale)
        self._loss_scale.good_steps.copy_(good_steps)

    def queue(
        self, batch: StepRows, step: int, learning_rate: float, seconds_waited: float
    ) -> None:
        """Update the weights once from all micro-batches of all workers."""
        previous_end = self._last_end if self._flights else None
        room = self._fill_room(batch, step, learning_rate)
        flight = _Flight(room, seconds_waited, previous_end)
        flight.start.record()
        self._make_gradients(room)
        flight.computed.record()
        if self.exchange:
            self.exchange.total(self._flat.gradients)
        flight.summed.record()
        self._update_graph.replay()
        flight.room.results.copy_(self._results, non_blocking=True)
        flight.end.record()
        self._flights.append(flight)
        self._last_end = flight.end

    def result(self) -> StepResult:
        """Wait for the oldest queued step and tell how it went."""
        flight = self._flights.popleft()
        flight.end.synchronize()
        loss, nll, gradient_norm, skipped, loss_scale = flight.room.results.tolist()
        self._rooms.append(flight.room)
        idle = _seconds(flight.previous_end, flight.start) if flight.previous_end else 0.0
        return StepResult(
            loss=loss,
            nll=nll,
            gradient_norm=gradient_norm,
            skipped=bool(skipped),
            loss_scale=loss_scale if self._loss_scale.is_dynamic else None,
            # The device may also have stood idle because the host was busy otherwise.
            seconds_data=min(idle, flight.seconds_waited),
            seconds_compute=_seconds(flight.start, flight.computed),
            seconds_exposed_communication=(
                _seconds(flight.computed, flight.summed) if self.exchange else 0.0
            ),
            seconds_optimizer=_seconds(flight.summed, flight.end),
            seconds=_seconds(flight.previous_end or flight.start, flight.end),
        )

    def try_rows(self, rows: RowTensors) -> None:
        """Make one forward and backward pass that leaves no trace."""
        rows = RowTensors(*(one.contiguous() for one in rows))
        key = torch.zeros(2, dtype=torch.int32, device=self._device)
        self._pass(rows, key, torch.ones((), device=self._device), is_trial=True)
        self._flat.gradients.zero_()

    def compute_only(self, batch: StepRows) -> float:
        """Seconds of a step's forward and backward passes, without the others; no trace is left."""
        room = self._fill_room(batch, step=0, learning_rate=0.0)
        start, end = _event(), _event()
        start.record()
        self._make_gradients(room)
        end.record()
        end.synchronize()
        self._rooms.append(room)
        self._flat.gradients.zero_()
        self._sums.zero_()
        return _seconds(start, end)

    def weights_changed(self) -> None:
        """Make the 16-bit copies anew: someone else wrote the weights."""
        self._flat.refresh_copies()

    def tensors(self) -> dict[str, Tensor]:
        """The moments of every parameter, by name; writing to them changes them."""
        flat, moments = self._flat, {}
        for name in flat.of_adam:
            moments[f"{name}.exp_avg"] = flat.view(flat.means, [name])
            moments[f"{name}.exp_avg_sq"] = flat.view(flat.squares, [name])
        for name in flat.of_muon:
            moments[f"{name}.momentum"] = flat.view(flat.means, [name])
        return moments

    def state(self) -> dict[str, float]:
        """The few numbers beside the moments: updates made, and the loss scale."""
        return {
            "updates": float(self._updates),
            "loss_scale": float(self._loss_scale.value),
            "good_steps": float(self._loss_scale.good_steps),
        }

    def load(self, tensors: Mapping[str, Tensor], state: Mapping[str, float]) -> None:
        """Go on from saved moments."""
        for name, view in self.tensors().items():
            view.copy_(tensors[name])
        self._updates.fill_(state["updates"])
        self._loss_scale.value.fill_(state["loss_scale"])
        self._loss_scale.good_steps.fill_(state["good_steps"])

    def _fill_room(self, batch: StepRows, step: int, learning_rate: float) -> _HostRoom:
        """Lay a step's micro-batches out in pinned memory that no step on its way uses."""
        room = self._rooms.pop() if self._rooms else _HostRoom(torch.zeros(RESULTS).pin_memory())
        size = self._rows.source.shape[0]
        starts = range(0, len(batch.rows), size)
        del room.inputs[len(starts) :]
        for place, start in enumerate(starts):
            if place == len(room.inputs):
                room.inputs.append(torch.zeros_like(self._inputs, device="cpu").pin_memory())
            # Dropout depends on these alone, so that a resumed run repeats it.
            seed = keyed_seed(self._config.training.seed, step, self._workers.rank, place)
            numbers = np.array([1 / batch.target_tokens, learning_rate], dtype=np.float32)
            self._fill(room.inputs[place], seed, numbers, batch.rows[start : start + size])
        return room

    def _make_gradients(self, room: _HostRoom) -> None:
        """Send one micro-batch after the other and add up their gradients."""
        for inputs in room.inputs:
            self._inputs.copy_(inputs, non_blocking=True)
            if self._compiled:
                # PyTorch's own generator, which a replay looks at, makes the masks.
                torch.cuda.manual_seed(int(inputs[:2].numpy().view(np.uint64)[0]))
            self._replay_gradients()

    def _replay_gradients(self) -> None:
        """Replay the graph once it has ended: the update keeps the device busy meanwhile.

        The driver would wait just as long, but under its lock, and all that other threads ask of
        the device would wait with it.
        """
        if self._last_replay:
            self._last_replay.synchronize()
        self._gradient_graph.replay()
        if self._has_company:
            self._last_replay = _event()
            self._last_replay.record()

    def _fill(self, inputs: Tensor, seed: int, numbers: np.ndarray, rows: Rows) -> None:
        """Lay a micro-batch out in pinned memory; rows that are missing are empty ones."""
        memory = inputs.numpy()
        memory[:2] = np.array([seed], dtype=np.uint64).view(np.int32)
        memory[2:HEADER] = numbers.view(np.int32)
        arrays = memory[HEADER:].reshape(len(self._rows), *self._rows.source.shape)
        for array, values in zip(arrays, rows.arrays(), strict=True):
            array[: len(values)] = values
            array[len(values) :] = 0

    def _add_gradients(self) -> None:
        """Add the gradients of the micro-batch in the inputs."""
        scale = self._loss_scale.value * self._share
        self._sums += self._pass(self._rows, self._mask_key, scale)

    def _pass(
        self, rows: RowTensors, mask_key: Tensor, scale: Tensor, *, is_trial: bool = False
    ) -> Tensor:
        """Go forward and backward through the model once; tell loss and nll, summed."""
        if self._compiled:
            return self._compiled.add_gradients(rows, scale, is_trial=is_trial)
        assert self._fused
        return self._fused.add_gradients(rows, mask_key, scale)

    def _update(self) -> None:
        """Update the weights, unless the gradient is not finite, and clear for the next step."""
        settings, scale = self._config.optimizer, self._loss_scale.value
        norm = torch.linalg.vector_norm(self._flat.gradients) / scale
        skipped = (~norm.isfinite()).float()
        clipping = (norm / settings.clip_norm).clamp(min=1.0) if settings.clip_norm else 1.0
        self._updates += 1 - skipped
        rate = self._learning_rate
        both = skipped, 1 / (scale * clipping), 1 - rate * settings.weight_decay
        correction = 1 - settings.beta1**self._updates
        root_correction = (1 - settings.beta2**self._updates).sqrt()
        of_adam = _stack(*both, rate / correction, root_correction)
        self._adam(self._flat, of_adam, settings.beta1, settings.beta2, settings.epsilon)
        if self._flat.of_muon:
            of_muon = _stack(*both, rate * settings.matrix_rate)
            self._muon(self._flat, of_muon, settings.momentum)
        self._results.copy_(torch.stack([*self._sums, norm, skipped, scale]))
        self._loss_scale.update(skipped)
        self._flat.gradients.zero_()
        self._sums.zero_()


def _stack(*numbers: Tensor) -> Tensor:
    return torch.stack([number.float() for number in numbers])


def _record(work: Callable[[], None]) -> torch.cuda.CUDAGraph:
    """Record work for replay; it runs once before, so that all kernels are compiled."""
    side = torch.cuda.Stream()  # type: ignore[no-untyped-call]
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        work()
    torch.cuda.current_stream().wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    # Other threads may use the GPU meanwhile, as those of NCCL do.
    with torch.cuda.graph(graph, capture_error_mode="thread_local"):
        work()
    return graph


def _seconds(start: torch.cuda.Event, end: torch.cuda.Event) -> float:
    return float(start.elapsed_time(end)) / 1000
