"""How the attempts of a run begin and end: what is written, agreed and owed."""

import json
import threading
from pathlib import Path
from typing import Any

import pytest
import torch

from dragoman.cluster.control_store import Attempt
from dragoman.cluster.failures import describe_error
from dragoman.cluster.processes import Workers
from dragoman.cluster.supervision import Supervision
from dragoman.config_file import load_config
from dragoman.errors import SystemFault, UserError
from dragoman.files import exclusive
from dragoman.report.evidence.history import read_history
from dragoman.runs import checkpoint_writer
from dragoman.runs.checkpoint import Checkpoint, Written, read_index, read_state, write_checkpoint
from dragoman.runs.folder import RunFolder
from dragoman.training import trainer as trainer_module
from dragoman.training.start import run_attempt, train
from dragoman.training.step import PlainStep
from dragoman.training.stopping import Stop
from dragoman.training.trainer import Trainer
from support import SMALL, assert_same_end, metrics, refusal


def run(folder: Path, name: str, *overrides: str) -> Stop | None:
    config = load_config(folder / "config.toml", [*SMALL, *overrides])
    return train(config, str(folder / name))


def run_with(supervision: Supervision, folder: Path, *overrides: str) -> Stop:
    config = load_config(folder / "config.toml", [*SMALL, *overrides])
    workers = Workers(0, 1, torch.device("cpu"), ("here",))
    return run_attempt(config, RunFolder(folder / "run"), workers, supervision)


