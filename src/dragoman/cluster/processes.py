"""The process group: who takes part, sums over all, and worker 0's decisions for all."""

import json
import os
import socket
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as distributed
from torch import Tensor


@dataclass(frozen=True)
class Workers:
    """All workers of a run, as one of them sees them."""

    rank: int
    count: int
    device: torch.device

    @property
    def is_first(self) -> bool:
        """Whether this is worker 0, which writes the run folder."""
        return self.rank == 0

    def sum(self, values: Sequence[float]) -> list[float]:
        """Add up each value over all workers."""
        if self.count == 1:
            return list(values)
        total = torch.tensor(values, dtype=torch.float64)
        distributed.all_reduce(total, group=_control_group())
        return [float(value) for value in total]

    def gather(self, values: Sequence[float]) -> list[list[float]]:
        """Collect a few numbers of every worker, by rank."""
        if self.count == 1:
            return [list(values)]
        mine = torch.tensor(values, dtype=torch.float64)
        everyone = [torch.empty_like(mine) for _ in range(self.count)]
        distributed.all_gather(everyone, mine, group=_control_group())
        return [[float(value) for value in one] for one in everyone]

    def broadcast(self, value: Any) -> Any:
        """Give everyone worker 0's value, as JSON: nothing that could run code is unpacked."""
        if self.count == 1:
            return value
        return json.loads(
            self._broadcast_bytes(json.dumps(value).encode() if self.is_first else b"")
        )

    def gather_json(self, value: Any) -> list[Any]:
        """Collect a value of every worker, by rank, as JSON."""
        if self.count == 1:
            return [value]
        mine = json.dumps(value).encode()
        longest = int(max(size for (size,) in self.gather([len(mine)])))
        padded = torch.zeros(longest, dtype=torch.uint8)
        padded[: len(mine)] = torch.frombuffer(bytearray(mine), dtype=torch.uint8)
        everyone = [torch.empty_like(padded) for _ in range(self.count)]
        distributed.all_gather(everyone, padded, group=_control_group())
        return [json.loads(bytes(one.numpy()).rstrip(b"\0")) for one in everyone]

    def broadcast_tensors(self, tensors: Iterable[Tensor]) -> None:
        """Overwrite tensors with worker 0's."""
        if self.count > 1:
            for tensor in tensors:
                distributed.broadcast(tensor, src=0)

    def leave(self) -> None:
        """End this worker's part in the process group."""
        if self.count > 1:
            distributed.destroy_process_group()

    def _broadcast_bytes(self, content: bytes) -> bytes:
        size = torch.tensor([len(content)])
        distributed.broadcast(size, src=0, group=_control_group())
        buffer = torch.zeros(int(size), dtype=torch.uint8)
        if self.is_first:
            buffer.copy_(torch.frombuffer(bytearray(content), dtype=torch.uint8))
        distributed.broadcast(buffer, src=0, group=_control_group())
        return bytes(buffer.numpy())


def join_workers(timeout_seconds: float) -> Workers:
    """Join the world this process was started in (torchrun, srun), or stand alone."""
    count = int(os.environ.get("WORLD_SIZE", "1"))
    local_rank = int(os.environ.get("LOCAL_RANK", "0"))
    device = _pick_device(local_rank)
    if count > 1:
        # Gradients go over NCCL between GPUs; small messages and CPUs always use Gloo.
        backend = "cpu:gloo,cuda:nccl" if device.type == "cuda" else "gloo"
        distributed.init_process_group(backend, timeout=timedelta(seconds=timeout_seconds))
    return Workers(int(os.environ.get("RANK", "0")), count, device)


def host_name() -> str:
    """Name of this machine, as in the run folder."""
    return socket.gethostname()


def _control_group() -> Any:
    return distributed.group.WORLD


def _pick_device(local_rank: int) -> torch.device:
    if torch.cuda.is_available():
        device = torch.device("cuda", local_rank)
        torch.cuda.set_device(device)
        return device
    return torch.device("cpu")
