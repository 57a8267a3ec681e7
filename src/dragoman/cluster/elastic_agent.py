"""torchrun's agent, which also says what went wrong, and watches for workers that hang."""

import json
import os
import signal
import socket
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

from torch.distributed import DistStoreError
from torch.distributed.elastic.agent.server.api import RunResult, WorkerGroup, WorkerState
from torch.distributed.elastic.agent.server.local_elastic_agent import LocalElasticAgent
from torch.distributed.elastic.rendezvous.api import RendezvousTimeoutError

from dragoman.cluster.control_store import (
    ATTEMPT_VARIABLE,
    PART_OF_TIMEOUT,
    STORE_TIMEOUT,
    ControlStore,
)
from dragoman.cluster.engine import restarts_left, set_restarts_left, worker_process
from dragoman.cluster.failures import Failure, failure_here, first_cause
from dragoman.cluster.orders import Orders
from dragoman.cluster.rendezvous import Rendezvous
from dragoman.console import say

# What a worker may take to its first heartbeat, for importing from a slow disk.
STARTING_SECONDS = 60.0
# An agent that comes to look at its workers so late stood still itself, or waited for the store.
STALL_SECONDS = 2.0
# The engine looks every second who waits to join.
SECONDS_TO_HEAR_OF_JOINS = 1.5


class Agent(LocalElasticAgent):
    """torchrun's agent, with reasons."""

    def __init__(
        self,
        orders: Orders,
        control: ControlStore,
        rendezvous: Rendezvous,
        heartbeats: Path,
        **arguments: Any,
    ) -> None:
        super().__init__(**arguments)
        self._orders = orders
        self._control = control
        self._own_rendezvous = rendezvous
        self._heartbeats = heartbeats
        self._started = self._looked = self._awake_since = 0.0
        self._killed: set[int] = set()
        self._rendezvous_seen = 0
        self._attempt = -1

    def was_left_out(self) -> bool:
        """Whether others began while this machine waited for them."""
        return self._control.rendezvous_count() > self._rendezvous_seen

    def _rendezvous(self, worker_group: WorkerGroup) -> None:
        """Wait for the other agents, again if one of them dies before all begin."""
        while True:
            try:
                self._gather_machines(worker_group)
                self._begin_attempt(worker_group)
                return
            except (DistStoreError, TimeoutError):
                say("a machine was lost before the workers started; waiting for all machines again")

    def _begin_attempt(self, worker_group: WorkerGroup) -> None:
        """Begin when the first agent has taken note of the rendezvous, which gives it its name."""
        self._attempt = self._own_rendezvous.round
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

    def _gather_machines(self, worker_group: WorkerGroup) -> None:
        """Wait until there are workers enough: torchrun's rendezvous counts machines only."""
        self._rendezvous_seen = self._control.rendezvous_count()
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
            say(
                "the other machines continued without this one, which was too slow to answer; "
                "rejoining"
            )
            self._restart_workers(worker_group)
        return result

    def _is_forgotten(self) -> bool:
        """Whether other machines took this one for dead, and have begun again without it."""
        return self._control.latest_attempt() > self._attempt

    def _is_join(self, worker_group: WorkerGroup) -> bool:
        """Whether workers failed only because others left them for a machine that joins."""
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
                progress = beat["progress"] if beat else None
                self._control.post_failure(failure_here(reason, worker.global_rank, progress))
                self._killed.add(worker.local_rank)
                os.kill(worker.id, signal.SIGKILL)

    def _report(self, result: RunResult) -> None:
        """Post what the workers could not say themselves: that a signal killed them."""
        for rank, ended in result.failures.items():
            if ended.exitcode >= 0 or ended.exitcode == -signal.SIGTERM:
                continue
            beat = self._last_beat(ended.local_rank)
            reason = f"killed by {signal.Signals(-ended.exitcode).name}"
            failure = failure_here(reason, rank, beat["progress"] if beat else None)
            earlier = [
                (one.progress, one.reason)
                for one in self._control.failures()
                if (one.host, one.worker) == (failure.host, rank) and not one.is_echo
            ]
            self._control.post_failure(failure)
            if earlier[-2:] == [(failure.progress, reason)] * 2:
                self._control.give_up(
                    replace(failure, reason=f"{reason} for the third time without progress")
                )

    def _last_beat(self, local_rank: int) -> dict[str, Any] | None:
        try:
            beat: dict[str, Any] = json.loads((self._heartbeats / str(local_rank)).read_text())
        except (FileNotFoundError, ValueError):
            return None
        return beat
