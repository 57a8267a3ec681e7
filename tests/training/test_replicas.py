"""Copies of a run folder: who writes them, and what a kill leaves whole."""

import os
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
import torch

from dragoman.cluster.processes import Workers
from dragoman.config_file import load_config
from dragoman.errors import UserError
from dragoman.files import exclusive
from dragoman.runs.folder import RunFolder
from dragoman.training.opening import choose_writers, hold, share_history
from dragoman.training.recorder import Recorder
from support import SMALL

SECOND_MACHINE = Workers(1, 2, torch.device("cpu"), ("hostA", "hostB"))


def test_no_mark_is_left_when_another_worker_dies(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def gather(*_: Any) -> None:
        assert len(list(tmp_path.iterdir())) == 1
        raise RuntimeError("Connection closed by peer")

    monkeypatch.setattr(Workers, "broadcast", lambda *_: "token")
    monkeypatch.setattr(Workers, "gather", gather)
    with pytest.raises(RuntimeError):
        choose_writers(RunFolder(tmp_path), SECOND_MACHINE)
    assert not list(tmp_path.iterdir())


def test_a_history_is_replaced_in_one_move(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run = RunFolder(tmp_path)
    run.metrics.write_text("old\n")
    os.link(run.metrics, tmp_path / "same file")
    monkeypatch.setattr(Workers, "gather_json", lambda _, mine: [[True, "other"], mine])
    monkeypatch.setattr(Workers, "broadcast_bytes", lambda *_: b"new\n")
    share_history(run, SECOND_MACHINE, source=0, writes=True)
    assert run.metrics.read_text() == "new\n"
    assert (tmp_path / "same file").read_text() == "old\n"


def test_a_fresh_machine_does_not_wipe_the_history_of_a_run_without_checkpoints(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = RunFolder(tmp_path)
    run.metrics.write_text("old\n")
    monkeypatch.setattr(Workers, "gather", lambda _, mine: [[-1], mine])
    monkeypatch.setattr(Workers, "gather_json", lambda _, mine: [[True, "none"], mine])
    sent: list[tuple[bytes, int]] = []

    def broadcast_bytes(_: Workers, content: bytes, source: int) -> bytes:
        sent.append((content, source))
        return content if source == 1 else b""

    monkeypatch.setattr(Workers, "broadcast_bytes", broadcast_bytes)
    share_history(run, SECOND_MACHINE, source=None, writes=True)
    assert run.metrics.read_text() == "old\n"
    assert sent == [(b"old\n", 1), (b"", 1), (b"", 1)]  # Neither samples nor earlier translations.


def test_a_restart_waits_for_the_lock_of_the_attempt_before(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = ExitStack()
    before.enter_context(exclusive(tmp_path, "training it"))
    with ExitStack() as now, pytest.raises(UserError, match="another process is training it"):
        hold(RunFolder(tmp_path), now, patience_seconds=0.0)
    monkeypatch.setattr("dragoman.training.opening.time.sleep", lambda _: before.close())
    with ExitStack() as now:
        hold(RunFolder(tmp_path), now, patience_seconds=60.0)
        with (
            pytest.raises(UserError, match="another process is"),
            exclusive(tmp_path, "training it"),
        ):
            pass


def test_every_machine_has_a_log(prepared: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run = RunFolder(prepared / "run")
    run.path.mkdir()
    config = load_config(prepared / "config.toml", SMALL)
    capsys.readouterr()
    recorder = Recorder(run, config, SECOND_MACHINE, writes=True, step=0)
    recorder.say("restarted")
    recorder.close()
    assert run.log.read_text().endswith("restarted\n")
    assert not capsys.readouterr().err, "only worker 0 is shown"
