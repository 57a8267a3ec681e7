"""How gradients meet: summed over all workers, overlapping the backward pass."""

import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import cast

import torch
import torch.distributed as distributed
from torch import Tensor, nn
from torch._C._distributed_c10d import GradBucket
from torch.distributed.algorithms.ddp_comm_hooks.powerSGD_hook import PowerSGDState, powerSGD_hook
from torch.nn.parallel import DistributedDataParallel

from dragoman.cluster.processes import Workers
from dragoman.config import DistributedSettings

Reduced = torch.futures.Future[Tensor]

# float16 loses numbers under 6e-8; gradients of a mean loss are lifted well above that.
FLOAT16_LIFT = 2.0**10
# powersgd starts once the first, wildest gradients are past, as its authors advise.
POWERSGD_FIRST_STEP = 10
EVERYTHING_MEGABYTES = 1_000_000.0


class GradientSync:
    """Wraps a model so that its gradients are sums over all workers."""

    def __init__(self, model: nn.Module, workers: Workers, settings: DistributedSettings) -> None:
        self.model = model
        self.seconds_exposed = 0.0  # The last backward pass waited this long for others.
        self.divisor = 1  # What the engine has divided the sums by.
        self._compression = settings.compression
        self._backward_done = 0.0
        if workers.count == 1:
            return
        is_cuda = workers.device.type == "cuda"
        # PyTorch's powersgd aborts on Gloo when there are several buckets.
        one_bucket = self._compression == "powersgd" and not is_cuda
        self._wrapped = DistributedDataParallel(
            model,
            device_ids=[workers.device] if is_cuda else None,
            bucket_cap_mb=EVERYTHING_MEGABYTES if one_bucket else settings.bucket_megabytes,
            gradient_as_bucket_view=True,
        )
        if self._compression == "powersgd":
            self.divisor = workers.count
            self._powersgd = PowerSGDState(
                process_group=None,
                matrix_approximation_rank=settings.powersgd_rank,
                start_powerSGD_iter=POWERSGD_FIRST_STEP,
            )
        self._wrapped.register_comm_hook(None, self._sum_bucket)
        self.model = self._wrapped

    @contextmanager
    def gradients(self, *, enabled: bool) -> Iterator[None]:
        """Run a forward and backward pass; only the last of a step meets the others."""
        if not isinstance(self.model, DistributedDataParallel):
            yield
        elif enabled:
            yield
            self.seconds_exposed = time.perf_counter() - self._backward_done
        else:
            with self.model.no_sync():
                yield

    def _sum_bucket(self, _: object, bucket: GradBucket) -> Reduced:
        """Start one bucket's sum; the last bucket is ready when the backward pass is done."""
        self._backward_done = time.perf_counter()
        buffer = bucket.buffer()
        match self._compression:
            case "none":
                return _all_reduce(buffer).then(lambda done: done.value()[0])
            case "bf16":
                packed = buffer.bfloat16()
                return _all_reduce(packed).then(lambda done: buffer.copy_(done.value()[0]))
            case "fp16":
                packed = (buffer * FLOAT16_LIFT).half()
                return _all_reduce(packed).then(
                    lambda done: buffer.copy_(done.value()[0]).div_(FLOAT16_LIFT)
                )
            case _:
                return powerSGD_hook(self._powersgd, bucket)


def _all_reduce(buffer: Tensor) -> torch.futures.Future[list[Tensor]]:
    work = distributed.all_reduce(buffer, async_op=True)
    assert work is not None
    return cast(torch.futures.Future[list[Tensor]], work.get_future())
