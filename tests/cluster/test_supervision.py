"""What a worker that fails makes of its failure, and of those before it."""

import json
import os
import threading
from pathlib import Path

import pytest
import torch
import torch.distributed as distributed
from torch._C._distributed_c10d import TCPStore

from dragoman.cluster.control_store import (
    HEARTBEAT_VARIABLE,
    RUN_VARIABLE,
    SECRET_VARIABLE,
    STORE_VARIABLE,
    ControlStore,
)
from dragoman.cluster.failures import Failure
from dragoman.cluster.processes import Workers
from dragoman.cluster.supervision import Supervision, supervised
from dragoman.errors import SystemFault, Unreachable, UserError
from support import wait_until


@pytest.fixture
def control(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> ControlStore:
    """The control store of a launcher, and the variables of its workers."""
    store = TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    be_worker_of(store, tmp_path, monkeypatch)
    return ControlStore(store, "run", b"secret")


def be_worker_of(store: TCPStore, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    variables = {
        STORE_VARIABLE: f"127.0.0.1:{store.port}",
        RUN_VARIABLE: "run",
        SECRET_VARIABLE: b"secret".hex(),
        HEARTBEAT_VARIABLE: str(folder),
        "LOCAL_RANK": "0",
    }
    for name, value in variables.items():
        monkeypatch.setenv(name, value)


def fail(worker: int, error: Exception) -> None:
    supervision = Supervision(worker)
    supervision.note_step(8)
    supervision.post_failure(error)
    supervision.end()


def test_only_what_comes_back_in_another_attempt_ends_the_run(control: ControlStore) -> None:
    control.note_rendezvous(0)
    for worker in (0, 1):
        fail(worker, ValueError("the disk is on fire"))
    assert control.given_up() is None, "two workers failed alike, and there was no restart yet"
    control.note_rendezvous(0)
    fail(1, ValueError("the disk is still on fire"))
    assert control.given_up() is None
    fail(0, ValueError("the disk is on fire"))
    over = control.given_up()
    assert over
    assert over.worker == 0
    assert len(control.failures(control.failures_before_rendezvous())) == 2


def test_what_comes_back_once_more_parts_are_made_does_not_end_the_job(
    control: ControlStore,
) -> None:
    for parts, is_over in ((1, False), (2, False), (2, True)):
        control.note_rendezvous(0)
        supervision = Supervision(0)
        supervision.note_parts(parts)
        supervision.post_failure(ValueError("the disk is on fire"))
        supervision.end()
        assert (control.given_up() is not None) == is_over
    assert str(control.given_up()).endswith(" after 2 parts: ValueError: the disk is on fire")


def test_a_machine_that_does_not_answer_gets_another_try(control: ControlStore) -> None:
    control.note_rendezvous(0)
    fail(0, Unreachable("hostA cannot reach hostB"))
    assert control.given_up() is None, "it may have died, and be lost or come back"
    control.note_rendezvous(0)
    fail(0, Unreachable("hostA cannot reach hostB"))
    over = control.given_up()
    assert over
    assert over.is_mistake


def test_first_final_failure_stands_and_says_whose_it_is(control: ControlStore) -> None:
    fail(1, UserError("no corpus"))
    fail(0, SystemFault("no space"))
    over = control.given_up()
    assert over
    assert over.is_mistake
    assert over.reason == "no corpus"


def test_a_failure_is_told_once(control: ControlStore) -> None:
    supervision = Supervision(0)
    for error in (ValueError("the disk is on fire"), OSError("and so is the log")):
        supervision.post_failure(error)
    supervision.end()
    assert [failure.reason for failure in control.failures()] == ["ValueError: the disk is on fire"]


def test_a_heart_that_missed_a_beat_goes_on(
    control: ControlStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def pwrite(*_: object) -> None:
        failed.set()
        raise OSError(28, "No space left on device")

    failed = threading.Event()
    with monkeypatch.context() as patch:
        patch.setattr(os, "pwrite", pwrite)
        supervision = Supervision(0)
        assert failed.wait(60)
    wait_until(lambda: bool((tmp_path / "0").read_text()))
    control.ask_to_stop()
    wait_until(lambda: supervision.is_asked_to_stop)
    supervision.end()


def test_a_heart_beats_on_while_the_control_store_does_not_answer(
    control: ControlStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked, answered = threading.Event(), threading.Event()

    def look(*_: object) -> None:
        asked.set()
        answered.wait()

    monkeypatch.setattr(Supervision, "_look", look)
    supervision = Supervision(0)
    assert asked.wait(60)
    before = (tmp_path / "0").read_text()
    wait_until(lambda: (tmp_path / "0").read_text() != before)
    answered.set()
    supervision.end()


def test_the_step_is_known_however_soon_the_worker_is_killed(
    control: ControlStore, tmp_path: Path
) -> None:
    supervision = Supervision(0)
    supervision.end()
    for step in (9, 10_000_000):
        supervision.note_step(step)
        assert json.loads((tmp_path / "0").read_text())["progress"] == f"at step {step}"


def test_a_worker_ends_when_its_launcher_is_gone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    be_worker_of(store, tmp_path, monkeypatch)
    codes: list[int] = []
    monkeypatch.setattr(os, "_exit", codes.append)
    supervision = Supervision(0)
    del store
    wait_until(lambda: bool(codes))
    supervision.end()
    assert set(codes) == {1}


def test_a_failure_that_nobody_hears_is_no_other_failure(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    be_worker_of(store, tmp_path, monkeypatch)
    supervision = Supervision(0)
    supervision.end()  # So that it does not end this process.
    del store
    supervision.post_failure(ValueError("the disk is on fire"))


def test_a_new_attempt_knows_which_requests_to_save_were_answered(control: ControlStore) -> None:
    alone = Workers(0, 1, torch.device("cpu"), ("here",))
    supervision = Supervision(0)
    for asked, answered in ((1, 0), (2, 2)):
        assert control.ask_to_save() == asked
        if answered:
            supervision.note_saved(answered)
        attempt = supervision.begin_attempt(alone)
        assert attempt
        assert attempt.saves_answered == answered
    supervision.end()


def test_an_attempt_says_who_was_lost_and_who_joined(control: ControlStore) -> None:
    echo = Failure("hostA", 0, "at step 8", "connection to another worker lost", 1.0, is_echo=True)
    lost = Failure("hostB", None, None, "the machine was lost", 2.0)
    killed = Failure("hostA", 0, "at step 9", "killed by SIGKILL", 3.0)
    alone = Failure("hostB", 1, "at step 9", "no heartbeat for 5 s", 4.0)  # Of the attempt before.
    stories: list[tuple[list[Failure], list[str], str]] = [
        ([], ["hostA", "hostB"], "a machine came or went"),
        ([echo], ["hostA"], "hostB was lost"),
        ([lost], ["hostA", "hostB"], "hostB joined"),
        ([], ["hostA"], "hostB was lost"),
        ([alone], ["hostA", "hostB"], "hostB joined"),
        ([echo, lost], ["hostA", "hostB"], "hostB: the machine was lost"),
        ([killed], ["hostA", "hostB"], "worker 0 on hostA at step 9: killed by SIGKILL"),
        (
            [killed],
            ["hostA", "hostC"],
            "worker 0 on hostA at step 9: killed by SIGKILL; hostB was lost; hostC joined",
        ),
    ]
    for failures, hosts, reason in stories:
        for failure in failures:
            control.post_failure(failure)
        assert control.begin_attempt(hosts).reason == reason


def test_a_worker_whose_launcher_is_gone_before_it_begins_ends_quietly(
    control: ControlStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    def lose_connection(address: str) -> TCPStore:
        store = TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
        client = TCPStore("127.0.0.1", store.port, is_master=False)
        del store
        return client

    monkeypatch.setattr("dragoman.cluster.control_store.connect", lose_connection)
    with pytest.raises(distributed.DistError):
        Supervision(0)
    with pytest.raises(SystemExit) as end, supervised():
        pass
    assert end.value.code == 1
