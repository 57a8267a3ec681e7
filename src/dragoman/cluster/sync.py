"""How gradients are summed over all workers, overlapping the backward pass."""

import queue
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, Protocol, assert_never, cast

import torch
import torch.distributed as distributed
from torch import Tensor, nn
from torch.distributed import GradBucket
from torch.distributed.algorithms.ddp_comm_hooks.powerSGD_hook import PowerSGDState, powerSGD_hook
from torch.nn.parallel import DistributedDataParallel

from dragoman.cluster.device_timer import DeviceTimer
from dragoman.cluster.processes import Workers
from dragoman.cluster.wire_format import FLOAT16_LIFT
from dragoman.config import POWERSGD_LEAST_GAIN, DistributedSettings

Reduced = torch.futures.Future[Tensor]

# powersgd starts once the first, wildest gradients are past, as its authors advise.
POWERSGD_FIRST_STEP = 10
EVERYTHING_MEGABYTES = 1_000_000.0


class AllReduce:
    """Sums buffers over all workers: inside each machine first, then between the machines.

    So the wire carries each machine's sum once, however many workers the machine has.
    """

    def __init__(
        self,
        workers: Workers,
        settings: DistributedSettings,
        device: torch.device,
        *,
        is_scaled: bool = False,
    ) -> None:
        self.device = device  # Where the buffers are.
        self.compression = settings.compression
        # What is scaled for float16 already would be lifted out of its range.
        self.lift = FLOAT16_LIFT if self.compression == "fp16" and not is_scaled else 1.0
        machines = list(dict.fromkeys(workers.hosts))
        self._leader = workers.hosts.index(workers.hosts[workers.rank])
        self._is_leader = workers.is_first_on_host
        # With one worker a machine, or one machine, there is nothing to do in two stages.
        self._in_stages = 1 < len(machines) < workers.count
        timeout = timedelta(seconds=settings.timeout_seconds)
        # Sums run beside other messages, which must not get between them.
        self._everyone = distributed.new_group(timeout=timeout)
        if not self._in_stages:
            return
        for machine in machines:
            ranks = [rank for rank, host in enumerate(workers.hosts) if host == machine]
            group = distributed.new_group(ranks, timeout=timeout)
            if workers.rank in ranks:
                self._inside = group
        leaders = [workers.hosts.index(machine) for machine in machines]
        self._between = distributed.new_group(leaders, timeout=timeout)

    def __call__(self, buffer: Tensor) -> None:
        """Overwrite the buffer with the sum of everyone's."""
        packed = self.pack(buffer)
        if not self._in_stages:
            distributed.all_reduce(packed, group=self._everyone)
        else:
            distributed.reduce(packed, self._leader, group=self._inside)
            if self._is_leader:
                distributed.all_reduce(packed, group=self._between)
            distributed.broadcast(packed, self._leader, group=self._inside)
        self.unpack(packed, buffer)

    def pack(self, buffer: Tensor) -> Tensor:
        """The buffer as it travels."""
        match self.compression:
            case "bf16":
                return buffer.bfloat16()
            case "fp16":
                return (buffer * self.lift).half()
            case "none" | "powersgd" | "int8" | "int4" | "int2":
                return buffer  # The engine packs powersgd's own; few bits are for local steps.
            case _:
                assert_never(self.compression)

    def unpack(self, packed: Tensor, buffer: Tensor) -> Tensor:
        """Write what travelled back into the buffer."""
        if packed is not buffer:
            buffer.copy_(packed)
        return buffer.div_(self.lift) if self.lift != 1.0 else buffer


class Reduction(Protocol):
    """Overwrites a buffer with what all workers make of theirs."""

    device: torch.device  # Where the buffers are.

    def __call__(self, buffer: Tensor) -> None:
        """Return when everyone's is there, or when the device has been told to wait for it."""


@dataclass(frozen=True)
class Exchange:
    """How everything that workers exchange at a time travels, for whoever wants to time it."""

    total: Reduction
    piece_bytes: float  # At most so many at a time.


