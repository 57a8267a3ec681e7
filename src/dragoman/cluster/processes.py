"""The process group: its members, sums over all workers, and worker 0's decisions for all."""

import json
import os
import socket
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
import torch.distributed as distributed
from torch import Tensor

from dragoman.child_process import PARENT, die_with_parent, is_launched
from dragoman.cluster.control_store import (
    ADDRESS_VARIABLE,
    ATTEMPT_VARIABLE,
    launched_control_store,
)
from dragoman.cluster.network import interface_seen_by, route_over, route_to
from dragoman.cluster.signed_store import SignedStore
from dragoman.cluster.world import read_world, told_once_per_machine
from dragoman.config import DistributedSettings
from dragoman.errors import Unreachable, UserError

KNOCK_SECONDS = 5.0
KNOCKS_AT_ONCE = 128  # Of strangers, who may try every port they find.
LAUNCHER_SETTINGS = ("port", "min_workers", "wait_seconds", "max_restarts")


@dataclass(frozen=True)
class Gathering:
    """Numbers of every worker, on their way here."""

    everyone: list[Tensor]
    work: Any  # None if nothing travels.

    def wait(self) -> list[list[float]]:
        """Give them by rank, once all are here."""
        if self.work is not None:
            self.work.wait()
        return [one.tolist() for one in self.everyone]


@dataclass(frozen=True)
class Workers:
    """All workers of a run, as one of them sees them."""

    rank: int
    count: int
    device: torch.device
    hosts: tuple[str, ...] = ("",)  # The machine of each worker, by rank.

    @property
    def is_first(self) -> bool:
        """Whether this is worker 0, which speaks for all."""
        return self.rank == 0

    @property
    def is_first_on_host(self) -> bool:
        """Whether this is the lowest worker of its machine."""
        return self.hosts.index(self.hosts[self.rank]) == self.rank

    def gather(self, values: Sequence[float]) -> list[list[float]]:
        """Collect a few numbers of every worker, by rank."""
        return self.start_gather(values).wait()

    def gather_number(self, value: float) -> list[float]:
        """Collect one number of every worker, by rank."""
        return [number for (number,) in self.gather([value])]

    def barrier(self) -> None:
        """Wait until every worker has come this far."""
        self.gather([0.0])

    def start_gather(self, values: Sequence[float]) -> "Gathering":
        """Begin to collect a few numbers of every worker, without waiting for anyone."""
        mine = torch.tensor(values, dtype=torch.float64)
        if self.count == 1:
            return Gathering([mine], None)
        everyone = [torch.empty_like(mine) for _ in range(self.count)]
        return Gathering(everyone, distributed.all_gather(everyone, mine, async_op=True))

    def broadcast(self, value: Any, source: int = 0) -> Any:
        """Give everyone one worker's value, as JSON: nothing that could run code is unpacked."""
        if self.count == 1:
            return value
        content = json.dumps(value).encode() if self.rank == source else b""
        return json.loads(self.broadcast_bytes(content, source))

    def gather_json(self, value: Any) -> list[Any]:
        """Collect a value of every worker, by rank, as JSON."""
        if self.count == 1:
            return [value]
        mine = json.dumps(value).encode()
        longest = int(max(self.gather_number(len(mine))))
        padded = torch.zeros(longest, dtype=torch.uint8)
        padded[: len(mine)] = torch.frombuffer(bytearray(mine), dtype=torch.uint8)
        everyone = [torch.empty_like(padded) for _ in range(self.count)]
        distributed.all_gather(everyone, padded)
        return [json.loads(bytes(one.numpy()).rstrip(b"\0")) for one in everyone]

    def broadcast_tensors(self, tensors: Iterable[Tensor], source: int = 0) -> None:
        """Overwrite tensors with those of one worker."""
        if self.count > 1:
            for tensor in tensors:
                distributed.broadcast(tensor, src=source)

    def leave(self) -> None:
        """End this worker's part in the process group."""
        if self.count > 1:
            distributed.destroy_process_group()

    def broadcast_bytes(self, content: bytes, source: int = 0) -> bytes:
        """Give everyone one worker's bytes."""
        if self.count == 1:
            return content
        size = torch.tensor([len(content)])
        distributed.broadcast(size, src=source)
        buffer = torch.zeros(int(size), dtype=torch.uint8)
        if self.rank == source and content:
            buffer.copy_(torch.frombuffer(bytearray(content), dtype=torch.uint8))
        distributed.broadcast(buffer, src=source)
        return bytes(buffer.numpy())


def join_workers(settings: DistributedSettings) -> Workers:
    """Join the world this process was started in, or stand alone."""
    world = read_world()
    device = _pick_device(world.local_rank)
    if world.count == 1:
        return Workers(0, 1, device, (host_name(),))
    die_with_parent(PARENT)
    # Gradients go over NCCL between GPUs; small messages and CPUs always use Gloo, and so do
    # workers that share a GPU, which NCCL refuses.
    is_shared = world.local_count > max(1, torch.cuda.device_count())
    backend = "cpu:gloo,cuda:nccl" if device.type == "cuda" and not is_shared else "gloo"
    timeout = timedelta(seconds=settings.timeout_seconds)
    if control := launched_control_store():
        # The launcher's store, so that no training machine is indispensable.
        attempt = os.environ[ATTEMPT_VARIABLE]
        check_reachable(world.local_rank, control.notices_of(attempt), timeout)
        distributed.init_process_group(
            backend,
            store=control.group_store(attempt),
            rank=world.rank,
            world_size=world.count,
            timeout=timeout,
        )
    else:
        with told_once_per_machine():
            _refuse_launcher_settings(settings)
            _choose_interface(settings.interface)
        try:
            distributed.init_process_group(
                backend, rank=world.rank, world_size=world.count, timeout=timeout
            )
        except (distributed.DistNetworkError, distributed.DistStoreError) as error:
            address, port = (os.environ[f"MASTER_{name}"] for name in ("ADDR", "PORT"))
            raise UserError(
                f"the workers cannot connect to each other at MASTER_ADDR={address}, "
                f"MASTER_PORT={port} ({str(error).splitlines()[0]}); start all of them, and set "
                "these to worker 0's machine and a free port"
            ) from None
    workers = Workers(world.rank, world.count, device)
    place = [host_name(), _boot(), os.environ.get(ADDRESS_VARIABLE, "")]
    gathered = workers.gather_json([place, world.local_rank])
    places = [place for place, _ in gathered]
    refuse_namesakes(places)
    if is_launched():
        refuse_twins([(name, local_rank) for (name, *_), local_rank in gathered])
    return replace(workers, hosts=tuple(name for name, *_ in places))


