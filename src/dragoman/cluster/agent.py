"""The agent of one machine: torchrun's own, which also says what went wrong and watches for hangs.

Started by the launcher as `python -m dragoman.cluster.agent`, here or over ssh. Its orders come as
one line of JSON on standard input, which stays open: when it closes, the launcher is gone, and the
agent ends with all its workers.
"""

import json
import logging
import os
import shutil
import signal
import socket
import sys
import tempfile
import threading
import time
import uuid
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

# Before torch reads it: an agent can join a running job only if the job does not share its store.
os.environ["TORCH_DISABLE_SHARE_RDZV_TCP_STORE"] = "1"
# Causes are told by Dragoman; the engine's own chatter would bury them.
os.environ.setdefault("TORCH_CPP_LOG_LEVEL", "ERROR")

from torch.distributed import DistStoreError
from torch.distributed.elastic.agent.server.api import (
    RunResult,
    WorkerGroup,
    WorkerSpec,
    WorkerState,
)
from torch.distributed.elastic.agent.server.local_elastic_agent import LocalElasticAgent
from torch.distributed.elastic.multiprocessing import DefaultLogsSpecs
from torch.distributed.elastic.rendezvous.api import RendezvousStateError, RendezvousTimeoutError

from dragoman.child_process import AGENT_VARIABLE, PARENT, die_with_parent
from dragoman.cluster.control_store import (
    ADDRESS_VARIABLE,
    ATTEMPT_VARIABLE,
    HEARTBEAT_VARIABLE,
    PART_OF_TIMEOUT,
    STORE_VARIABLE,
    ControlStore,
    Failure,
    connect,
    describe_error,
    first_cause,
)
from dragoman.cluster.network import route_to_others
from dragoman.cluster.rendezvous import SignedRendezvous, make_handler
from dragoman.console import say
from dragoman.errors import UserError

# What a worker may take to its first heartbeat, for importing from a slow disk.
STARTING_SECONDS = 60.0
# An agent that comes to look at its workers so late stood still itself, or waited for the store.
STALL_SECONDS = 2.0
# The engine looks every second who waits to join.
SECONDS_TO_HEAR_OF_JOINS = 1.5


@dataclass(frozen=True)
class Orders:
    """What the launcher tells an agent."""

    host: str  # This machine's name in --hosts.
    peers: list[str]  # The other machines.
    workers: int
    min_workers: int  # Of all machines together.
    min_machines: int
    max_machines: int
    store: str  # The launcher's, host:port.
    run_id: str
    secret: str  # Signs what agents tell each other; it never leaves this channel.
    command: list[str]  # The worker's, after the interpreter.
    config: str  # TOML, for machines that do not have the file.
    interface: str
    wait_seconds: float
    timeout_seconds: float
    max_restarts: int
    variables: dict[str, str]  # Of the launcher's environment, for the workers.

    def to_line(self) -> str:
        """As one line of JSON."""
        return json.dumps(asdict(self)) + "\n"


