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
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from itertools import count
from pathlib import Path
from typing import Any

from torch.distributed import DistError, DistStoreError
from torch.distributed.elastic.agent.server.api import (
    RunResult,
    WorkerGroup,
    WorkerSpec,
    WorkerState,
)
from torch.distributed.elastic.agent.server.local_elastic_agent import LocalElasticAgent
from torch.distributed.elastic.multiprocessing import DefaultLogsSpecs
from torch.distributed.elastic.rendezvous.api import (
    RendezvousError,
    RendezvousStateError,
    RendezvousTimeoutError,
)

from dragoman.child_process import AGENT_VARIABLE, PARENT, die_with_parent
from dragoman.cluster.agent_folder import agent_folder
from dragoman.cluster.control_store import (
    ADDRESS_VARIABLE,
    ATTEMPT_VARIABLE,
    HEARTBEAT_VARIABLE,
    PART_OF_TIMEOUT,
    RUN_VARIABLE,
    SECRET_VARIABLE,
    STORE_TIMEOUT,
    STORE_VARIABLE,
    ControlStore,
    connect,
)
from dragoman.cluster.engine import (
    join_running_jobs,
    restarts_left,
    set_restarts_left,
    stop_heartbeats,
    worker_process,
)
from dragoman.cluster.failures import Failure, describe_error, failure_here, first_cause
from dragoman.cluster.network import Route, route_to_others
from dragoman.cluster.orders import Orders, read_orders
from dragoman.cluster.rendezvous import Meetings, SignedRendezvous, make_handler
from dragoman.console import protect_console, say
from dragoman.errors import UserError, explain

# What a worker may take to its first heartbeat, for importing from a slow disk.
STARTING_SECONDS = 60.0
# An agent that comes to look at its workers so late stood still itself, or waited for the store.
STALL_SECONDS = 2.0
# The engine looks every second who waits to join.
SECONDS_TO_HEAR_OF_JOINS = 1.5
SECONDS_BETWEEN_BEATS = 1.0  # Of the agent itself, for the launcher.