class GradientSync:
    """Wraps a model so that its gradients are sums over all workers."""

    def __init__(
        self,
        model: nn.Module,
        workers: Workers,
        settings: DistributedSettings,
        total: AllReduce | None,
    ) -> None:
        self.model = model
        # From the moment in the last backward pass when its own work was done until all sums had
        # arrived; on a GPU both are moments of its queue, which the pass leaves waiting for them.
        self.seconds_exposed = 0.0
        self.divisor = 1  # What the engine has divided the sums by.
        self._powersgd: PowerSGDState | None = None
        self._backward_done, self._arrived = (
            DeviceTimer(workers.device),
            DeviceTimer(workers.device),
        )
        if total is None:
            return
        self._is_cuda = workers.device.type == "cuda"
        # PyTorch's powersgd aborts on Gloo when there are several buckets.
        one_bucket = settings.compression == "powersgd" and not self._is_cuda
        wrapped = DistributedDataParallel(
            model,
            device_ids=[workers.device] if self._is_cuda else None,
            bucket_cap_mb=EVERYTHING_MEGABYTES if one_bucket else settings.bucket_megabytes,
            gradient_as_bucket_view=True,
            # All have the same weights by now, and sending them takes long on a slow link.
            init_sync=False,
        )
        if settings.compression == "powersgd":
            self.divisor = workers.count
            self._powersgd = PowerSGDState(
                process_group=None,
                matrix_approximation_rank=settings.powersgd_rank,
                start_powerSGD_iter=POWERSGD_FIRST_STEP,
                min_compression_rate=POWERSGD_LEAST_GAIN,
            )
        self._total, self._in_order = total, InOrder(total)
        wrapped.register_comm_hook(None, self._sum_bucket)
        self.model = wrapped

    @contextmanager
    def gradients(self, *, enabled: bool) -> Iterator[None]:
        """Run a forward and backward pass; only the last of a step synchronizes."""
        if not isinstance(self.model, DistributedDataParallel):
            yield
        elif enabled:
            yield
            self._arrived.mark()
            self.seconds_exposed = self._backward_done.seconds_until(self._arrived)
            self._in_order.raise_failure()
        else:
            with self.model.no_sync():
                yield

    def forget(self) -> None:
        """Drop powersgd's memory of past gradients: one that is not finite would never leave it."""
        if self._powersgd:
            for memory in ("error_dict", "p_memory_dict", "q_memory_dict"):
                getattr(self._powersgd, memory).clear()

    def _sum_bucket(self, _: object, bucket: GradBucket) -> Reduced:
        """Start one bucket's sum; the last bucket is ready when the backward pass is done."""
        self._backward_done.mark()
        if self._powersgd:
            return powerSGD_hook(self._powersgd, bucket)
        if not self._is_cuda:
            return self._in_order.start(bucket.buffer())
        # NCCL knows the machines' insides itself, and works beside the backward pass's kernels.
        buffer = bucket.buffer()
        work = distributed.all_reduce(self._total.pack(buffer), async_op=True)
        assert work is not None
        reduced = cast(torch.futures.Future[list[Tensor]], work.get_future())
        return reduced.then(lambda done: self._total.unpack(done.value()[0], buffer))


class InOrder:
    """Sums buffers in a thread, one after the other, in the order in which they were started."""

    def __init__(self, total: AllReduce) -> None:
        self._total = total
        self._queue: queue.SimpleQueue[tuple[Tensor, Reduced]] = queue.SimpleQueue()
        self._failure: Exception | None = None
        threading.Thread(target=self._work, daemon=True).start()

    def start(self, buffer: Tensor) -> Reduced:
        """Return at once; the future has the sum."""
        future: Any = torch.futures.Future()
        self._queue.put((buffer, future))
        return cast(Reduced, future)

    def raise_failure(self) -> None:
        """Raise here what went wrong in the thread."""
        if self._failure:
            raise self._failure

    def _work(self) -> None:
        while True:
            buffer, future = self._queue.get()
            try:
                if self._failure is None:
                    self._total(buffer)
            except Exception as error:
                # The engine cannot take an exception from a future; it is raised afterwards.
                self._failure = error
            future.set_result(buffer)
