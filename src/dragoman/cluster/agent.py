"""The process of one machine's agent.

Started by the launcher as `python -m dragoman.cluster.agent`, here or over ssh. Its orders come as
one line of JSON on standard input, which stays open: when it closes, the launcher is gone, and the
agent ends with all its workers.
"""

import logging
import os
import shutil
import signal
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import count
from pathlib import Path

from torch.distributed import DistError
from torch.distributed.elastic.agent.server.api import WorkerSpec
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
    HEARTBEAT_VARIABLE,
    RUN_VARIABLE,
    SECRET_VARIABLE,
    STORE_VARIABLE,
    ControlStore,
    connect,
)
from dragoman.cluster.elastic_agent import Agent
from dragoman.cluster.engine import join_running_jobs, stop_heartbeats
from dragoman.cluster.failures import describe_error, failure_here
from dragoman.cluster.network import Route, route_to_others
from dragoman.cluster.orders import Orders, read_orders
from dragoman.cluster.rendezvous import Rendezvous, SignedRendezvous, make_handler
from dragoman.console import protect_console, say
from dragoman.errors import UserError, explain

SECONDS_BETWEEN_BEATS = 1.0  # Of the agent itself, for the launcher.


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
    workers = f"{orders.workers} worker{'s' * (orders.workers > 1)}"
    say(f"{workers}, network interface {route.interface} ({route.address})")
    store = connect(orders.store)
    backend = SignedRendezvous(store, orders.run_id, bytes.fromhex(orders.secret))
    machines = orders.min_machines, orders.max_machines
    rendezvous = make_handler(
        backend, store, orders.run_id, route.address, machines, orders.wait_seconds
    )
    agent = _make_agent(orders, control, rendezvous, route, folder)
    is_over = True
    try:
        return 1 if agent.run().is_failed() else 0
    except RendezvousTimeoutError:
        reason = f"machines were missing for {orders.wait_seconds:.0f} s (distributed.wait_seconds)"
        is_over = not agent.was_left_out()
    except RendezvousStateError as error:
        reason = str(error)
    except RendezvousError as error:
        reason, is_over = f"the machines could not connect: {error}", False
    finally:
        stop_heartbeats(rendezvous)
    if is_over:
        control.give_up(failure_here(reason))
    else:  # The others train, and the launcher brings this machine back to them.
        control.post_failure(failure_here(reason))
    return 1


def _make_agent(
    orders: Orders, control: ControlStore, rendezvous: Rendezvous, route: Route, folder: Path
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
        rdzv_handler=rendezvous,
        max_restarts=orders.max_restarts,
        monitor_interval=0.2,
        local_addr=route.address,
    )
    logs = DefaultLogsSpecs(log_dir=str(folder / "logs"))
    return Agent(orders, control, rendezvous, heartbeats, spec=spec, logs_specs=logs)


def _end_with_launcher(folder: Path) -> None:
    """Wait for standard input to close, then end at once; the workers end with their parent."""
    while sys.stdin.read(1 << 12):
        pass
    shutil.rmtree(folder, ignore_errors=True)
    os.kill(os.getpid(), signal.SIGKILL)


if __name__ == "__main__":
    main()
