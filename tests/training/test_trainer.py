import json
import os
import random
import shutil
import signal
import subprocess
import time
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
import torch

from dragoman.config_file import load_config
from dragoman.corpus.prepare import prepare
from dragoman.errors import SystemFault, UserError
from dragoman.inference.translate import Translator
from dragoman.report.answers import answer_all
from dragoman.report.evidence import load_evidence
from dragoman.report.findings.analysis import analyse
from dragoman.runs import checkpoint_writer
from dragoman.runs.checkpoint import Checkpoint, Written, read_index, write_checkpoint
from dragoman.runs.checkpoint_writer import CheckpointWriter
from dragoman.runs.folder import RunFolder
from dragoman.training import trainer as trainer_module
from dragoman.training.start import train
from dragoman.training.stopping import Stop
from support import (
    PATIENCE,
    SMALL,
    assert_same_end,
    dragoman_command,
    final_tensors,
    has_step,
    metrics,
    refusal,
    wait_until,
)

WEIGHTS = "weights.safetensors"


def run(folder: Path, name: str, *overrides: str) -> Stop | None:
    config = load_config(folder / "config.toml", [*SMALL, *overrides])
    return train(config, str(folder / name))


def test_run_folder_holds_what_it_promises(trained_once: Path) -> None:
    folder = RunFolder(trained_once / "run")
    steps = metrics(folder.path, "train")
    assert [line["step"] for line in steps] == list(range(1, 25))
    for line in steps:
        phases = [value for key, value in line.items() if key.startswith("seconds_")]
        assert sum(phases) == pytest.approx(line["seconds"])
        assert line["target_tokens"] <= line["slots"] == 512
    assert steps[-1]["loss"] < steps[0]["loss"]
    evaluations = metrics(folder.path, "eval")
    assert [line["step"] for line in evaluations] == [8, 16, 24]
    assert all("|tok:13a|" in line["signature"] for line in evaluations)
    assert metrics(folder.path, "start")[0]["workers"] == 1
    assert metrics(folder.path, "stop")[-1]["reason"] == "steps"
    index = read_index(folder.checkpoints)
    assert index.latest == "step-00000024"
    for entry in index.checkpoints:
        files = list((folder.checkpoints / entry.name).iterdir())
        assert sum(path.stat().st_size for path in files) == entry.bytes
    saved = [line["step"] for line in metrics(folder.path, "checkpoint")]
    assert saved == [4, 8, 12, 16, 20, 24]
    samples = folder.samples.read_text().splitlines()
    assert len(samples) == 3 * 5
    provenance = json.loads(folder.provenance.read_text())
    weights = final_tensors(folder.path)
    parameters = sum(value.numel() for value in weights.values()) // 3
    assert provenance["model"]["parameters"] == parameters
    corpus = load_config(trained_once / "config.toml").corpus.folder
    assert provenance["corpus"]["folder"] == str(Path(corpus).resolve())
    assert "resuming" not in folder.log.read_text()


