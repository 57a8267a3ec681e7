"""What an agent makes of its workers' hearts, and of other agents."""

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from torch._C._distributed_c10d import TCPStore
from torch.distributed.elastic.agent.server.api import WorkerState
from torch.distributed.elastic.agent.server.local_elastic_agent import LocalElasticAgent

import forked
from dragoman.cluster.control_store import ControlStore
from dragoman.cluster.elastic_agent import STARTING_SECONDS, Agent
from dragoman.cluster.failures import Failure
from dragoman.cluster.orders import Orders
from dragoman.cluster.rendezvous import SignedRendezvous, make_handler
from support import PATIENCE, wait_until

SILENT = 8.1  # Seconds; more than an agent's patience with the timeout below.


class Watch:
    """An agent that started three workers at second 100, the last of which has ended by itself."""

    def __init__(self, heartbeats: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.heartbeats = heartbeats
        self.killed: list[int] = []
        monkeypatch.setattr(os, "kill", lambda process, _: self.killed.append(process))
        agent: Any = object.__new__(Agent)
        agent._orders, agent._heartbeats = SimpleNamespace(timeout_seconds=10.0), heartbeats
        self.result: str | None = None
        agent._control = SimpleNamespace(result=lambda: self.result, post_failure=lambda _: None)
        agent._started = agent._looked = agent._awake_since = 100.0
        agent._killed = set()
        processes = [SimpleNamespace(poll=lambda code=code: code) for code in (None, None, 0)]
        handlers = {rank: SimpleNamespace(proc=one) for rank, one in enumerate(processes)}
        agent._pcontext = SimpleNamespace(subprocess_handlers=handlers)
        self.agent = agent
        self.workers = [
            SimpleNamespace(local_rank=rank, global_rank=rank, id=100 + rank) for rank in range(3)
        ]

    def beat(self, rank: int, second: float) -> None:
        heart = self.heartbeats / str(rank)
        heart.write_text(json.dumps({"progress": "at step 3", "monotonic": second}))
        os.utime(heart, (0, 0))  # The clock on the wall was set meanwhile.

    def look_until(self, second: float) -> None:
        """Look every second, as an agent does that does not stand still itself."""
        while self.agent._looked < second:
            self.look(min(self.agent._looked + 1, second))

    def look(self, second: float) -> None:
        self.agent._kill_hung_workers(SimpleNamespace(workers=self.workers), second)


@pytest.fixture
def watch(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Watch:
    return Watch(tmp_path, monkeypatch)


def test_what_kills_a_worker_again_and_again_ends_the_job_unless_it_makes_progress(
    store: Any, tmp_path: Path
) -> None:
    agent: Any = object.__new__(Agent)
    agent._heartbeats = tmp_path
    agent._control = control = ControlStore(store, "run", bytes.fromhex("00"))
    ended = SimpleNamespace(exitcode=-signal.SIGKILL, local_rank=0)
    for parts, is_over in ((1, False), (2, False), (3, False), (3, False), (3, True)):
        beat = {"progress": f"after {parts} parts", "monotonic": 1.0}
        (tmp_path / "0").write_text(json.dumps(beat))
        agent._report(SimpleNamespace(failures={1: ended}))
        assert (control.given_up() is not None) == is_over
    last = " after 3 parts: killed by SIGKILL for the third time without progress"
    assert str(control.given_up()).endswith(last)


def test_only_a_heart_that_stands_still_is_killed_whatever_the_clock_says(watch: Watch) -> None:
    for rank, second in enumerate((100 + SILENT, 100.0, 100.0)):
        watch.beat(rank, second)
    watch.look_until(100 + SILENT)
    assert watch.killed == [101]
    watch.look_until(100 + SILENT + 1)
    assert watch.killed == [101], "once is enough"


def test_a_worker_that_never_shows_life_is_killed_too(watch: Watch) -> None:
    watch.beat(0, 100 + SILENT + STARTING_SECONDS)
    watch.look_until(100 + STARTING_SECONDS)
    assert not watch.killed
    watch.look_until(100 + SILENT + STARTING_SECONDS)
    assert watch.killed == [101]


def test_a_heart_that_stands_still_when_all_is_done_is_left_alone(watch: Watch) -> None:
    watch.beat(0, 100 + SILENT)
    watch.beat(1, 100.0)
    watch.result = "done"
    watch.look_until(100 + SILENT)
    assert not watch.killed


def test_an_agent_that_stood_still_itself_gives_its_workers_time(watch: Watch) -> None:
    for rank in range(3):
        watch.beat(rank, 100.0)
    watch.look(500.0)
    assert not watch.killed
    watch.beat(0, 500 + SILENT)
    watch.look_until(500 + SILENT)
    assert watch.killed == [101]


# An agent whose patience is short, and which says what threads it has left at its end.
AGENT = """
import threading
from datetime import timedelta
from dragoman.cluster import control_store
control_store.STORE_TIMEOUT = timedelta(seconds=3)
from dragoman.cluster import agent
handlers, make = [], agent.make_handler
def make_handler(*arguments):
    handlers.append(make(*arguments))
    return handlers[0]
agent.make_handler = make_handler
try:
    agent.main()
finally:
    print(*[thread.name for thread in threading.enumerate()])
"""


@contextmanager
def agent_process(store: TCPStore, folder: Path, **changes: Any) -> Iterator[subprocess.Popen[str]]:
    """An agent of a machine called here, whose only worker has nothing to do."""
    orders = Orders(
        host="here",
        start=0,
        peers=[],
        workers=1,
        min_workers=1,
        min_machines=1,
        max_machines=2,
        store=f"127.0.0.1:{store.port}",
        run_id="run",
        secret="00",
        command=["-c", "pass"],
        config="",
        interface="",
        wait_seconds=60.0,
        timeout_seconds=60.0,
        max_restarts=0,
        variables={},
    )
    process = subprocess.Popen(
        [sys.executable, *forked.OPTION, "-c", AGENT],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "TMPDIR": str(folder)},
    )
    assert process.stdin
    process.stdin.write(replace(orders, **changes).to_line())
    process.stdin.flush()
    try:
        yield process
    finally:
        process.kill()
        process.communicate()


@pytest.fixture
def store() -> TCPStore:
    return TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)