class Agent(LocalElasticAgent):
    """torchrun's agent, with reasons."""

    def __init__(
        self, orders: Orders, control: ControlStore, heartbeats: Path, **arguments: Any
    ) -> None:
        super().__init__(**arguments)
        self._orders = orders
        self._control = control
        self._heartbeats = heartbeats
        self._started = self._looked = self._awake_since = 0.0
        self._killed: set[int] = set()
        self._meetings = 0

    def was_left_out(self) -> bool:
        """Whether others met while this machine waited for them."""
        return self._control.meetings() > self._meetings

    def _rendezvous(self, worker_group: WorkerGroup) -> None:
        """Meet the other agents, again if one of them dies between meeting and beginning."""
        while True:
            try:
                self._meet(worker_group)
                self._name_attempt(worker_group)
                return
            except DistStoreError:
                say("a machine was lost before the workers started; meeting again")

    def _name_attempt(self, worker_group: WorkerGroup) -> None:
        """The first agent gives this attempt of the run a name of its own."""
        store = worker_group.store
        assert store is not None
        if worker_group.group_rank == 0:
            self._control.note_rendezvous()
            store.set("dragoman/attempt", uuid.uuid4().hex)
        attempt = store.get("dragoman/attempt").decode()
        os.environ[ATTEMPT_VARIABLE] = attempt
        # Before any worker starts, so that one that never speaks has a name.
        place = f"machine/{worker_group.group_rank}"
        self._control.store_of(attempt).set(place, self._orders.host or socket.gethostname())

    def _meet(self, worker_group: WorkerGroup) -> None:
        """Meet until there are workers enough: torchrun's rendezvous counts machines only."""
        self._meetings = self._control.meetings()
        deadline = time.monotonic() + self._orders.wait_seconds
        super()._rendezvous(worker_group)
        while worker_group.workers[0].world_size < self._orders.min_workers:
            while not worker_group.spec.rdzv_handler.num_nodes_waiting():
                if time.monotonic() > deadline:
                    raise RendezvousTimeoutError
                time.sleep(worker_group.spec.monitor_interval)
            super()._rendezvous(worker_group)

    def _start_workers(self, worker_group: WorkerGroup) -> dict[int, Any]:
        for path in self._heartbeats.iterdir():
            path.unlink()
        self._started = self._looked = self._awake_since = time.monotonic()
        self._killed.clear()
        started: dict[int, Any] = super()._start_workers(worker_group)
        return started

    def _monitor_workers(self, worker_group: WorkerGroup) -> RunResult:
        self._kill_hung_workers(worker_group, time.monotonic())
        result: RunResult = super()._monitor_workers(worker_group)
        if result.state in (WorkerState.FAILED, WorkerState.UNHEALTHY):
            self._report(result)
            if self._is_join(worker_group):
                # The engine restarts healthy workers too when others wait, and does not count it.
                return RunResult(state=WorkerState.HEALTHY)
            if self._remaining_restarts == 0:
                self._control.give_up(self._cause())
        if self._control.given_up() is not None:
            self._remaining_restarts = 0
            if result.state is WorkerState.HEALTHY:
                return RunResult(state=WorkerState.FAILED, failures={})
        return result

    def _is_join(self, worker_group: WorkerGroup) -> bool:
        """Whether workers failed only because others left them to meet a machine that joins."""
        of_workers = [one for one in self._control.failures_of_attempt() if one.worker is not None]
        if not of_workers or not all(one.is_echo for one in of_workers):
            return False
        deadline = time.monotonic() + SECONDS_TO_HEAR_OF_JOINS
        while not worker_group.spec.rdzv_handler.num_nodes_waiting():
            if time.monotonic() > deadline:
                return False
            time.sleep(worker_group.spec.monitor_interval)
        return True

    def _cause(self) -> Failure:
        """Why the workers of this attempt failed."""
        return first_cause(self._control.failures_of_attempt()) or self._failure(
            None, None, "the workers ended"
        )

    def _kill_hung_workers(self, worker_group: WorkerGroup, now: float) -> None:
        """A worker whose heart has stopped (its process stands still) is killed by name."""
        if now - self._looked > STALL_SECONDS:
            self._awake_since = now  # Hearts that stood still with this agent get time to beat.
        self._looked = now
        limit = PART_OF_TIMEOUT * self._orders.timeout_seconds
        processes: Any = self._pcontext
        for worker in worker_group.workers:
            if worker.local_rank in self._killed:
                continue
            if processes.subprocess_handlers[worker.local_rank].proc.poll() is not None:
                continue  # It has ended, and its heart with it; another may have its number by now.
            beat = self._last_beat(worker.local_rank)
            patience = limit if beat else limit + STARTING_SECONDS
            # Both are of one machine, whose clock on the wall may be set at any time.
            last = beat["monotonic"] if beat else self._started
            silence = now - max(last, self._awake_since)
            if silence > patience:
                reason = f"did not move for {silence:.0f} s (stopped, or the machine hangs)"
                self._post(worker.global_rank, beat["step"] if beat else None, reason)
                self._killed.add(worker.local_rank)
                os.kill(worker.id, signal.SIGKILL)

    def _report(self, result: RunResult) -> None:
        """Post what the workers could not say themselves: that a signal killed them."""
        for rank, ended in result.failures.items():
            if ended.exitcode >= 0 or ended.exitcode == -signal.SIGTERM:
                continue
            beat = self._last_beat(ended.local_rank)
            reason = f"killed by {signal.Signals(-ended.exitcode).name}"
            failure = self._failure(rank, beat["step"] if beat else None, reason)
            earlier = [
                (one.step, one.reason)
                for one in self._control.failures()
                if (one.host, one.worker) == (failure.host, rank) and not one.is_echo
            ]
            self._control.post_failure(failure)
            if earlier[-2:] == [(failure.step, reason)] * 2:
                self._control.give_up(replace(failure, reason=f"{reason} for the third time there"))

    def _post(self, rank: int, step: int | None, reason: str) -> None:
        self._control.post_failure(self._failure(rank, step, reason))

    def _failure(self, rank: int | None, step: int | None, reason: str) -> Failure:
        return Failure(socket.gethostname(), rank, step, reason, time.time())

    def _last_beat(self, local_rank: int) -> dict[str, Any] | None:
        try:
            beat: dict[str, Any] = json.loads((self._heartbeats / str(local_rank)).read_text())
        except (FileNotFoundError, ValueError):
            return None
        return beat


