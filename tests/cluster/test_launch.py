"""What the launcher says of agents, and how long it waits before a machine may join."""

import pytest

from dragoman.cluster import launch
from dragoman.cluster.hosts import Host
from dragoman.cluster.launch import Job, Launcher
from dragoman.cluster.network import LOOPBACK, Route
from dragoman.config import DistributedSettings
from dragoman.errors import UserError


def test_a_checkpoint_that_does_not_come_is_told_and_not_waited_for_for_ever(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    launcher = Launcher([Host("", 1)], Job([], ""), DistributedSettings())
    monkeypatch.setattr(launcher, "_can_train", lambda: True)
    monkeypatch.setattr(launch, "SECONDS_TO_SAVE", 0.0)
    launcher._save_first()
    assert "the steps since the last one will be made again" in capsys.readouterr().err
    launcher.control.note_saved(2)
    launcher._save_first()
    assert not capsys.readouterr().err


@pytest.mark.parametrize(("name", "command"), [("", "try `/"), ("hostB", "try `ssh hostB /")])
def test_who_did_not_come_up_is_to_be_tried_where_it_should_have(name: str, command: str) -> None:
    launcher = Launcher([Host("", 1)], Job([], ""), DistributedSettings())
    with pytest.raises(UserError, match=command):
        launcher._note_exit(Host(name, 1), 1)


def test_nobody_is_brought_back_after_a_stop_was_asked_for(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    hosts = [Host("hostA", 1), Host("hostB", 1)]
    monkeypatch.setattr(launch, "route_to_others", lambda *_: Route("lo", LOOPBACK))
    monkeypatch.setattr(launch, "answers", lambda _: pytest.fail("asked whether it is back"))
    launcher = Launcher(hosts, Job([], ""), DistributedSettings(min_workers=1))
    monkeypatch.setattr(launcher, "_exit_code", {hosts[0]: None, hosts[1]: 255}.get)
    monkeypatch.setattr(launcher, "_end_if_silent", lambda *_: None)
    launcher.lost["hostB"] = 0.0  # When it is to be tried again.
    launcher.interrupts = 1
    launcher._look(1.0)
