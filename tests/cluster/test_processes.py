"""How workers find each other before they are a group."""

import os
import shlex
import socket
import subprocess
import sys
from datetime import timedelta
from pathlib import Path

import psutil
import pytest
from torch._C._distributed_c10d import HashStore

from dragoman.child_process import AGENT_VARIABLE
from dragoman.cluster.control_store import ADDRESS_VARIABLE
from dragoman.cluster.failures import describe_error
from dragoman.cluster.processes import check_reachable, refuse_namesakes, refuse_twins
from dragoman.cluster.signed_store import SignedStore
from dragoman.errors import Unreachable, UserError
from support import PATIENCE, wait_until


@pytest.mark.slow
@pytest.mark.parametrize(("agent", "code"), [("", 0), ("own", 0), ("1", 1)])
def test_a_worker_whose_agent_is_gone_ends_before_it_begins(agent: str, code: int) -> None:
    environment = {**os.environ, AGENT_VARIABLE: str(os.getpid()) if agent == "own" else agent}
    words = [sys.executable, "-m", "dragoman", "--version"]
    assert subprocess.run(words, env=environment).returncode == code


@pytest.mark.slow
def test_a_worker_under_torchrun_ends_even_if_that_died_while_it_started(tmp_path: Path) -> None:
    code = """
import os, sys, time
from pathlib import Path
from dragoman.child_process import PARENT
from dragoman.cluster.processes import join_workers
from dragoman.config import DistributedSettings
Path(sys.argv[1]).touch()
while os.getppid() == PARENT:
    time.sleep(0.01)
join_workers(DistributedSettings())
"""
    world = {"RANK": "1", "WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "1"}
    started = tmp_path / "started"
    words = shlex.join([sys.executable, "-c", code, str(started)])
    parent = subprocess.Popen(
        ["sh", "-c", f"{words} & echo $!; wait"],
        env={**os.environ, **world},
        stdout=subprocess.PIPE,
        text=True,
    )
    assert parent.stdout
    worker = psutil.Process(int(parent.stdout.readline()))
    wait_until(started.exists)
    parent.kill()
    parent.wait()
    _, left = psutil.wait_procs([worker], timeout=PATIENCE)
    for process in left:
        process.kill()
    assert not left


@pytest.mark.slow
def test_an_agent_whose_launcher_died_before_giving_orders_says_nothing() -> None:
    words = [sys.executable, "-m", "dragoman.cluster.agent"]
    ended = subprocess.run(words, stdin=subprocess.DEVNULL, capture_output=True, text=True)
    assert ended.returncode == 1
    assert not ended.stderr


@pytest.mark.parametrize("came", ["", "door"])
def test_a_machine_that_dies_before_it_knocks_is_named(
    came: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(ADDRESS_VARIABLE, "127.0.0.1")
    monkeypatch.setenv("GROUP_RANK", "0")
    monkeypatch.setenv("GROUP_WORLD_SIZE", "2")
    notices = SignedStore(HashStore(), "run", b"secret")
    for place, name in enumerate(("hostA", "hostB")):
        notices.post(f"machine/{place}", name)
    knock = "dragoman.cluster.processes.socket.create_connection"
    monkeypatch.setattr(knock, lambda *_, **__: socket.socket())
    if came:
        notices.post("door/1", ["hostB", "127.0.0.1", 1])
    with pytest.raises(TimeoutError, match=r"^no message from hostB for 0 s \(distributed"):
        check_reachable(0, notices, timedelta(milliseconds=10))


def test_a_machine_that_dies_before_it_is_knocked_at_is_worth_another_try(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv(ADDRESS_VARIABLE, "127.0.0.1")
    monkeypatch.setenv("GROUP_RANK", "0")
    monkeypatch.setenv("GROUP_WORLD_SIZE", "2")
    with socket.create_server(("127.0.0.1", 0)) as door:
        port = door.getsockname()[1]
    notices = SignedStore(HashStore(), "run", b"secret")
    notices.post("door/1", ["hostB", "127.0.0.1", port])
    with pytest.raises(Unreachable, match=r"cannot reach hostB at 127.0.0.1: .*refused") as caught:
        check_reachable(0, notices, timedelta(seconds=5))
    assert not describe_error(caught.value, 0, None).is_final


def test_nothing_listens_any_more_when_all_have_knocked(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(ADDRESS_VARIABLE, "127.0.0.1")
    monkeypatch.setenv("GROUP_RANK", "0")
    monkeypatch.setenv("GROUP_WORLD_SIZE", "1")
    notices = SignedStore(HashStore(), "run", b"secret")
    check_reachable(0, notices, timedelta(seconds=60))
    _, address, port = notices.read("door/0") or pytest.fail("there was no door")
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection((address, port))


def test_machines_with_one_name_are_refused() -> None:
    box, other = ["box", "boot 1", "10.0.0.1"], ["other", "boot 2", "10.0.0.2"]
    refuse_namesakes([box, other, box, other])
    both = r"the host name box, worker 0 at 10.0.0.1 and worker 2 at 10.0.0.3; give each its"
    with pytest.raises(UserError, match=both):
        refuse_namesakes([box, other, ["box", "boot 1", "10.0.0.3"]])
    with pytest.raises(UserError, match="the host name box, worker 0 and worker 1; give"):
        refuse_namesakes([["box", "boot 1", ""], ["box", "boot 2", ""]])


def test_a_machine_of_two_names_is_named_once() -> None:
    refuse_twins([["box", 0], ["box", 1], ["other", 0]])
    with pytest.raises(UserError, match="names the machine box twice: name it once, as HOST:3"):
        refuse_twins([["box", 0], ["box", 1], ["other", 0], ["box", 0]])
