"""How workers find each other before they are a group."""

import json
import os
import socket
import subprocess
import sys
from datetime import timedelta
from typing import Any

import pytest
from torch._C._distributed_c10d import HashStore

from dragoman.child_process import AGENT_VARIABLE
from dragoman.cluster.board import ADDRESS_VARIABLE, describe_error
from dragoman.cluster.processes import check_reachable, refuse_namesakes
from dragoman.errors import Unreachable, UserError


@pytest.mark.parametrize(("agent", "code"), [("", 0), ("own", 0), ("1", 1)])
def test_a_worker_whose_agent_is_gone_ends_before_it_begins(agent: str, code: int) -> None:
    environment = {**os.environ, AGENT_VARIABLE: str(os.getpid()) if agent == "own" else agent}
    words = [sys.executable, "-m", "dragoman", "--version"]
    assert subprocess.run(words, env=environment).returncode == code


@pytest.mark.parametrize("came", ["", "door"])
def test_a_machine_that_dies_before_it_knocks_is_named(
    came: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(ADDRESS_VARIABLE, "127.0.0.1")
    monkeypatch.setenv("GROUP_RANK", "0")
    monkeypatch.setenv("GROUP_WORLD_SIZE", "2")
    store: Any = HashStore()
    for place, name in enumerate(("hostA", "hostB")):
        store.set(f"machine/{place}", name)
    knock = "dragoman.cluster.processes.socket.create_connection"
    monkeypatch.setattr(knock, lambda *_, **__: socket.socket())
    if came:
        store.set("door/1", '["hostB", "127.0.0.1", 1]')
    with pytest.raises(TimeoutError, match=r"^nothing was heard from hostB for 0 s \(distributed"):
        check_reachable(0, store, timedelta(milliseconds=10))


def test_a_machine_that_dies_before_it_is_knocked_at_is_worth_another_try(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv(ADDRESS_VARIABLE, "127.0.0.1")
    monkeypatch.setenv("GROUP_RANK", "0")
    monkeypatch.setenv("GROUP_WORLD_SIZE", "2")
    with socket.create_server(("127.0.0.1", 0)) as door:
        port = door.getsockname()[1]
    store: Any = HashStore()
    store.set("door/1", json.dumps(["hostB", "127.0.0.1", port]))
    with pytest.raises(Unreachable, match=r"cannot reach hostB at 127.0.0.1: .*refused") as caught:
        check_reachable(0, store, timedelta(seconds=5))
    assert not describe_error(caught.value, 0, None).is_final


def test_machines_with_one_name_are_refused() -> None:
    box, other = ["box", "boot 1", "10.0.0.1"], ["other", "boot 2", "10.0.0.2"]
    refuse_namesakes([box, other, box, other])
    both = r"the name box, those of worker 0 at 10.0.0.1 and of worker 2 at 10.0.0.3; give each a"
    with pytest.raises(UserError, match=both):
        refuse_namesakes([box, other, ["box", "boot 1", "10.0.0.3"]])
    with pytest.raises(UserError, match="the name box, those of worker 0 and of worker 1; give"):
        refuse_namesakes([["box", "boot 1", ""], ["box", "boot 2", ""]])