@pytest.mark.slow
def test_agents_meet_again_if_one_dies_between_meeting_and_beginning(
    store: Any, tmp_path: Path
) -> None:
    # Another machine, the first by its name, meets this one and says nothing after that. It waits
    # for it beforehand: an agent alone begins alone.
    backend = SignedRendezvous(store, "run", bytes.fromhex("00"))
    other = make_handler(backend, store, "run", "0", (2, 2), PATIENCE)
    with ThreadPoolExecutor() as beside:
        met = beside.submit(other.next_rendezvous)
        wait_until(lambda: backend.get_state() is not None)
        with agent_process(store, tmp_path) as process:
            assert met.result(timeout=PATIENCE).rank == 0
            other._stop_heartbeats()
            assert process.wait(timeout=PATIENCE) == 0
            assert process.stderr
            assert "a machine was lost before the workers started" in process.stderr.read()


@pytest.mark.slow
def test_an_agent_has_stopped_its_thread_when_it_ends(store: Any, tmp_path: Path) -> None:
    with agent_process(store, tmp_path, max_machines=1) as process:
        assert process.wait(timeout=PATIENCE) == 0
        assert process.stdout
        assert "RendezvousKeepAlive" not in process.stdout.read()


# Notes that it has started, and works on until there is a second note.
STARTS = """
import os, sys, time
with open(sys.argv[1], "a") as notes:
    notes.write(os.environ["DRAGOMAN_ATTEMPT"] + "\\n")
while len(open(sys.argv[1]).readlines()) < 2:
    time.sleep(0.05)
"""


@pytest.mark.slow
def test_a_machine_that_others_took_for_dead_joins_them_instead_of_training_alone(
    store: Any, tmp_path: Path
) -> None:
    notes = tmp_path / "notes"
    command = ["-c", STARTS, str(notes)]
    control = ControlStore(store, "run", bytes.fromhex("00"))
    with agent_process(store, tmp_path, max_machines=1, command=command) as process:
        wait_until(notes.exists)
        control.note_rendezvous(control.latest_attempt() + 1)
        assert process.wait(timeout=PATIENCE) == 0
        assert process.stderr
        assert "the other machines continued without this one" in process.stderr.read()
    first, second = notes.read_text().split()
    assert int(second) > int(first)


# Worker 0 says that all is done, and the other one dies on its way out.
DONE = """
import os, signal, time
from dragoman.cluster.control_store import launched_control_store
control = launched_control_store()
if os.environ["RANK"] == "0":
    control.post_result("done")
while control.result() is None:
    time.sleep(0.05)
if os.environ["RANK"] == "1":
    os.kill(os.getpid(), signal.SIGKILL)
"""


@pytest.mark.slow
def test_a_machine_whose_worker_dies_when_all_is_done_keeps_nobody_waiting(
    store: Any, tmp_path: Path
) -> None:
    orders = {"min_machines": 2, "min_workers": 2, "max_restarts": 9, "command": ["-c", DONE]}
    with (
        agent_process(store, tmp_path, host="hostA", **orders) as one,
        agent_process(store, tmp_path, host="hostB", **orders) as other,
    ):
        assert (one.wait(timeout=PATIENCE), other.wait(timeout=PATIENCE)) == (0, 0)
    assert not ControlStore(store, "run", bytes.fromhex("00")).failures()