def refuse_namesakes(places: Sequence[Sequence[str]]) -> None:
    """Refuse machines with the same name, by which they are told apart everywhere.

    A worker's place is the name of its machine, what it calls this boot, and its address.
    """
    first_with: dict[str, int] = {}
    for rank, (name, *machine) in enumerate(places):
        first = first_with.setdefault(name, rank)
        if machine != places[first][1:]:
            one, other = (
                f"worker {worker}{f' at {address}' if address else ''}"
                for worker, address in ((first, places[first][-1]), (rank, machine[-1]))
            )
            raise UserError(
                f"two machines have the host name {name}, {one} and {other}; give each its own "
                "(hostnamectl set-hostname)"
            )


def refuse_twins(places: Sequence[Sequence[Any]]) -> None:
    """Refuse a machine that `--hosts` names twice, by its name and its address perhaps.

    A worker's place is the name of its machine, and its rank among those of its agent.
    """
    for place in places:
        if places.count(place) > 1:
            count = sum(name == place[0] for name, _ in places)
            raise UserError(
                f"--hosts names the machine {place[0]} twice: name it once, as HOST:{count}"
            )


def _refuse_launcher_settings(settings: DistributedSettings) -> None:
    """Under torchrun or Slurm there is no launcher of ours to heed them."""
    defaults = DistributedSettings()
    for name in LAUNCHER_SETTINGS:
        if getattr(settings, name) != getattr(defaults, name):
            raise UserError(
                f"distributed.{name} only works with --workers and --hosts; remove it and use "
                "torchrun's or Slurm's own option"
            )


def _choose_interface(asked: str) -> None:
    """Under torchrun or Slurm: use the interface asked for, or the one on the way to the master."""
    master = os.environ.get("MASTER_ADDR")
    if not master:
        raise UserError(
            "MASTER_ADDR is not set: export it in the batch file (see docs/distributed.md)"
        )
    if asked:
        interface = route_to(master, asked).interface
        os.environ |= {"GLOO_SOCKET_IFNAME": interface, "NCCL_SOCKET_IFNAME": interface}
    elif given := os.environ.get("GLOO_SOCKET_IFNAME"):
        for name in given.split(","):
            route_over(name, f"GLOO_SOCKET_IFNAME={given}")
    else:
        machines = int(os.environ.get("GROUP_WORLD_SIZE") or os.environ.get("SLURM_NNODES") or 1)
        os.environ["GLOO_SOCKET_IFNAME"] = interface_seen_by(machines, master)


def check_reachable(local_rank: int, notices: SignedStore, timeout: timedelta) -> None:
    """Let the first worker of every machine knock at all others; name those that do not answer."""
    if local_rank:
        return
    address = os.environ[ADDRESS_VARIABLE]
    own, machines = int(os.environ["GROUP_RANK"]), int(os.environ["GROUP_WORLD_SIZE"])
    # The kernel answers knocks for as long as they fit into the queue, which nobody empties.
    with socket.create_server((address, 0), backlog=KNOCKS_AT_ONCE + machines) as door:
        notices.post(f"door/{own}", [host_name(), address, door.getsockname()[1]])
        for host, other, port in _hear_from_machines("door", machines, notices, timeout):
            try:
                socket.create_connection((other, port), timeout=KNOCK_SECONDS).close()
            except OSError as error:
                raise Unreachable(
                    f"{host_name()} ({address}) cannot reach {host} at {other}: {error}; "
                    "if that is the wrong network, set distributed.interface"
                ) from None
        notices.post(f"knocked/{own}", True)
        _hear_from_machines("knocked", machines, notices, timeout)


def _hear_from_machines(
    sign: str, machines: int, notices: SignedStore, timeout: timedelta
) -> list[Any]:
    """Wait for a sign of every machine; one may have died since the rendezvous."""
    heard = notices.wait([f"{sign}/{place}" for place in range(machines)], timeout)
    missing = [place for place in range(machines) if f"{sign}/{place}" not in heard]
    if missing:
        names = [notices.read(f"machine/{place}") or f"machine {place}" for place in missing]
        # No UserError: the launcher tries again, perhaps without them.
        raise TimeoutError(
            f"no message from {', '.join(names)} for {timeout.total_seconds():.0f} s "
            "(distributed.timeout_seconds)"
        )
    return list(heard.values())


def host_name() -> str:
    """Name of this machine, as in the run folder."""
    return socket.gethostname()


def _boot() -> str:
    """What the machine's kernel calls the time since it was started; empty if nothing."""
    path = Path("/proc/sys/kernel/random/boot_id")
    return path.read_text().strip() if path.exists() else ""


def _pick_device(local_rank: int) -> torch.device:
    if torch.cuda.is_available():
        device = torch.device("cuda", local_rank % torch.cuda.device_count())
        torch.cuda.set_device(device)
        return device
    return torch.device("cpu")
