"""The mean of all workers' vectors, computed during training: few bytes, and no device waits.

Inside each machine vectors are added up first. Then every machine sends each other one that one's
part, adds up the parts it was sent, and gives everyone its sum: 2(m-1)/m of the bytes for m
machines, as in a ring; but what travels in few bits is added up in float32, and never overflows.
"""

import math
import queue
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import timedelta
from itertools import cycle, pairwise

import torch
import torch.distributed as distributed
from torch import Tensor

from dragoman.cluster.processes import Workers
from dragoman.cluster.wire_format import (
    WireFormat,
    add_up,
    bits_of,
    pack_parts,
    unpack_parts,
)

# Exchanges side by side, each with connections of its own: while one machine's part of a vector is
# added up and packed, others keep the link busy; and no connection alone has room on the way for
# all that a long or well-filled link holds. On a CPU they take cores from the computing.
LANES = {"cuda": 16, "cpu": 4}
# Of a packed part at most: with a single part to a lane all would be added up at the same time
# while the link rests, and in the end it would wait for the slowest connection. Smaller ones take
# more of the processor, and fast links would wait for it.
BYTES_AT_ONCE = 2**20


def cut_evenly(size: int, count: int) -> list[slice]:
    """Cut a vector into parts whose sizes differ by one at most."""
    ends = [size * place // count for place in range(count + 1)]
    return [slice(*pair) for pair in pairwise(ends)]


@dataclass
class _Part:
    """A part of one vector on its way, in one lane."""

    vector: Tensor  # This worker's.
    mean: Tensor  # To be written.
    error: Tensor | None  # What rounding has kept back so far, to be sent along.
    new_error: Tensor | None  # To be written.
    ready: torch.cuda.Event | None  # When the vector is there, on a GPU.
    finished: threading.Event = field(default_factory=threading.Event)
    done: torch.cuda.Event | None = None
    failure: Exception | None = None

    def wait(self) -> None:
        """Wait until it is home; a device's queue goes on when it is."""
        self.finished.wait()
        if self.failure:
            raise self.failure
        if self.done:
            torch.cuda.current_stream().wait_event(self.done)


@dataclass(frozen=True)
class MeanUnderWay:
    """One vector on its way to becoming everyone's mean."""

    parts: list[_Part]
    mean: Tensor
    new_error: Tensor | None

    def wait(self) -> tuple[Tensor, Tensor | None]:
        """Give the mean once it has arrived, and what rounding has kept back of this worker's."""
        for part in self.parts:
            part.wait()
        return self.mean, self.new_error


class MeanExchange:
    """Makes means of vectors, one after the other, beside whatever else goes on."""

    def __init__(
        self, workers: Workers, form: WireFormat, device: torch.device, timeout: timedelta
    ) -> None:
        self.device = device
        self._form = form
        self._lanes = [_Lane(workers, form, device, timeout) for _ in range(LANES[device.type])]

    def start(self, vector: Tensor, error: Tensor | None = None) -> MeanUnderWay:
        """Set a vector out once the device has made it; nobody waits."""
        mean = torch.empty_like(vector)
        # Zeros: inside one machine nothing is rounded, and nothing is kept back.
        new_error = None if error is None else torch.zeros_like(error)
        ready = torch.cuda.current_stream().record_event() if vector.is_cuda else None
        parts = []
        packed_bytes = len(vector) * bits_of(self._form) / 8
        count = max(len(self._lanes), math.ceil(packed_bytes / BYTES_AT_ONCE))
        for lane, own in zip(cycle(self._lanes), cut_evenly(len(vector), count), strict=False):
            if own.start < own.stop:
                before, after = (one if one is None else one[own] for one in (error, new_error))
                part = _Part(vector[own], mean[own], before, after, ready)
                parts.append(lane.start(part))
        return MeanUnderWay(parts, mean, new_error)

    def __call__(self, buffer: Tensor) -> None:
        """Overwrite a vector with everyone's mean, at once."""
        buffer.copy_(self.start(buffer).wait()[0])


class _Lane:
    """Makes one exchange after the other in a thread."""

    def __init__(
        self, workers: Workers, form: WireFormat, device: torch.device, timeout: timedelta
    ) -> None:
        self._device = device
        self._form = form
        self._workers = workers.count
        machines = list(dict.fromkeys(workers.hosts))
        self._machines = len(machines)
        self._place = machines.index(workers.hosts[workers.rank])
        self._leader = workers.hosts.index(workers.hosts[workers.rank])
        self._is_leader = workers.is_first_on_host
        self._inside: distributed.ProcessGroup | None = None
        for machine in machines:
            ranks = [rank for rank, host in enumerate(workers.hosts) if host == machine]
            if len(ranks) > 1:
                group = distributed.new_group(ranks, timeout=timeout, backend="gloo")
                if workers.rank in ranks:
                    self._inside = group
        leaders = [workers.hosts.index(machine) for machine in machines]
        self._between = distributed.new_group(leaders, timeout=timeout, backend="gloo")
        self._beside: torch.cuda.Stream | None = None
        if device.type == "cuda":
            # Few and short kernels, which the others wait for: they go before those of steps.
            self._beside = torch.cuda.Stream(device, priority=-1)  # type: ignore[no-untyped-call]
        self._queue: queue.SimpleQueue[_Part] = queue.SimpleQueue()
        threading.Thread(target=self._work, daemon=True).start()

    def start(self, part: _Part) -> _Part:
        """Put a part at the end of the queue."""
        self._queue.put(part)
        return part

    def _work(self) -> None:
        if self._beside:
            torch.cuda.set_device(self._device)
        while True:
            part = self._queue.get()
            try:
                with self._on_side_stream(part):
                    self._exchange(part)
            except Exception as error:
                part.failure = error
            part.finished.set()

    @contextmanager
    def _on_side_stream(self, part: _Part) -> Iterator[None]:
        """Let a GPU do this beside its steps."""
        if self._beside is None:
            yield
            return
        with torch.cuda.stream(self._beside):
            if part.ready:
                self._beside.wait_event(part.ready)
            yield
            part.done = self._beside.record_event()

    def _exchange(self, part: _Part) -> None:
        own = self._add_up_inside(part.vector)
        if self._machines == 1:
            torch.div(self._tell_inside(own), self._workers, out=part.mean)
            return
        packed, left_over = pack_parts(own, part.error, self._machines, self._form)
        if self._is_leader:
            packed = self._add_up_between(packed, left_over)
        # Only a machine's first worker sends, and keeps anything back.
        if self._is_leader and part.new_error is not None and left_over is not None:
            part.new_error.copy_(left_over)
        unpack_parts(self._tell_inside(packed), self._form, self._workers, part.mean)

    def _add_up_between(self, packed: Tensor, left_over: Tensor | None) -> Tensor:
        """Give the packed sums of all machines' parts; add what rounding left out of this one's."""
        sent = self._to_host(packed)
        received = self._host_memory(sent.shape)
        distributed.all_to_all_single(received, sent, group=self._between)
        total, left_out = add_up(self._to_device(received), self._form)
        if left_over is not None:
            # This machine answers for its own part: what is left of the sum goes into its next.
            own = left_over[self._place * len(left_out) :][: len(left_out)]
            own += left_out[: len(own)]
        everyone = self._host_memory(sent.shape)
        distributed.all_gather(list(everyone.unbind()), self._to_host(total), group=self._between)
        return self._to_device(everyone)

    def _add_up_inside(self, vector: Tensor) -> Tensor:
        if self._inside is None:
            return vector
        # Gloo adds up in place, and what was sent is needed when the mean is home.
        host = self._to_host(vector) if self._beside else vector.clone()
        distributed.reduce(host, self._leader, group=self._inside)
        return self._to_device(host)

    def _tell_inside(self, tensor: Tensor) -> Tensor:
        if self._inside is None:
            return tensor
        host = self._to_host(tensor)
        distributed.broadcast(host, self._leader, group=self._inside)
        return self._to_device(host)

    def _host_memory(self, shape: torch.Size, kind: torch.dtype = torch.uint8) -> Tensor:
        """Memory that Gloo can use; pinned for a GPU, as copies to any other stop everyone."""
        return torch.empty(shape, dtype=kind, pin_memory=self._beside is not None)

    def _to_host(self, tensor: Tensor) -> Tensor:
        if self._beside is None:
            return tensor
        host = self._host_memory(tensor.shape, tensor.dtype)
        host.copy_(tensor, non_blocking=True)
        self._beside.synchronize()
        return host

    def _to_device(self, host: Tensor) -> Tensor:
        return host.to(self._device, non_blocking=True)
