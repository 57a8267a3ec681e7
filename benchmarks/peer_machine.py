"""One of several machines that train as PyTorch's users do; `gpu_machines.py` starts them.

    python benchmarks/peer_machine.py PREPARED SLOTS WAY [--preset base]

A Transformer of PyTorch's own in bfloat16 autocast with fused Adam, in DistributedDataParallel;
each machine has its part of SLOTS real target tokens a step, in padded batches of like length that
lie ready. RANK, WORLD_SIZE and MASTER_ADDR say who meets. The first machine prints a line of JSON.
"""

import argparse
import json
import os
import time
from collections.abc import Callable, Iterable
from itertools import cycle, islice
from pathlib import Path
from typing import Any

import torch
import torch.distributed as distributed
from torch import nn
from torch.distributed.algorithms.ddp_comm_hooks import (
    default_hooks,
    post_localSGD_hook,
    powerSGD_hook,
)
from torch.distributed.algorithms.model_averaging.averagers import PeriodicModelAverager
from torch.distributed.optim import PostLocalSGDOptimizer
from torch.nn.parallel import DistributedDataParallel

from dragoman.config import PRESETS
from dragoman.corpus.store import PreparedCorpus
from peers import Batch, Batches, smoothed_loss
from peers_gpu import make_transformer

WARM_UP, PERIOD = 3, 32
# Steps to count: over a slow link gradients take seconds each, and local steps come in rounds.
WAYS = {"ddp": 6, "bf16": 8, "powersgd": 24, "post-local": 2 * PERIOD}
DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("prepared", type=Path)
    parser.add_argument("slots", type=int)
    parser.add_argument("way", choices=WAYS)
    parser.add_argument("--preset", choices=PRESETS, default="base")
    arguments = parser.parse_args()
    distributed.init_process_group("nccl" if DEVICE.type == "cuda" else "gloo")
    rank, world = distributed.get_rank(), distributed.get_world_size()
    corpus = PreparedCorpus(arguments.prepared)
    words = corpus.subwords()[1].size
    ready = Batches(corpus.train, arguments.slots // world, words, seed=rank)
    batches = [ready[place] for place in range(min(len(ready), 16))]
    torch.manual_seed(1)
    model = make_transformer(PRESETS[arguments.preset], words)[0].to(DEVICE)
    step = make_step(model, arguments.way, words)
    steps = WAYS[arguments.way]
    run(step, islice(cycle(batches), WARM_UP))
    distributed.barrier()
    start = time.perf_counter()
    tokens = run(step, islice(cycle(batches), steps))
    seconds = time.perf_counter() - start
    total = torch.tensor([float(tokens)], device=DEVICE)
    distributed.all_reduce(total)
    if rank == 0:
        found = {"tokens_per_second": float(total) / seconds, "seconds": seconds / steps}
        print(json.dumps(found), flush=True)
    # Some hooks leave threads behind that do not end.
    os._exit(0)


def make_step(model: nn.Module, way: str, padding: int) -> Callable[[Batch], None]:
    """A step as people write it, meeting in one of the ways that PyTorch has."""
    engine = DistributedDataParallel(model)
    optimizer: Any = torch.optim.Adam(engine.parameters(), lr=1e-4, fused=True)
    if way == "bf16":
        engine.register_comm_hook(None, default_hooks.bf16_compress_hook)
    elif way == "powersgd":
        state = powerSGD_hook.PowerSGDState(None, matrix_approximation_rank=4)
        state.start_powerSGD_iter = 2
        engine.register_comm_hook(state, powerSGD_hook.powerSGD_hook)
    elif way == "post-local":
        local = post_localSGD_hook.PostLocalSGDState(  # type: ignore[no-untyped-call]
            None, None, start_localSGD_iter=WARM_UP, post_local_gradient_allreduce=False
        )
        engine.register_comm_hook(local, post_localSGD_hook.post_localSGD_hook)
        averager = PeriodicModelAverager(period=PERIOD, warmup_steps=WARM_UP)
        optimizer = PostLocalSGDOptimizer(optim=optimizer, averager=averager)

    def step(batch: Batch) -> None:
        inputs, target = (one.to(DEVICE, non_blocking=True) for one in batch[:2])
        with torch.autocast(DEVICE.type, torch.bfloat16):
            loss = smoothed_loss(engine, inputs, target, padding)
        loss.backward()  # type: ignore[no-untyped-call]
        optimizer.step()
        optimizer.zero_grad()

    return step


def run(step: Callable[[Batch], None], batches: Iterable[Batch]) -> int:
    """Make steps, and give the real target tokens of this machine."""
    tokens = 0
    for batch in batches:
        step(batch)
        tokens += batch[2]
    if DEVICE.type == "cuda":
        torch.cuda.synchronize()
    return tokens


if __name__ == "__main__":
    main()