class Agent(LocalElasticAgent):
    """torchrun's agent, with reasons."""

    def __init__(
        self,
        orders: Orders,
        control: ControlStore,
        meetings: Meetings,
        heartbeats: Path,
        **arguments: Any,
    ) -> None:
        super().__init__(**arguments)
        self._orders = orders
        self._control = control
        self._rounds = meetings
        self._heartbeats = heartbeats
        self._started = self._looked = self._awake_since = 0.0
        self._killed: set[int] = set()
        self._meetings = 0
        self._attempt = -1

    def was_left_out(self) -> bool:
        """Whether others met while this machine waited for them."""
        return self._control.meetings() > self._meetings

    def _rendezvous(self, worker_group: WorkerGroup) -> None:
        """Meet the other agents, again if one of them dies between meeting and beginning."""
        while True:
            try:
                self._meet(worker_group)
                self._begin_attempt(worker_group)
                return
            except (DistStoreError, TimeoutError):
                say("a machine was lost before the workers started; waiting for all machines again")

    def _begin_attempt(self, worker_group: WorkerGroup) -> None:
        """Begin when the first agent has taken note of the meeting, which gives it its name."""
        self._attempt = self._rounds.round
        attempt = str(self._attempt)
        notices = self._control.notices_of(attempt)
        if worker_group.group_rank == 0:
            self._control.note_rendezvous(self._attempt)
            notices.post("begun", True)
        elif not notices.wait(["begun"], STORE_TIMEOUT):
            raise TimeoutError
        os.environ[ATTEMPT_VARIABLE] = attempt
        # Before any worker starts, so that one that never speaks has a name.
        host = self._orders.host or socket.gethostname()
        notices.post(f"machine/{worker_group.group_rank}", host)

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

    def _restart_workers(self, worker_group: WorkerGroup) -> None:
        """Start again; but workers that are about to stop do not wait for a machine that joins."""
        is_join = worker_group.state is WorkerState.HEALTHY
        if not (is_join and self._control.is_asked_to_stop()):
            super()._restart_workers(worker_group)

    def _monitor_workers(self, worker_group: WorkerGroup) -> RunResult:
        self._kill_hung_workers(worker_group, time.monotonic())
        result: RunResult = super()._monitor_workers(worker_group)
        if result.state in (WorkerState.FAILED, WorkerState.UNHEALTHY):
            if self._control.result() is not None:
                # All is done, and said to be: how a worker leaves is no reason to do it again.
                done = {worker.global_rank: None for worker in worker_group.workers}
                return RunResult(state=WorkerState.SUCCEEDED, return_values=done)
            self._report(result)
            if self._is_join(worker_group):
                # The engine counts it, though it is no fault.
                set_restarts_left(self, restarts_left(self) + 1)
            elif restarts_left(self) == 0 or self._control.is_asked_to_stop():
                # After a stop, too: what was saved is saved, and more will not come of it.
                self._control.give_up(self._cause())
        if self._control.given_up() is not None:
            set_restarts_left(self, 0)
            if result.state is WorkerState.HEALTHY:
                return RunResult(state=WorkerState.FAILED, failures={})
        elif result.state is WorkerState.HEALTHY and self._is_forgotten():
            # Two groups would train the same run, each for itself.
            say("the others went on without this machine, which was too slow to answer; rejoining")
            self._restart_workers(worker_group)
        return result

    def _is_forgotten(self) -> bool:
        """Whether other machines took this one for dead, and have begun again without it."""
        return self._control.latest_attempt() > self._attempt

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
        cause = first_cause(self._control.failures_of_attempt())
        return cause or failure_here("the workers ended")

    def _kill_hung_workers(self, worker_group: WorkerGroup, now: float) -> None:
        """A worker whose heart has stopped (its process stands still) is killed by name."""
        if now - self._looked > STALL_SECONDS:
            self._awake_since = now  # Hearts that stood still with this agent get time to beat.
        self._looked = now
        limit = PART_OF_TIMEOUT * self._orders.timeout_seconds
        for worker in worker_group.workers:
            if worker.local_rank in self._killed:
                continue
            if worker_process(self, worker.local_rank).poll() is not None:
                continue  # It has ended, and its heart with it; another may have its number by now.
            beat = self._last_beat(worker.local_rank)
            patience = limit if beat else limit + STARTING_SECONDS
            # Both are of one machine, whose clock on the wall may be set at any time.
            last = beat["monotonic"] if beat else self._started
            silence = now - max(last, self._awake_since)
            if silence > patience and self._control.result() is None:
                reason = f"no heartbeat for {silence:.0f} s (process stopped or machine hung)"
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
            failure = failure_here(reason, rank, beat["step"] if beat else None)
            earlier = [
                (one.step, one.reason)
                for one in self._control.failures()
                if (one.host, one.worker) == (failure.host, rank) and not one.is_echo
            ]
            self._control.post_failure(failure)
            if earlier[-2:] == [(failure.step, reason)] * 2:
                self._control.give_up(replace(failure, reason=f"{reason} for the third time there"))

    def _post(self, rank: int, step: int | None, reason: str) -> None:
        self._control.post_failure(failure_here(reason, rank, step))

    def _last_beat(self, local_rank: int) -> dict[str, Any] | None:
        try:
            beat: dict[str, Any] = json.loads((self._heartbeats / str(local_rank)).read_text())
        except (FileNotFoundError, ValueError):
            return None
        return beat


def main() -> None:
    """Run the workers of this machine until the run is over."""
    join_running_jobs()
    logging.getLogger("torch.distributed.elastic").setLevel(logging.CRITICAL)
    protect_console()
    die_with_parent(PARENT)
    line = sys.stdin.readline()
    if not line:
        sys.exit(1)  # The launcher was gone before it could say anything.
    try:
        orders = read_orders(line)
        with agent_folder() as folder:
            threading.Thread(target=_end_with_launcher, args=(folder,), daemon=True).start()
            with _beating(orders):
                sys.exit(_obey(orders, orders.control_store(), folder))
    except (UserError, OSError) as error:
        say(explain(error))
        sys.exit(1)
    except DistError:
        sys.exit(1)  # The launcher cannot be reached any more, and nobody would hear why.


