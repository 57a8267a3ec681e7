"""Measures the links between machines: goodput and latency, each machine in one pair at a time."""

import os
import statistics
import time
from collections.abc import Sequence

import torch
import torch.distributed as distributed

from dragoman.cluster.network import link_speed_mbit, route_over
from dragoman.cluster.processes import Workers
from dragoman.records import Link

PING_PONGS = 10
CHUNK_BYTES = 1 << 20
MOST_CHUNKS = 1_024
SECONDS_PER_LINK = 0.2  # Before training.


def neighbours(workers: Workers) -> list[tuple[str, str]]:
    """Each machine with the next, as in the ring that gradients travel; both directions."""
    machines = list(dict.fromkeys(workers.hosts))
    if len(machines) < 2:
        return []
    ring = list(zip(machines, [*machines[1:], machines[0]], strict=True))
    pairs = [*ring, *((second, first) for first, second in ring)]
    return list(dict.fromkeys(pairs))


def all_pairs(workers: Workers) -> list[tuple[str, str]]:
    """Every machine with every other, both directions."""
    machines = list(dict.fromkeys(workers.hosts))
    return [(first, second) for first in machines for second in machines if first != second]


def in_rounds(pairs: Sequence[tuple[str, str]]) -> list[list[tuple[str, str]]]:
    """Spread pairs over rounds in which no machine has two things to do."""
    rounds: list[list[tuple[str, str]]] = []
    for pair in pairs:
        for one in rounds:
            if not any(set(pair) & set(other) for other in one):
                one.append(pair)
                break
        else:
            rounds.append([pair])
    return rounds


def measure_links(
    workers: Workers, pairs: Sequence[tuple[str, str]], seconds_each: float
) -> list[Link]:
    """Send something along each pair; every worker learns the results."""
    if not pairs:
        return []
    # All workers talk through this one, whoever started them.
    own = route_over(os.environ["GLOO_SOCKET_IFNAME"].split(",")[0], "GLOO_SOCKET_IFNAME")
    routes = workers.gather_json([own.interface, own.address, link_speed_mbit(own.interface)])
    first_worker = {host: workers.hosts.index(host) for host in workers.hosts}
    links = {}
    for pairs_at_once in in_rounds(pairs):
        mine = [0.0, 0.0]
        for pair in pairs_at_once:
            sender, receiver = (first_worker[host] for host in pair)
            if workers.rank == sender:
                mine = _send(receiver, seconds_each)
            elif workers.rank == receiver:
                _receive(sender)
        # Hearing from all keeps rounds apart: two at a time would share an interface.
        everyone = workers.gather(mine)
        for pair in pairs_at_once:
            sender = first_worker[pair[0]]
            links[pair] = Link(pair, *routes[sender], *everyone[sender])
    return [links[pair] for pair in pairs]


def _send(receiver: int, seconds: float) -> list[float]:
    latency = _ping(receiver)
    # One chunk tells how many fill the time.
    guess = CHUNK_BYTES / _seconds_to_send(receiver, 1)
    chunks = max(1, min(MOST_CHUNKS, round(guess * seconds / CHUNK_BYTES)))
    elapsed = _seconds_to_send(receiver, chunks)
    # The acknowledgement's way back is not part of the way there.
    goodput = chunks * CHUNK_BYTES / max(elapsed - latency, 1e-9)
    return [goodput, latency]


def _receive(sender: int) -> None:
    byte = torch.zeros(1, dtype=torch.uint8)
    for _ in range(PING_PONGS):
        distributed.recv(byte, sender)
        distributed.send(byte, sender)
    for _ in range(2):
        count = torch.zeros(1, dtype=torch.int64)
        distributed.recv(count, sender)
        chunk = torch.empty(CHUNK_BYTES, dtype=torch.uint8)
        for _ in range(int(count)):
            distributed.recv(chunk, sender)
        distributed.send(byte, sender)


def _ping(receiver: int) -> float:
    byte = torch.zeros(1, dtype=torch.uint8)
    times = []
    for _ in range(PING_PONGS):
        start = time.perf_counter()
        distributed.send(byte, receiver)
        distributed.recv(byte, receiver)
        times.append(time.perf_counter() - start)
    return statistics.median(times) / 2


def _seconds_to_send(receiver: int, chunks: int) -> float:
    chunk = torch.zeros(CHUNK_BYTES, dtype=torch.uint8)
    start = time.perf_counter()
    distributed.send(torch.tensor([chunks]), receiver)
    for _ in range(chunks):
        distributed.send(chunk, receiver)
    distributed.recv(torch.zeros(1, dtype=torch.uint8), receiver)
    return time.perf_counter() - start
