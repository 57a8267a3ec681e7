"""What the launcher says of agents, and how long it waits before a machine may join."""

import os
import subprocess
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from dragoman import __version__
from dragoman.cluster import hosts, launch
from dragoman.cluster.failures import Failure
from dragoman.cluster.hosts import SSH, Host, parse_hosts
from dragoman.cluster.launch import (
    SECONDS_OF_SILENCE,
    SECONDS_TO_COME_UP,
    Job,
    Launcher,
    RunningAgent,
)
from dragoman.cluster.network import LOOPBACK, Route
from dragoman.config import DistributedSettings
from dragoman.errors import FIX_FIRST, SystemFault, UserError
from support import wait_until


def test_a_checkpoint_that_does_not_come_is_told_and_not_waited_for_for_ever(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    launcher = Launcher([Host("", 1)], Job([], ""), DistributedSettings())
    monkeypatch.setattr(launcher, "_can_train", lambda: True)
    monkeypatch.setattr(launch, "SECONDS_TO_SAVE", 0.0)
    launcher._save_first()
    assert "the steps since the last one will be repeated" in capsys.readouterr().err
    launcher.control.note_saved(2)
    launcher._save_first()
    assert not capsys.readouterr().err


@pytest.mark.parametrize(("name", "command"), [("", "try `/"), ("hostB", "try `ssh hostB ")])
def test_who_did_not_come_up_is_to_be_tried_where_it_should_have(
    name: str, command: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ssh = tmp_path / "ssh"
    ssh.write_text('#!/bin/sh\ncd /\nshift\nexec sh -c "$*"\n')
    ssh.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=os.pathsep)
    folder = tmp_path / "it's here"
    folder.mkdir()
    monkeypatch.chdir(folder)
    launcher = Launcher([Host("", 1)], Job([], ""), DistributedSettings())
    with pytest.raises(UserError, match=command) as told:
        launcher._note_exit(Host(name, 1), 1)
    _, words, _ = str(told.value).split("`")
    tried = subprocess.run(words, shell=True, capture_output=True, text=True)
    assert tried.stdout == f"dragoman {__version__}\n", tried.stderr
    folder.rmdir()
    tried = subprocess.run(words, shell=True, capture_output=True, text=True, cwd="/")
    assert (tried.returncode == 0) == (not name), "it needs the folder there"


def test_nobody_is_brought_back_after_a_stop_was_asked_for(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    machines = [Host("hostA", 1), Host("hostB", 1)]
    monkeypatch.setattr(launch, "route_to_others", lambda *_: Route("lo", LOOPBACK))
    monkeypatch.setattr(launch, "Knock", lambda _: pytest.fail("asked whether it is back"))
    launcher = Launcher(machines, Job([], ""), DistributedSettings(min_workers=1))
    monkeypatch.setattr(launcher, "_exit_code", {machines[0]: None, machines[1]: 255}.get)
    monkeypatch.setattr(launcher, "_end_if_silent", lambda *_: None)
    launcher.lost["hostB"] = 0.0  # When it is to be tried again.
    launcher.interrupts = 1
    launcher._look(1.0)


@pytest.mark.parametrize(
    ("reason", "line"), [(f"no room; {FIX_FIRST}", ""), ("gone", "\nresume the run with: again")]
)
def test_who_has_something_to_fix_first_is_not_told_to_resume_twice(reason: str, line: str) -> None:
    launcher = Launcher([Host("", 1)], Job([], command_line="again"), DistributedSettings())
    launcher.control.give_up(Failure("hostB", None, "at step 6", reason, time.time()))
    with pytest.raises(SystemFault) as told:
        launcher._note_exit(launcher.hosts[0], 1)
    assert str(told.value) == f"hostB at step 6: {reason}{line}"


@pytest.mark.parametrize("silent", [0.0, 6.0])
def test_who_is_silent_when_others_gave_up_waiting_is_named_before_ssh_notices(
    silent: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    names = ["hostA", "hostB", "hostC"]
    monkeypatch.setattr(launch, "route_to_others", lambda *_: Route("lo", LOOPBACK))
    launcher = Launcher([Host(name, 1) for name in names], Job([]), DistributedSettings())
    now = time.monotonic()
    for name, heard in zip(names, (now - 9.0, now - silent, now), strict=True):
        launcher.agents[name] = RunningAgent(SimpleNamespace(), 0, heard)  # type: ignore[arg-type]
    launcher.control.give_up(Failure("hostA", None, None, "machines were missing", time.time()))
    with pytest.raises(SystemFault) as told:
        launcher._note_exit(launcher.hosts[0], 1)
    expected = "; hostB did not come back" if silent else ""
    assert str(told.value) == f"hostA: machines were missing{expected}"


@pytest.fixture
def slow_ssh(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An ssh that logs in once there is a file, to whose path this is."""
    ssh = tmp_path / "ssh"
    ssh.write_text(f"#!/bin/sh\nwhile [ ! -e {tmp_path}/open ]; do sleep 0.05; done\n")
    ssh.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=os.pathsep)
    return tmp_path / "open"


def test_a_machine_that_is_slow_to_log_in_to_is_brought_back_and_keeps_nobody_waiting(
    slow_ssh: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    machines = [Host("hostA", 1), Host("hostB", 1)]
    monkeypatch.setattr(launch, "route_to_others", lambda *_: Route("lo", LOOPBACK))
    monkeypatch.setattr(hosts, "SECONDS_UNTIL_SLOW", -1.0)
    launcher = Launcher(machines, Job([], "", has_checkpoints=False), DistributedSettings())
    started: list[Host] = []
    monkeypatch.setattr(launcher, "_exit_code", {machines[0]: None, machines[1]: 255}.get)
    monkeypatch.setattr(launcher, "_end_if_silent", lambda *_: None)
    monkeypatch.setattr(launcher, "_start", started.append)
    launcher.lost["hostB"] = 0.0
    launcher._look(1.0)
    launcher._look(2.0)
    assert not started
    told = capsys.readouterr().err.splitlines()
    assert told == ["hostB: ssh login not complete after -1 s; waiting"], "once"
    slow_ssh.touch()
    wait_until(lambda: launcher.knocks["hostB"].answer() is not None)
    launcher._look(3.0)
    assert started == [machines[1]]
    assert "hostB" not in launcher.lost
    assert not launcher.knocks


def test_who_never_lets_us_log_in_is_given_up_and_tried_again(
    slow_ssh: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(hosts, "SECONDS_TO_LOG_IN", -1.0)
    assert hosts.unreachable([Host("", 1), Host("hostB", 1)]) == ["hostB"]
    assert "hostB: ssh login not complete after -1 s; giving up" in capsys.readouterr().err
    monkeypatch.undo()
    slow_ssh.touch()
    monkeypatch.setenv("PATH", str(slow_ssh.parent), prepend=os.pathsep)
    assert hosts.unreachable([Host("hostB", 1)]) == []


@pytest.mark.parametrize(
    "name", ["-oProxyCommand=touch${IFS}here", "-v", "a b", "a;b", "$(id)", "a/b", "höst", "a\nb"]
)
def test_what_cannot_be_the_name_of_a_host_never_reaches_ssh(name: str) -> None:
    with pytest.raises(UserError, match=r"is not a valid host name|is not HOST"):
        parse_hosts(f"good,{name}")


def test_ssh_is_told_where_its_options_end() -> None:
    assert SSH[-1] == "--"


class Silence:
    """A launcher of one agent, which was started at second 100."""

    def __init__(self) -> None:
        self.launcher = Launcher([Host("", 1)], Job([], ""), DistributedSettings())
        self.killed: list[bool] = []
        process: Any = SimpleNamespace(poll=lambda: None, kill=lambda: self.killed.append(True))
        self.launcher.agents[""] = RunningAgent(process, 1, heard=100.0)
        self.launcher._looked = 100.0

    def look_until(self, second: float) -> None:
        while self.launcher._looked < second:
            self.launcher._look(min(self.launcher._looked + 1, second))


def test_an_agent_that_falls_silent_is_killed() -> None:
    silence = Silence()
    silence.launcher.control.post_beat("", start=1, number=0)
    silence.look_until(101 + SECONDS_OF_SILENCE)
    assert not silence.killed
    silence.look_until(102 + SECONDS_OF_SILENCE)
    assert silence.killed
    (failure,) = silence.launcher.control.failures()
    assert "no heartbeat from its agent for 61 s" in failure.reason


def test_a_launcher_that_stood_still_gives_its_agents_time() -> None:
    silence = Silence()
    silence.launcher.control.post_beat("", start=1, number=0)
    silence.look_until(110)
    silence.launcher._look(1_000.0)
    silence.look_until(1_000 + SECONDS_OF_SILENCE)
    assert not silence.killed


def test_the_beats_of_an_earlier_agent_do_not_count() -> None:
    silence = Silence()
    silence.launcher.control.post_beat("", start=0, number=7)
    silence.look_until(100 + SECONDS_TO_COME_UP)
    assert not silence.killed, "it may be slow to come up"
    silence.look_until(101 + SECONDS_TO_COME_UP)
    assert silence.killed
