"""How much of a link an exchange of means fills, by the size of the parts that it travels in.

    python benchmarks/exchange.py [--machines N] [--rate 1gbit] [--form bf16] [--elements N]

Network namespaces with shaped links, one process each, on a GPU if there is one, which computes
nothing else meanwhile. Gloo's own all-reduce of as many bytes is measured in the same run. Needs
root and iproute2.
"""

import argparse
import os
import sys
import tempfile
import time
from collections.abc import Callable
from datetime import timedelta
from functools import partial
from pathlib import Path

import torch
import torch.distributed as distributed
from torch import Tensor

from dragoman.cluster import mean_exchange
from dragoman.cluster.mean_exchange import MeanExchange
from dragoman.cluster.processes import Workers
from dragoman.cluster.wire_format import ROUNDED, bits_of
from dragoman.prediction.network import ring_share
from shared_gpu import machines, side_by_side, start, wait_for

ROUNDS = 5
PATIENCE = timedelta(seconds=120)
# Bytes of a packed part at most; one part to a lane comes first.
PARTS = (2**40, 2**22, 2**21, 2**20, 2**19)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--machines", type=int, default=2)
    parser.add_argument("--rate", default="1gbit", help="as tc spells it")
    parser.add_argument("--form", default="bf16", help="as distributed.compression has it")
    parser.add_argument("--elements", type=int, default=60_880_896)
    arguments = parser.parse_args()
    if "RANK" in os.environ:
        measure(arguments.machines, arguments.form, arguments.elements)
        return
    command = [sys.executable, __file__, *sys.argv[1:]]
    with tempfile.TemporaryDirectory() as name, side_by_side(arguments.machines):
        with machines(arguments.machines, arguments.rate) as names:
            logs = Path(name) / "log"
            is_well = wait_for(start(names, [command] * len(names), logs), 500)
        told = Path(f"{logs}-0.log").read_text()
    print(told, end="")
    if not is_well:
        raise SystemExit(1)


def measure(count: int, form: str, elements: int) -> None:
    """One machine's side; the first one prints the table."""
    rank = int(os.environ["RANK"])
    distributed.init_process_group("gloo", timeout=PATIENCE)
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    torch.set_num_threads(1)
    workers = Workers(rank, count, device, tuple(map(str, range(count))))
    size = elements * bits_of(form) // 8  # type: ignore[arg-type]
    sent = ring_share(count) * size
    if rank == 0:
        print(f"{form}, {count} machines, {sent / 1e6:.0f} MB sent by each, {device.type}")
        print("| way | seconds | MB/s each way |\n|---|---|---|")
    rows = {"Gloo's all-reduce": gloo(size)}
    vector = torch.randn(elements, device=device)
    error = torch.zeros_like(vector) if form in ROUNDED else None
    for at_once in PARTS:
        mean_exchange.BYTES_AT_ONCE = at_once
        exchange = MeanExchange(workers, form, device, PATIENCE)  # type: ignore[arg-type]
        parts = exchange.start(vector, error).parts
        label = f"{len(parts)} parts of {parts[0].vector.numel():,} elements"
        for part in parts:
            part.wait()
        rows[label] = seconds_of(partial(mean_of, exchange, vector, error))
    if rank == 0:
        for way, seconds in rows.items():
            print(f"| {way} | {seconds:.3f} | {sent / seconds / 1e6:.0f} |")
    distributed.barrier()


def gloo(size: int) -> float:
    """Seconds of an all-reduce of so many bytes, of float32 in the host's memory."""
    buffer = torch.zeros(size // 4)
    return seconds_of(partial(distributed.all_reduce, buffer))


def mean_of(exchange: MeanExchange, vector: Tensor, error: Tensor | None) -> None:
    """Exchange a vector and wait for the mean."""
    exchange.start(vector, error).wait()


def seconds_of(exchange: Callable[[], object]) -> float:
    """Mean seconds, after a first time."""
    exchange()
    distributed.barrier()
    begin = time.perf_counter()
    for _ in range(ROUNDS):
        exchange()
    if torch.cuda.is_available():
        torch.cuda.synchronize()
    return (time.perf_counter() - begin) / ROUNDS


if __name__ == "__main__":
    main()