@contextmanager
def _beating(orders: Orders) -> Iterator[None]:
    """Show the launcher that this process does not stand still, until it or the launcher ends."""
    is_over = threading.Event()

    def beat() -> None:
        try:
            control = orders.control_store()
            for number in count():
                control.post_beat(orders.host, orders.start, number)
                if is_over.wait(SECONDS_BETWEEN_BEATS):
                    return
        except DistError:
            return  # Silence tells as much.

    thread = threading.Thread(target=beat, daemon=True)
    thread.start()
    try:
        yield
    finally:
        # Python aborts where its end meets a thread that talks to the store.
        is_over.set()
        thread.join()


def _obey(orders: Orders, control: ControlStore, folder: Path) -> int:
    try:
        launcher = orders.store.rsplit(":", 1)[0]
        route = route_to_others([*orders.peers, launcher], orders.interface)
    except UserError as error:
        control.give_up(describe_error(error, None, None))
        return 1
    say(f"{orders.workers} worker{'s' * (orders.workers > 1)}, {route.interface} {route.address}")
    store = connect(orders.store)
    backend = SignedRendezvous(store, orders.run_id, bytes.fromhex(orders.secret))
    machines = orders.min_machines, orders.max_machines
    meetings = make_handler(
        backend, store, orders.run_id, route.address, machines, orders.wait_seconds
    )
    agent = _make_agent(orders, control, meetings, route, folder)
    is_over = True
    try:
        return 1 if agent.run().is_failed() else 0
    except RendezvousTimeoutError:
        reason = f"machines were missing for {orders.wait_seconds:.0f} s (distributed.wait_seconds)"
        is_over = not agent.was_left_out()
    except RendezvousStateError as error:
        reason = str(error)
    except RendezvousError as error:
        reason, is_over = f"the machines could not meet: {error}", False
    finally:
        stop_heartbeats(meetings)
    if is_over:
        control.give_up(failure_here(reason))
    else:  # The others train, and the launcher brings this machine back to them.
        control.post_failure(failure_here(reason))
    return 1


def _make_agent(
    orders: Orders, control: ControlStore, meetings: Meetings, route: Route, folder: Path
) -> Agent:
    config = folder / "config.toml"
    config.write_text(orders.config, encoding="utf-8")
    heartbeats = folder / "heartbeats"
    heartbeats.mkdir()
    threads = max(1, len(os.sched_getaffinity(0)) // orders.workers)
    os.environ |= {
        **orders.variables,
        AGENT_VARIABLE: str(os.getpid()),
        STORE_VARIABLE: orders.store,
        RUN_VARIABLE: orders.run_id,
        SECRET_VARIABLE: orders.secret,
        HEARTBEAT_VARIABLE: str(heartbeats),
        ADDRESS_VARIABLE: route.address,
        "GLOO_SOCKET_IFNAME": route.interface,
        "NCCL_SOCKET_IFNAME": route.interface,
    }
    os.environ.setdefault("OMP_NUM_THREADS", str(threads))
    words = [*orders.command, str(config)] if orders.config else orders.command
    spec = WorkerSpec(
        role="worker",
        local_world_size=orders.workers,
        entrypoint=sys.executable,
        args=tuple(word.replace("$", "$$") for word in words),  # The engine replaces ${local_rank}.
        rdzv_handler=meetings,
        max_restarts=orders.max_restarts,
        monitor_interval=0.2,
        local_addr=route.address,
    )
    logs = DefaultLogsSpecs(log_dir=str(folder / "logs"))
    return Agent(orders, control, meetings, heartbeats, spec=spec, logs_specs=logs)


def _end_with_launcher(folder: Path) -> None:
    """Wait for standard input to close, then end at once; the workers end with their parent."""
    while sys.stdin.read(1 << 12):
        pass
    shutil.rmtree(folder, ignore_errors=True)
    os.kill(os.getpid(), signal.SIGKILL)


if __name__ == "__main__":
    main()
