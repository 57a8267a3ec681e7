"""One of three workers on two machines that exchange vectors; prints what it gets."""

import json
import sys
from datetime import timedelta

import torch
import torch.distributed as distributed

from dragoman.cluster import mean_exchange
from dragoman.cluster.mean_exchange import MeanExchange
from dragoman.cluster.processes import Workers
from dragoman.cluster.wire_format import bits_of

HOSTS = ("hostA", "hostA", "hostB")
SIZE, ROUNDS = 1_500, 12


def vector_of(rank: int, turn: int) -> torch.Tensor:
    generator = torch.Generator().manual_seed(100 * turn + rank)
    return torch.randn(SIZE, generator=generator) * (rank + 1)


def main(rank: int, store: str, form: str) -> None:
    distributed.init_process_group(
        "gloo", init_method=f"file://{store}", rank=rank, world_size=len(HOSTS)
    )
    mean_exchange.BYTES_AT_ONCE = 16 * bits_of(form)  # type: ignore[arg-type]  # Three parts a lane.
    workers = Workers(rank, len(HOSTS), torch.device("cpu"), HOSTS)
    exchange = MeanExchange(workers, form, workers.device, timedelta(seconds=300))  # type: ignore[arg-type]
    error = torch.zeros(SIZE) if form.startswith("int") else None
    means, total = [], torch.zeros(SIZE)
    for turn in range(ROUNDS):
        vector = vector_of(rank, turn)
        mean, kept_back = exchange.start(vector, error).wait()
        assert torch.equal(vector, vector_of(rank, turn)), "what was sent is still needed"
        error = error if kept_back is None else kept_back
        total += mean
        means.append(mean.tolist())
    print(json.dumps({"first": means[0], "total": total.tolist()}))


if __name__ == "__main__":
    main(int(sys.argv[1]), sys.argv[2], sys.argv[3])
