"""How gradients meet: summed over all workers, overlapping the backward pass."""

import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import cast

import torch
import torch.distributed as distributed
from torch import Tensor, nn
from torch._C._distributed_c10d import GradBucket
from torch.nn.parallel import DistributedDataParallel

from dragoman.cluster.processes import Workers

# Small enough that most of the traffic is under way before the backward pass ends.
BUCKET_MEGABYTES = 4.0


class GradientSync:
    """Wraps a model so that its gradients are sums over all workers."""

    def __init__(self, model: nn.Module, workers: Workers) -> None:
        self.model = model
        self.seconds_exposed = 0.0  # The last backward pass waited this long for others.
        self._backward_done = 0.0
        if workers.count > 1:
            wrapped = DistributedDataParallel(
                model,
                device_ids=[workers.device] if workers.device.type == "cuda" else None,
                bucket_cap_mb=BUCKET_MEGABYTES,
                gradient_as_bucket_view=True,
            )
            wrapped.register_comm_hook(None, self._sum_bucket)
            self.model = wrapped

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

    def _sum_bucket(self, _: object, bucket: GradBucket) -> torch.futures.Future[Tensor]:
        """Start one bucket's sum; the last bucket is ready when the backward pass is done."""
        self._backward_done = time.perf_counter()
        work = distributed.all_reduce(bucket.buffer(), async_op=True)
        assert work is not None
        future = cast(torch.futures.Future[list[Tensor]], work.get_future())
        return future.then(lambda done: done.value()[0])