def test_steps_between_synchronizations_say_when_each_of_them_ended(
    prepared: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Their results are read together, at the meeting."""
    monkeypatch.setattr(CheckpointWriter, "done", CheckpointWriter.finish)  # However long it takes.
    local = ["distributed.sync=local", "distributed.local_steps=12"]
    run(prepared, "run", *local, "evaluation.every_steps=12", "checkpoints.every_steps=12")
    log = (prepared / "run" / "metrics.jsonl").read_text().splitlines()
    lines = [json.loads(line) for line in log]
    times = [line["time"] for line in lines]
    assert times == sorted(times), "a line that goes back looks like a clock that was set"
    kinds = [(line["kind"], line["step"]) for line in lines]
    assert kinds.index(("checkpoint", 12)) < kinds.index(("eval", 24)), "noted as soon as it can be"
    steps = metrics(prepared / "run", "train")
    assert len(steps) == 24
    for before, line in pairwise(steps):
        if line["step"] != 13:  # An evaluation lies before that one.
            assert line["time"] - before["time"] == pytest.approx(line["seconds"], abs=1e-5)


def test_tensorboard_reads_the_same_scalars(trained_once: Path) -> None:
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    board = EventAccumulator(str(trained_once / "run" / "tensorboard"))
    board.Reload()
    expected = {"train_loss", "eval_loss", "eval_BLEU", "learning_rate", "global_gradient_norm"}
    assert expected | {"tokens_per_second"} <= set(board.Tags()["scalars"])
    logged = {line["step"]: line["loss"] for line in metrics(trained_once / "run", "train")}
    shown = {event.step: event.value for event in board.Scalars("train_loss")}
    assert shown == pytest.approx(logged)


@pytest.mark.parametrize(("dropout", "kind"), [(0.0, "adam"), (0.1, "adam"), (0.1, "muon")])
def test_resumed_equals_uninterrupted_bit_for_bit(
    prepared: Path, dropout: float, kind: str
) -> None:
    settings = [f"model.dropout={dropout}", f"model.attention_dropout={dropout}"]
    settings += [f"optimizer.kind={kind}"]
    run(prepared, "whole", *settings)
    # 24 steps of 16 rows pass the end of the corpus (600 pairs of about 12 tokens).
    assert metrics(prepared / "whole", "train")[-1]["epoch"] > 1
    for steps in (7, 13, 24):
        run(prepared, "parts", *settings, f"training.steps={steps}")
    assert_same_end(prepared / "whole", prepared / "parts")
    resumes = metrics(prepared / "parts", "resume")
    assert [line["step"] for line in resumes] == [7, 13]


def test_micro_batches_do_not_change_the_sums(prepared: Path) -> None:
    none = ["model.dropout=0.0", "model.attention_dropout=0.0", "model.relu_dropout=0.0"]
    run(prepared, "small", *none, "batches.rows_per_device=3", "training.steps=10")
    run(prepared, "large", *none, "batches.rows_per_device=16", "training.steps=10")
    small, large = (metrics(prepared / name, "train") for name in ("small", "large"))
    for one, other in zip(small, large, strict=True):
        assert one["loss"] == pytest.approx(other["loss"], rel=1e-5)
        assert one["gradient_norm"] == pytest.approx(other["gradient_norm"], rel=1e-4)


def test_same_command_on_a_finished_run_changes_nothing(prepared: Path, trained_once: Path) -> None:
    shutil.copytree(trained_once / "run", prepared / "run")
    before = {path: path.stat().st_mtime_ns for path in (prepared / "run/checkpoints").rglob("*")}
    history = (prepared / "run/metrics.jsonl").read_bytes()
    assert run(prepared, "run") is Stop.STEPS
    assert {path: path.stat().st_mtime_ns for path in before} == before
    assert (prepared / "run/metrics.jsonl").read_bytes() == history
    assert "the run is complete" in (prepared / "run" / "train.log").read_text()


@pytest.mark.parametrize("left", ["an error", "nothing"])
def test_the_end_that_a_dead_attempt_could_not_write_is_written(
    prepared: Path, trained_once: Path, left: str
) -> None:
    """Every step was made and saved; what came after the last line is not counted as time."""
    shutil.copytree(trained_once / "run", prepared / "run")
    log = prepared / "run/metrics.jsonl"
    *lines, stop = log.read_text().splitlines(keepends=True)
    assert '"reason": "steps"' in stop
    lines += [stop.replace('"steps"', '"error"')] if left == "an error" else []
    log.write_text("".join(lines))
    assert run(prepared, "run") is Stop.STEPS
    *before, end = map(json.loads, log.read_text().splitlines())
    assert (end["kind"], end["reason"], end["step"]) == ("stop", "steps", before[-1]["step"])
    assert len(before) == len(lines)
    assert end["time"] == max(line["time"] for line in before)
    assert run(prepared, "run") is Stop.STEPS
    assert len(log.read_text().splitlines()) == len(lines) + 1


def test_changed_settings_are_refused_by_name(prepared: Path) -> None:
    run(prepared, "run", "training.steps=4")
    with pytest.raises(UserError) as caught:
        run(prepared, "run", "optimizer.beta2=0.997", "training.seed=7", "training.steps=8")
    message = str(caught.value)
    assert "optimizer.beta2 was 0.98, is now 0.997" in message
    assert "training.seed was 1, is now 7" in message
    assert "training.steps" not in message
    assert run(prepared, "run", "training.steps=8", "checkpoints.keep_latest=1") is Stop.STEPS
    with pytest.raises(UserError, match=r"cleaning.max_words = 70, not 80; run `dragoman prepare`"):
        run(prepared, "run", "cleaning.max_words=70")


def test_steps_are_fixed_where_the_schedule_depends_on_them(prepared: Path) -> None:
    cosine = ["schedule.kind=cosine", "schedule.peak=0.01"]
    without_scale = [word for word in SMALL if "scale" not in word]
    config = load_config(prepared / "config.toml", [*without_scale, *cosine])
    train(config, str(prepared / "run"))
    longer = load_config(prepared / "config.toml", [*without_scale, *cosine, "training.steps=30"])
    with pytest.raises(UserError, match=r"training\.steps was 24, is now 30"):
        train(longer, str(prepared / "run"))


def test_other_corpus_is_refused(prepared: Path) -> None:
    run(prepared, "run", "training.steps=4")
    with open(prepared / "train.en", "a") as english, open(prepared / "train.de", "a") as german:
        english.write("one two\n")
        german.write("eins zwei\n")
    prepare(load_config(prepared / "config.toml", SMALL), processes=1)
    with pytest.raises(UserError, match="the prepared corpus was"):
        run(prepared, "run")


def flip_a_bit(path: Path) -> None:
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(content)


@pytest.mark.parametrize(
    "damage", [flip_a_bit, Path.unlink, lambda path: path.write_bytes(path.read_bytes()[:-1])]
)
def test_damaged_checkpoint_is_named_and_passed_over(
    prepared: Path, trained_once: Path, damage: Callable[[Path], Any]
) -> None:
    run(prepared, "run", "training.steps=12")
    damage(prepared / "run/checkpoints/step-00000012" / WEIGHTS)
    run(prepared, "run")
    log = (prepared / "run/train.log").read_text()
    assert "checkpoint step-00000012 is damaged" in log
    assert "resuming from step-00000008" in log
    assert_same_end(trained_once / "run", prepared / "run")
    repeated = [line["step"] for line in metrics(prepared / "run", "train") if "repeated" in line]
    assert repeated == [9, 10, 11, 12]


def test_run_without_an_intact_checkpoint_is_refused_and_kept(prepared: Path) -> None:
    run(prepared, "run", "training.steps=8")
    checkpoints = prepared / "run/checkpoints"
    for path in checkpoints.glob("step-*/"):
        flip_a_bit(path / WEIGHTS)
    before = {path: path.read_bytes() for path in checkpoints.rglob("*") if path.is_file()}
    with pytest.raises(UserError, match=r"no checkpoint in .*/run/checkpoints is intact"):
        run(prepared, "run")
    assert before == {path: path.read_bytes() for path in checkpoints.rglob("*") if path.is_file()}


def test_latest_and_best_are_kept(prepared: Path) -> None:
    run(prepared, "run", "checkpoints.keep_latest=2", "training.steps=24")
    index = read_index(prepared / "run/checkpoints")
    evaluations = {line["step"]: line for line in metrics(prepared / "run", "eval")}
    best_loss = min(evaluations, key=lambda step: evaluations[step]["loss"])
    best_bleu = max(
        evaluations, key=lambda step: (evaluations[step]["bleu"], -evaluations[step]["loss"])
    )
    kept = {entry.step for entry in index.checkpoints}
    assert kept == {20, 24, best_loss, best_bleu}
    assert index.best_loss == f"step-{best_loss:08d}"
    folders = {path.name for path in (prepared / "run/checkpoints").iterdir() if path.is_dir()}
    assert folders == {f"step-{step:08d}" for step in kept}


def test_patience_epochs_and_hours_stop_a_run(prepared: Path) -> None:
    stuck = ["schedule.scale=0", "training.patience=2", "evaluation.every_steps=3"]
    assert run(prepared, "patience", *stuck) is Stop.PATIENCE
    assert metrics(prepared / "patience", "train")[-1]["step"] == 9
    assert run(prepared, "epochs", "training.epochs=0.5") is Stop.EPOCHS
    assert metrics(prepared / "epochs", "train")[-1]["epoch"] >= 0.5
    assert run(prepared, "hours", "training.hours=1e-9") is Stop.HOURS


def test_a_run_that_has_nothing_to_gain_stops_and_the_report_agrees(prepared: Path) -> None:
    stuck = ["schedule.scale=0", "schedule.warmup_steps=1", "evaluation.every_steps=1"]
    settings = [*stuck, "training.stop_when_gain_unlikely=0.05"]
    # Not before the tenth evaluation; interrupted before, it knows the first ones all the same.
    assert run(prepared, "run", *settings, "training.steps=6") is Stop.STEPS
    assert run(prepared, "run", *settings, "training.steps=40") is Stop.GAIN_UNLIKELY
    assert metrics(prepared / "run", "stop")[-1]["reason"] == "gain_unlikely"
    evaluations = metrics(prepared / "run", "eval")
    assert len(evaluations) == 10
    found = analyse(load_evidence(prepared / "run", now=0.0)).convergence
    assert found.evaluations == 10
    assert found.probability <= 0.05


def test_steps_without_finite_gradient_stop_the_run_before_harm(
    prepared: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run(prepared, "run", "training.steps=4")
    monkeypatch.setattr(
        trainer_module, "learning_rate", lambda step, *_: float("inf") if step > 4 else 0.1
    )
    with pytest.raises(
        SystemFault, match="no finite gradient for 3 consecutive steps, up to step 8"
    ):
        run(prepared, "run", "training.max_skipped_steps=3")
    skipped = [line.get("skipped", False) for line in metrics(prepared / "run", "train")]
    assert skipped[-3:] == [True] * 3
    assert metrics(prepared / "run", "stop")[-1]["reason"] == "error"
    assert all(torch.isfinite(value).all() for value in final_tensors(prepared / "run").values())
    # Resumed, it would meet the same rates.
    evidence = load_evidence(prepared / "run", now=0.0)
    (advice,) = (
        one.next_step for one in answer_all(evidence, analyse(evidence)) if one.id == "duration"
    )
    assert advice.startswith("Start a new run with other settings: these stopped it (no finite")


def test_a_save_under_way_at_an_error_is_finished_and_written_down(
    prepared: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def write_slowly(folder: Path, checkpoint: Checkpoint) -> Written:
        time.sleep(0.5)
        return write_checkpoint(folder, checkpoint)

    def learning_rate(step: int, *_: object) -> float:
        if step > 8:
            raise ValueError("the disk of this worker is on fire")
        return 0.1

    monkeypatch.setattr(checkpoint_writer, "write_checkpoint", write_slowly)
    monkeypatch.setattr(trainer_module, "learning_rate", learning_rate)
    with pytest.raises(ValueError, match="on fire"):
        run(prepared, "run", "checkpoints.every_steps=8")
    (saved,) = metrics(prepared / "run", "checkpoint")
    (stop,) = metrics(prepared / "run", "stop")
    assert saved["step"] == 8
    assert saved["time"] < stop["time"]


def test_full_disk_is_told_and_training_goes_on_to_its_end(
    prepared: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    disk = prepared / "disk"
    disk.mkdir()
    if subprocess.run(["mount", "-t", "tmpfs", "-o", "size=700k", "none", disk]).returncode:
        pytest.skip("cannot mount a small disk here")
    try:
        with open(disk / "filler", "wb") as filler:
            run(prepared, "disk/run", "training.steps=4")
            filler.write(b"x" * (disk_free(disk) - 120_000))
            filler.flush()
            with pytest.raises(SystemFault, match="step-00000024 could not be written"):
                run(prepared, "disk/run")
        assert metrics(disk / "run", "train")[-1]["step"] == 24
        failed = metrics(disk / "run", "checkpoint_failed")
        assert all("No space left on device" in line["reason"] for line in failed)
        assert "Exception in thread" not in capfd.readouterr().err
        assert failed
        assert read_index(disk / "run/checkpoints").latest == "step-00000004"
        (disk / "filler").unlink()
        assert run(prepared, "disk/run", "training.steps=28") is Stop.STEPS
    finally:
        subprocess.run(["umount", disk], check=True)


def disk_free(path: Path) -> int:
    status = os.statvfs(path)
    return status.f_bavail * status.f_frsize


def start_training(folder: Path, *overrides: str, **variables: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        dragoman_command("train", folder / "config.toml", "--run", folder / "run")
        + [*SMALL, *overrides],
        env={**os.environ, **variables},
        stderr=subprocess.PIPE,
        text=True,
    )


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_signal_finishes_the_step_saves_and_leaves(prepared: Path, number: signal.Signals) -> None:
    process = start_training(
        prepared,
        *("training.steps=100_000", "checkpoints.every_steps=100_000"),
        "evaluation.every_steps=100_000",
    )
    wait_until(lambda: has_step(prepared / "run", 3))
    process.send_signal(number)
    _, errors = process.communicate(timeout=PATIENCE)
    assert process.returncode == 4, errors
    assert not metrics(prepared / "run", "eval"), "who sends a signal does not wait for scores"
    assert f"as requested by {number.name}" in errors
    last = metrics(prepared / "run", "train")[-1]["step"]
    assert read_index(prepared / "run/checkpoints").latest == f"step-{last:08d}"
    assert metrics(prepared / "run", "stop")[-1]["reason"] == "signal"


@pytest.mark.parametrize("step", [8, 12])
def test_signal_interrupts_an_evaluation_which_the_next_attempt_makes(
    prepared: Path, monkeypatch: pytest.MonkeyPatch, step: int
) -> None:
    settings = ["training.steps=12"]
    run(prepared, "whole", *settings)
    translate, evaluations = Translator.translate, iter((8, 12))

    def translate_under_signal(*arguments: Any, **named: Any) -> Any:
        if next(evaluations) == step:
            os.kill(os.getpid(), signal.SIGTERM)
        return translate(*arguments, **named)

    with monkeypatch.context() as patch:
        patch.setattr(Translator, "translate", translate_under_signal)
        assert run(prepared, "run", *settings) is Stop.SIGNAL
    evaluated = [line["step"] for line in metrics(prepared / "run", "eval")]
    assert evaluated == [early for early in (8, 12) if early < step]
    assert read_index(prepared / "run/checkpoints").latest == f"step-{step:08d}"
    assert run(prepared, "run", *settings) is Stop.STEPS
    scores = [
        [(line["step"], line["loss"], line["bleu"]) for line in metrics(prepared / name, "eval")]
        for name in ("whole", "run")
    ]
    assert scores[0] == scores[1]
    assert_same_end(prepared / "whole", prepared / "run")
    assert run(prepared, "run", *settings) is Stop.STEPS
    assert len(metrics(prepared / "run", "resume")) == 1, "nothing is owed any more"


@pytest.mark.parametrize(
    ("overrides", "line"),
    [
        (["training.steps=0"], r"training.steps must be at least 1"),
        (["corpus.folder='/nowhere'"], r"/nowhere holds no prepared corpus; run `dragoman prep"),
        (["batches.tokens_per_step=100"], r"not a multiple of batches.row_tokens"),
        (["model.heads=3"], r"model.d_model = 16 must be a multiple of 2 x heads"),
    ],
)
def test_bad_settings_are_one_line(
    prepared: Path, overrides: list[str], line: str, capsys: pytest.CaptureFixture[str]
) -> None:
    config, run_folder = prepared / "config.toml", prepared / "run"
    code, errors = refusal(capsys, "train", config, "--run", run_folder, *SMALL, *overrides)
    assert code == 2
    assert line in errors
    assert not (prepared / "run").exists()


def test_a_folder_with_other_things_is_refused(
    prepared: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    config = prepared / "config.toml"
    code, errors = refusal(capsys, "train", config, "--run", prepared, *SMALL)
    assert code == 2
    assert "is not empty and is not a run" in errors


# Ends a process somewhere in the steps after a chosen one, which take a while.
KILLED_TRAINING = """
import os, signal, threading, time
from dragoman.training.step import PlainStep

queue_step = PlainStep.queue
step, seconds = os.environ["KILLED_AT"].split(",")

def queue(self, batch, number, *rest):
    if number == int(step):
        threading.Timer(float(seconds), os.kill, (os.getpid(), signal.SIGKILL)).start()
    time.sleep(0.01)
    return queue_step(self, batch, number, *rest)

PlainStep.queue = queue
"""


@pytest.mark.slow
def test_killed_at_random_moments_it_ends_like_the_undisturbed_run(prepared: Path) -> None:
    """benchmarks/faults.py has a longer campaign."""
    settings = ["training.steps=120", "evaluation.every_steps=60"]
    run(prepared, "whole", *settings)
    (prepared / "sitecustomize.py").write_text(KILLED_TRAINING)
    generator = random.Random(0)
    for step in (1, 35, 70):
        moment = f"{step},{generator.uniform(0, 0.1)}"
        process = start_training(prepared, *settings, PYTHONPATH=str(prepared), KILLED_AT=moment)
        _, errors = process.communicate(timeout=PATIENCE)
        assert process.returncode == -signal.SIGKILL, errors
    assert start_training(prepared, *settings).wait(timeout=PATIENCE) == 0
    assert_same_end(prepared / "whole", prepared / "run")