def main() -> None:
    """Run the workers of this machine until the run is over."""
    logging.getLogger("torch.distributed.elastic").setLevel(logging.CRITICAL)
    die_with_parent(PARENT)
    line = sys.stdin.readline()
    if not line:
        sys.exit(1)  # The launcher was gone before it could say anything.
    orders = Orders(**json.loads(line))
    with tempfile.TemporaryDirectory(prefix="dragoman-agent-", ignore_cleanup_errors=True) as name:
        threading.Thread(target=_end_with_launcher, args=(name,), daemon=True).start()
        sys.exit(_obey(orders, Path(name)))


def _obey(orders: Orders, folder: Path) -> int:
    control = ControlStore(connect(orders.store))
    control.note_up(orders.host)
    try:
        launcher = orders.store.rsplit(":", 1)[0]
        route = route_to_others([*orders.peers, launcher], orders.interface)
    except UserError as error:
        control.give_up(describe_error(error, None, None))
        return 1
    say(f"{orders.workers} worker{'s' * (orders.workers > 1)}, {route.interface} {route.address}")
    return _run(orders, control, route.address, route.interface, folder)


def _run(orders: Orders, control: ControlStore, address: str, interface: str, folder: Path) -> int:
    config = folder / "config.toml"
    config.write_text(orders.config, encoding="utf-8")
    heartbeats = folder / "heartbeats"
    heartbeats.mkdir()
    threads = max(1, len(os.sched_getaffinity(0)) // orders.workers)
    os.environ |= {
        **orders.variables,
        AGENT_VARIABLE: str(os.getpid()),
        STORE_VARIABLE: orders.store,
        HEARTBEAT_VARIABLE: str(heartbeats),
        ADDRESS_VARIABLE: address,
        "GLOO_SOCKET_IFNAME": interface,
        "NCCL_SOCKET_IFNAME": interface,
    }
    os.environ.setdefault("OMP_NUM_THREADS", str(threads))
    store = connect(orders.store)
    backend = SignedRendezvous(store, orders.run_id, bytes.fromhex(orders.secret))
    machines = orders.min_machines, orders.max_machines
    handler = make_handler(backend, store, orders.run_id, address, machines, orders.wait_seconds)
    spec = WorkerSpec(
        role="worker",
        local_world_size=orders.workers,
        entrypoint=sys.executable,
        args=tuple(word.replace("{config}", str(config)) for word in orders.command),
        rdzv_handler=handler,
        max_restarts=orders.max_restarts,
        monitor_interval=0.2,
        local_addr=address,
    )
    agent = Agent(
        orders,
        control,
        heartbeats,
        spec=spec,
        logs_specs=DefaultLogsSpecs(log_dir=str(folder / "logs")),
    )
    try:
        return 1 if agent.run().is_failed() else 0
    except RendezvousTimeoutError:
        reason = f"machines were missing for {orders.wait_seconds:.0f} s (distributed.wait_seconds)"
        if agent.was_left_out():
            control.post_failure(Failure(socket.gethostname(), None, None, reason, time.time()))
            return 1  # The others train, and the launcher brings this machine back to them.
    except RendezvousStateError as error:
        reason = str(error)
    finally:
        # Its thread may be the last to let go of the handler, and cannot wait for its own end.
        handler._stop_heartbeats()
    control.give_up(Failure(socket.gethostname(), None, None, reason, time.time()))
    return 1


def _end_with_launcher(folder: str) -> None:
    """Wait for standard input to close, then end at once; the workers end with their parent."""
    while sys.stdin.read(1 << 12):
        pass
    shutil.rmtree(folder, ignore_errors=True)
    os.kill(os.getpid(), signal.SIGKILL)


if __name__ == "__main__":
    main()