@pytest.mark.parametrize(
    ("state", "is_stop_asked", "starts"),
    [
        (WorkerState.HEALTHY, False, 1),
        (WorkerState.HEALTHY, True, 0),
        (WorkerState.FAILED, True, 1),  # Others may wait for them, to meet one who joins.
    ],
)
def test_workers_that_are_about_to_stop_do_not_wait_for_a_machine_that_joins(
    state: WorkerState, is_stop_asked: bool, starts: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    started: list[Any] = []
    monkeypatch.setattr(
        LocalElasticAgent, "_restart_workers", lambda _, group: started.append(group)
    )
    agent: Any = object.__new__(Agent)
    agent._control = SimpleNamespace(is_asked_to_stop=lambda: is_stop_asked)
    agent._restart_workers(SimpleNamespace(state=state))
    assert len(started) == starts


@pytest.mark.slow
def test_what_killed_agents_left_behind_is_removed_but_nothing_else(
    store: Any, tmp_path: Path
) -> None:
    others = tmp_path / "dragoman-agent-file"
    others.touch()
    (tmp_path / "dragoman-agent-link").symlink_to("/")
    with agent_process(store, tmp_path, min_machines=2) as living:
        wait_until(lambda: any(tmp_path.glob("dragoman-agent-*/heartbeats")))
        (of_living,) = tmp_path.glob("dragoman-agent-*/heartbeats")
        with agent_process(store, tmp_path, min_machines=2, run_id="second") as killed:
            wait_until(lambda: len(list(tmp_path.glob("dragoman-agent-*/heartbeats"))) == 2)
            killed.kill()
            killed.wait()
        assert len(list(tmp_path.glob("dragoman-agent-*/heartbeats"))) == 2
        with agent_process(store, tmp_path, max_machines=1, run_id="third") as next_one:
            assert next_one.wait(timeout=PATIENCE) == 0
        assert list(tmp_path.glob("dragoman-agent-*/heartbeats")) == [of_living]
        assert living.poll() is None
    assert others.exists()


@pytest.mark.slow
def test_orders_of_another_version_are_refused_in_one_line() -> None:
    words = [sys.executable, "-m", "dragoman.cluster.agent"]
    ended = subprocess.run(words, input='{"host": "a"}\n', capture_output=True, text=True)
    assert ended.returncode == 1
    (line,) = ended.stderr.splitlines()
    assert "another version of Dragoman" in line


@pytest.mark.slow
def test_an_agent_leaves_nothing_behind_when_its_launcher_is_gone(
    store: Any, tmp_path: Path
) -> None:
    with agent_process(store, tmp_path, min_machines=2) as process:
        wait_until(lambda: any(tmp_path.glob("dragoman-agent-*/heartbeats")))
        assert process.stdin
        process.stdin.close()
        assert process.wait(timeout=PATIENCE) == -signal.SIGKILL
        process.stdin = None
    assert not list(tmp_path.iterdir())


@pytest.mark.slow
@pytest.mark.parametrize("others_met", [False, True])
def test_a_machine_that_waits_in_vain_ends_the_run_only_if_all_do(
    store: Any, tmp_path: Path, others_met: bool
) -> None:
    control = ControlStore(store, "run", bytes.fromhex("00"))
    with agent_process(store, tmp_path, min_machines=2, wait_seconds=3.0) as process:
        state = SignedRendezvous(store, "run", bytes.fromhex("00"))
        wait_until(lambda: state.get_state() is not None)
        if others_met:
            control.note_rendezvous(0)
        assert process.wait(timeout=PATIENCE) == 1
    over = control.given_up()
    assert (over is None) == others_met
    told = control.failures()[0] if over is None else over
    assert told.reason == "machines were missing for 3 s (distributed.wait_seconds)"


ECHO = Failure("hostB", 1, "at step 8", "connection to another worker lost", 2.0, is_echo=True)
LOST = Failure("hostC", None, None, "the machine was lost", 1.0)
KILLED = Failure("hostA", 0, "at step 8", "killed by SIGKILL", 1.0)


@pytest.mark.parametrize(
    ("failures", "waiting", "is_join"),
    [
        ([ECHO], 1, True),
        ([LOST, ECHO], 1, True),  # The launcher hears late that it is lost, and later brings it.
        ([ECHO], 0, False),
        ([KILLED, ECHO], 1, False),
        ([], 1, False),
    ],
)
def test_only_a_restart_for_a_machine_that_joins_is_not_counted(
    store: Any, failures: list[Failure], waiting: int, is_join: bool
) -> None:
    control = ControlStore(store, "run", bytes.fromhex("00"))
    control.post_failure(KILLED)  # In an earlier attempt.
    control.note_rendezvous(0)
    for failure in failures:
        control.post_failure(failure)
    agent: Any = object.__new__(Agent)
    agent._control = control
    handler = SimpleNamespace(num_nodes_waiting=lambda: waiting)
    spec = SimpleNamespace(rdzv_handler=handler, monitor_interval=0.01)
    assert agent._is_join(SimpleNamespace(spec=spec)) is is_join
