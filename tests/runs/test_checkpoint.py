"""Checkpoints and their index: what is kept, found again, and void."""

import errno
import json
import os
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
import torch

from dragoman.config import CheckpointSettings
from dragoman.documents import encode
from dragoman.records import NO_SCORES, CheckpointSaved, Scores
from dragoman.runs.checkpoint import (
    Checkpoint,
    delete_checkpoints,
    find_intact,
    mend_index,
    prune,
    read_index,
    write_checkpoint,
)
from dragoman.runs.checkpoint_index import INDEX, WEIGHTS
from dragoman.runs.checkpoint_writer import CheckpointWriter
from dragoman.runs.folder import RunFolder


def save(folder: Path, step: int, loss: float | None = None) -> None:
    tensors = {"weight": torch.full((4,), float(step))}
    scores = Scores(loss, loss, None)
    written = write_checkpoint(folder, Checkpoint(step, tensors, tensors, {}, {}, scores))
    delete_checkpoints(folder, written.void)


def listed(folder: Path) -> list[int]:
    return [entry.step for entry in read_index(folder).checkpoints]


def cut_short(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-7])


@contextmanager
def failing_to_put_in_place(
    monkeypatch: pytest.MonkeyPatch, step: int, error: BaseException
) -> Iterator[None]:
    """Let the block fail when a step's checkpoint is written and about to get its name."""
    rename = Path.rename

    def fail(path: Path, target: Path) -> Path:
        if path.name == f".step-{step:08d}":
            raise error
        return rename(path, target)

    with monkeypatch.context() as patch:
        patch.setattr(Path, "rename", fail)
        with pytest.raises(type(error)) as caught:
            yield
        assert caught.value is error


def misshape(path: Path) -> None:
    path.write_text(path.read_text().replace('"step"', '"steps"'))


@pytest.mark.parametrize("damage", [Path.unlink, cut_short, misshape])
def test_a_lost_index_is_made_again_from_the_folders(
    tmp_path: Path, damage: Callable[[Path], None], capsys: pytest.CaptureFixture[str]
) -> None:
    for step, loss in ((100, 2.0), (200, 1.0), (300, 3.0)):
        save(tmp_path, step, loss)
    before = read_index(tmp_path)
    damage(tmp_path / INDEX)
    assert read_index(tmp_path) == before
    assert f"{tmp_path / INDEX} is missing or damaged" in capsys.readouterr().err
    warnings: list[str] = []
    mend_index(tmp_path, warnings.append)
    (warning,) = warnings
    assert "did not list step-00000100, step-00000200, step-00000300" in warning
    assert json.loads((tmp_path / INDEX).read_text()) == encode(before)
    prune(tmp_path, CheckpointSettings(keep_latest=1))
    assert listed(tmp_path) == [200, 300]


def test_a_checkpoint_that_a_kill_left_out_of_the_index_is_found(tmp_path: Path) -> None:
    save(tmp_path, 100)
    index = (tmp_path / INDEX).read_bytes()
    save(tmp_path, 200)
    (tmp_path / INDEX).write_bytes(index)
    mend_index(tmp_path, lambda _: None)
    entry = find_intact(tmp_path, lambda _: None)
    assert entry is not None
    assert entry.step == 200


def test_what_a_kill_left_of_writing_the_index_is_deleted(tmp_path: Path) -> None:
    save(tmp_path, 100)
    own, other = (f".{INDEX}.{host}.4711" for host in (os.uname().nodename, "another-machine"))
    (tmp_path / own).touch()
    (tmp_path / other).touch()  # It may be writing.
    mend_index(tmp_path, lambda _: None)
    assert not (tmp_path / own).exists()
    assert (tmp_path / other).exists()


def test_folders_that_the_index_does_not_know_are_left_alone(tmp_path: Path) -> None:
    save(tmp_path, 100)
    shutil.copytree(tmp_path / "step-00000100", tmp_path / "step-00000100-mine")
    (tmp_path / ".step-00000150").mkdir()
    (tmp_path / ".mine").mkdir()
    (tmp_path / ".step-mine").mkdir()
    save(tmp_path, 200)
    mend_index(tmp_path, lambda _: None)
    prune(tmp_path, CheckpointSettings(keep_latest=1))
    folders = {path.name for path in tmp_path.iterdir() if path.is_dir()}
    assert folders == {"step-00000100-mine", "step-00000200", ".mine", ".step-mine"}


