"""The mean of everyone's vector, made beside the training: few bytes, and no device waits for it.

Inside each machine vectors are added up first. Then every machine sends each other one that one's
part, adds up the parts it was sent, and gives everyone its sum: 2(m-1)/m of the bytes for m
machines, as in a ring; but what travels in few bits is added up in float32, and never overflows.
"""

import queue
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import timedelta

import torch
import torch.distributed as distributed
from torch import Tensor

from dragoman.cluster.processes import Workers
from dragoman.cluster.wire_format import WireFormat, pack, padded_size, unpack


@dataclass
class MeanUnderWay:
    """One vector on its way to becoming everyone's mean."""

    vector: Tensor  # This worker's.
    error: Tensor | None  # What rounding has kept back so far, to be sent along.
    ready: torch.cuda.Event | None  # When the vector is there, on a GPU.
    finished: threading.Event = field(default_factory=threading.Event)
    mean: Tensor | None = None
    new_error: Tensor | None = None
    done: torch.cuda.Event | None = None
    failure: Exception | None = None


class MeanExchange:
    """Makes one exchange after the other in a thread."""

    def __init__(
        self, workers: Workers, form: WireFormat, device: torch.device, timeout: timedelta
    ) -> None:
        self.device = device
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
            group = distributed.new_group(ranks, timeout=timeout, backend="gloo")
            if workers.rank in ranks and len(ranks) > 1:
                self._inside = group
        leaders = [workers.hosts.index(machine) for machine in machines]
        self._between = distributed.new_group(leaders, timeout=timeout, backend="gloo")
        self._beside = torch.cuda.Stream(device) if device.type == "cuda" else None  # type: ignore[no-untyped-call]
        self._queue: queue.SimpleQueue[MeanUnderWay] = queue.SimpleQueue()
        threading.Thread(target=self._work, daemon=True).start()

    def start(self, vector: Tensor, error: Tensor | None = None) -> MeanUnderWay:
        """Set a vector out once the device has made it; nobody waits."""
        ready = torch.cuda.current_stream().record_event() if self._beside else None
        exchange = MeanUnderWay(vector, error, ready)
        self._queue.put(exchange)
        return exchange

    def wait(self, exchange: MeanUnderWay) -> Tensor:
        """Give the mean once it has arrived; the device's queue goes on from there."""
        exchange.finished.wait()
        if exchange.failure:
            raise exchange.failure
        assert exchange.mean is not None
        if exchange.done:
            stream = torch.cuda.current_stream()
            stream.wait_event(exchange.done)
            exchange.mean.record_stream(stream)
            if exchange.new_error is not None:
                exchange.new_error.record_stream(stream)
        return exchange.mean

    def __call__(self, buffer: Tensor) -> None:
        """Overwrite a vector with everyone's mean, at once."""
        buffer.copy_(self.wait(self.start(buffer)))

    def _work(self) -> None:
        if self._beside:
            torch.cuda.set_device(self.device)
        while True:
            exchange = self._queue.get()
            try:
                with self._on_side_stream(exchange):
                    self._exchange(exchange)
            except Exception as error:
                exchange.failure = error
            exchange.finished.set()

    @contextmanager
    def _on_side_stream(self, exchange: MeanUnderWay) -> Iterator[None]:
        """Let a GPU do this beside its steps."""
        if self._beside is None:
            yield
            return
        with torch.cuda.stream(self._beside):
            if exchange.ready:
                self._beside.wait_event(exchange.ready)
            yield
            exchange.done = self._beside.record_event()

    def _exchange(self, exchange: MeanUnderWay) -> None:
        size = padded_size(exchange.vector.numel(), self._machines)
        padding = size - exchange.vector.numel()
        own = self._add_up_inside(torch.nn.functional.pad(exchange.vector, (0, padding)))
        if self._machines == 1:
            total = self._tell_inside(own)
        else:
            if exchange.error is not None:
                own = own + torch.nn.functional.pad(exchange.error, (0, padding))
            parts = pack(own.view(self._machines, -1), self._form)
            sums = torch.empty_like(parts)
            if self._is_leader:
                sums, left_over = self._add_up_between(own, parts)
                if exchange.error is not None:
                    exchange.new_error = left_over.view(-1)[: exchange.vector.numel()]
            total = unpack(self._tell_inside(sums), self._form).view(-1)
        exchange.mean = total[: exchange.vector.numel()] / self._workers

    def _add_up_between(self, own: Tensor, parts: Tensor) -> tuple[Tensor, Tensor]:
        """Give the packed sums of all parts, and what rounding left out of them here."""
        left_over = own.view(self._machines, -1) - unpack(parts, self._form)
        sent = self._to_host(parts)
        received = self._host_memory(sent.shape)
        distributed.all_to_all_single(received, sent, group=self._between)
        total = unpack(self._to_device(received), self._form).sum(dim=0)
        packed = pack(total, self._form)
        # This machine answers for its own part: what is left of the sum goes into its next one.
        left_over[self._place] += total - unpack(packed, self._form)
        everyone = self._host_memory(parts.shape)
        distributed.all_gather(list(everyone.unbind()), self._to_host(packed), group=self._between)
        return self._to_device(everyone), left_over

    def _add_up_inside(self, vector: Tensor) -> Tensor:
        if self._inside is None:
            return vector
        host = self._to_host(vector)
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
        return host.to(self.device, non_blocking=True)