def test_an_error_before_the_first_step_leaves_a_stop_line_and_no_thread(
    prepared: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def begin(*_: Any) -> None:
        raise torch.OutOfMemoryError("no room for graphs")

    threads = threading.active_count()
    monkeypatch.setattr(PlainStep, "begin", begin)
    with pytest.raises(torch.OutOfMemoryError):
        run(prepared, "run")
    assert threading.active_count() == threads
    (stop,) = metrics(prepared / "run", "stop")
    assert (stop["reason"], stop["detail"]) == ("error", "OutOfMemoryError: no room for graphs")


def test_a_request_to_stop_that_one_worker_hears_at_the_start_stops_all(
    prepared: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def gather(_: Workers, values: list[float]) -> list[list[float]]:
        return [list(values), [Stop.SIGNAL] if isinstance(values[0], Stop) else list(values)]

    monkeypatch.setattr(Workers, "gather", gather)
    assert run(prepared, "run") is Stop.SIGNAL
    assert (prepared / "run/metrics.jsonl").read_bytes() == b""
    log = (prepared / "run/train.log").read_text()
    assert "stopped at step 0, as requested; the same command resumes the run" in log
    assert "complete" not in log


def test_a_save_asked_for_before_the_start_is_answered(
    prepared: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    supervision = Supervision(0)
    supervision.saves_asked = 3
    answered: list[int] = []
    monkeypatch.setattr(supervision, "note_saved", answered.append)
    run_with(supervision, prepared, "training.steps=2")
    assert answered == [3]
    assert [line["step"] for line in metrics(prepared / "run", "checkpoint")] == [1, 2]


def test_a_save_that_an_earlier_attempt_answered_is_not_made_again(
    prepared: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    supervision = Supervision(0)
    supervision.saves_asked = 3
    attempt = Attempt(1, None, [], [], saves_answered=3)
    monkeypatch.setattr(supervision, "begin_attempt", lambda _: attempt)
    run_with(supervision, prepared, "training.steps=2")
    assert [line["step"] for line in metrics(prepared / "run", "checkpoint")] == [2]


def fail_to_write(monkeypatch: pytest.MonkeyPatch, step: int) -> None:
    """Let the disk be full when the checkpoint of this step is written."""

    def write_or_fail(folder: Path, one: Checkpoint) -> Written:
        if one.step == step:
            raise OSError(28, "No space left on device")
        return write_checkpoint(folder, one)

    monkeypatch.setattr(checkpoint_writer, "write_checkpoint", write_or_fail)


def test_a_save_that_failed_is_not_answered_nor_tried_at_every_step(
    prepared: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    supervision = Supervision(0)
    supervision.saves_asked = 1
    answered: list[int] = []
    monkeypatch.setattr(supervision, "note_saved", answered.append)
    fail_to_write(monkeypatch, step=1)
    run_with(supervision, prepared, "training.steps=3")
    assert not answered
    assert [line["step"] for line in metrics(prepared / "run", "checkpoint_failed")] == [1]
    assert [line["step"] for line in metrics(prepared / "run", "checkpoint")] == [3]
    log = (prepared / "run/train.log").read_text()
    assert "the launcher that requested it will get no answer" in log


def test_a_run_whose_last_checkpoint_failed_is_not_complete(
    prepared: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    supervision = Supervision(0)
    queue_step = Trainer._queue_step

    def queue_step_and_ask(self: Trainer) -> None:
        queue_step(self)
        # What became of it is then known before the end.
        supervision.saves_asked = int(self.progress.step == 6)

    with monkeypatch.context() as patch:
        fail_to_write(patch, step=6)
        patch.setattr(Trainer, "_queue_step", queue_step_and_ask)
        with pytest.raises(SystemFault, match=r"^checkpoint .*step-00000006 could not be") as told:
            run_with(supervision, prepared, "training.steps=6")
    assert str(describe_error(told.value, 1, "at step 6")).startswith("here at step 6: checkpoint ")
    folder = prepared / "run"
    (stop,) = metrics(folder, "stop")
    assert (stop["step"], stop["reason"]) == (6, "error")
    assert stop["detail"].startswith("checkpoint ")
    log = (folder / "train.log").read_text()
    assert "step-00000006 could not be written: No space left" in log
    assert "complete" not in log
    assert run(prepared, "run", "training.steps=6") is Stop.STEPS
    assert metrics(folder, "resume")[0]["step"] == 4
    assert read_index(folder / "checkpoints").latest == "step-00000006"


def test_a_signal_at_an_evaluation_costs_the_run_no_evaluation(
    prepared: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run(prepared, "whole")
    queue_step = Trainer._queue_step

    def queue_step_and_interrupt(self: Trainer) -> None:
        queue_step(self)
        if self.progress.step == 8:
            self.signals.requested = "SIGTERM"

    with monkeypatch.context() as patch:
        patch.setattr(Trainer, "_queue_step", queue_step_and_interrupt)
        assert run(prepared, "parts") is Stop.SIGNAL
    assert not metrics(prepared / "parts", "eval")
    assert read_index(prepared / "parts/checkpoints").latest == "step-00000008"
    run(prepared, "parts")
    assert_same_end(prepared / "whole", prepared / "parts")
    scores = [
        [(line["step"], line["loss"], line["bleu"]) for line in metrics(prepared / name, "eval")]
        for name in ("whole", "parts")
    ]
    assert scores[0] == scores[1]
    assert not any("repeated" in line for line in metrics(prepared / "parts", "eval"))


def test_steps_before_the_first_checkpoint_are_void_after_a_kill(
    prepared: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    late = "checkpoints.every_steps=100"
    with monkeypatch.context() as patch:
        patch.setattr(trainer_module, "learning_rate", lambda *_: float("inf"))
        with pytest.raises(SystemFault):
            run(prepared, "run", late, "training.max_skipped_steps=3")
    run(prepared, "run", late, "training.steps=2")
    (resume,) = metrics(prepared / "run", "resume")
    assert (resume["step"], resume["checkpoint"]) == (0, None)
    missing: list[str] = []
    history = read_history(prepared / "run/metrics.jsonl", missing)
    assert history.train.step.tolist() == [1, 2]
    assert len(history.lost) > 2
    assert not missing


def test_a_run_that_another_process_trains_is_refused(
    prepared: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run(prepared, "run", "training.steps=4")
    config = (prepared / "run/config.toml").read_bytes()
    with exclusive(prepared / "run", "training it"):
        code, errors = refusal(
            capsys, "train", prepared / "config.toml", "--run", prepared / "run", *SMALL
        )
    assert code == 2
    assert f"{prepared / 'run'}: another process is training it" in errors
    assert (prepared / "run/config.toml").read_bytes() == config
    assert run(prepared, "run") is Stop.STEPS


def test_an_opening_that_was_killed_is_done_again(prepared: Path) -> None:
    folder = prepared / "run"
    for path in (folder / "checkpoints", folder / "monitor"):
        path.mkdir(parents=True)
    for name in (".lock", ".seen-1234-1", ".config.toml.99", "source.model", "provenance.json"):
        (folder / name).write_text("half")
    assert run(prepared, "run", "training.steps=2") is Stop.STEPS
    source, target = RunFolder(folder).subwords
    assert source.read_bytes() == target.read_bytes()
    assert json.loads((folder / "provenance.json").read_text())["run"] == "run"


def test_checkpoints_without_a_config_are_not_taken_for_a_new_run(prepared: Path) -> None:
    (prepared / "run/checkpoints/step-00000008").mkdir(parents=True)
    with pytest.raises(UserError, match="is not empty and is not a run"):
        run(prepared, "run")


def test_rows_are_chosen_again_on_another_device_only(
    prepared: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    auto = "batches.rows_per_device=auto"
    run(prepared, "run", auto, "training.steps=4")
    monkeypatch.setattr(trainer_module, "choose_rows_per_device", lambda *_: 2)
    run(prepared, "run", auto, "training.steps=8")
    monkeypatch.setattr(trainer_module, "kind_of", lambda *_: "a smaller one")
    run(prepared, "run", auto, "training.steps=12")
    lines = metrics(prepared / "run", "start") + metrics(prepared / "run", "resume")
    assert [line["rows_per_device"] for line in lines] == [16, 16, 2]
    progress = read_state(prepared / "run/checkpoints", "step-00000012").progress
    assert (progress["rows_per_device"], progress["device"]) == (2, "a smaller one")