@pytest.mark.parametrize("name", ["", ".", "..", "../precious", "/precious", "step-00000100-mine"])
def test_an_index_that_names_other_folders_deletes_nothing(tmp_path: Path, name: str) -> None:
    folder, precious = tmp_path / "checkpoints", tmp_path / "precious"
    for path in (folder, precious, folder / "step-00000100-mine"):
        path.mkdir()
        (path / "kept").touch()
    for step in (100, 200, 300):
        save(folder, step)
    index = json.loads((folder / INDEX).read_text())
    for entry in index["checkpoints"][:2]:
        entry["name"] = name.replace("/precious", str(precious)) if name[:1] == "/" else name
    (folder / INDEX).write_text(json.dumps(index))
    save(folder, 150)
    prune(folder, CheckpointSettings(keep_latest=1))
    assert listed(folder) == [150]
    for path in (folder, precious, folder / "step-00000100-mine"):
        assert (path / "kept").exists()


def test_a_deletion_that_fails_is_not_a_save_that_failed(tmp_path: Path) -> None:
    run = RunFolder(tmp_path)
    writer = CheckpointWriter(run, CheckpointSettings(keep_latest=1, keep_best=False))
    tensors = {"weight": torch.zeros(4)}
    for step in (100, 200):
        writer.save(Checkpoint(step, tensors, tensors, {}, {}, NO_SCORES))
        if step == 100:
            writer.finish()
            elsewhere = (run.checkpoints / "step-00000100").rename(tmp_path / "elsewhere")
            # Nobody can delete a folder through a link.
            (run.checkpoints / "step-00000100").symlink_to(elsewhere)
    saved = writer.finish()
    assert saved is not None
    assert isinstance(saved.event, CheckpointSaved)
    assert saved.left_over
    assert listed(run.checkpoints) == [200]
    assert (elsewhere / WEIGHTS).exists()


def test_a_checkpoint_makes_later_ones_void(tmp_path: Path) -> None:
    save(tmp_path, 200, 2.0)
    save(tmp_path, 300, 1.0)
    cut_short(tmp_path / "step-00000300" / WEIGHTS)
    save(tmp_path, 250, 1.5)
    prune(tmp_path, CheckpointSettings(keep_latest=1))
    assert listed(tmp_path) == [250]
    assert read_index(tmp_path).best_loss == "step-00000250"
    assert not (tmp_path / "step-00000300").exists()


def test_a_kill_while_a_step_is_saved_again_leaves_the_old_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    save(tmp_path, 100)
    with failing_to_put_in_place(monkeypatch, 100, KeyboardInterrupt()):
        save(tmp_path, 100, 2.0)
    assert not (tmp_path / "step-00000100").exists()
    mend_index(tmp_path, lambda _: None)
    entry = find_intact(tmp_path, pytest.fail)
    assert entry is not None
    assert entry.loss is None
    prune(tmp_path, CheckpointSettings())
    assert [path.name for path in tmp_path.iterdir() if path.is_dir()] == ["step-00000100"]


def test_a_step_is_saved_again_after_a_kill_that_left_two_of_it(tmp_path: Path) -> None:
    save(tmp_path, 8)
    shutil.copytree(tmp_path / "step-00000008", tmp_path / ".step-00000008.before")
    save(tmp_path, 8, loss=1.0)
    assert read_index(tmp_path).best_loss == "step-00000008"


def test_a_disk_fault_while_a_step_is_saved_again_leaves_the_old_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    save(tmp_path, 100)
    full = OSError(errno.ENOSPC, "No space left on device")
    with failing_to_put_in_place(monkeypatch, 100, full):
        save(tmp_path, 100, 2.0)
    save(tmp_path, 200)
    prune(tmp_path, CheckpointSettings())
    mend_index(tmp_path, lambda _: None)
    assert listed(tmp_path) == [100, 200]


def test_a_loss_that_is_not_finite_is_no_score(tmp_path: Path) -> None:
    save(tmp_path, 100, float("nan"))
    save(tmp_path, 200, 2.0)
    assert read_index(tmp_path).best_loss == "step-00000200"
    assert "NaN" not in (tmp_path / INDEX).read_text()
