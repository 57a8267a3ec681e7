"""The scores in the index of checkpoints, which decide what is the best and what is deleted."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch

from dragoman.config import CheckpointSettings
from dragoman.records import Scores
from dragoman.runs.checkpoint import (
    Checkpoint,
    find_intact,
    mend_index,
    prune,
    read_index,
    write_checkpoint,
)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Three checkpoints, of which the second is the best."""
    for step, bleu in ((4, 10.0), (8, 30.0), (12, 20.0)):
        weights = {"weight": torch.full((2,), float(step))}
        scores = Scores(loss=40.0 - bleu, nll=2.0, bleu=bleu)
        write_checkpoint(tmp_path, Checkpoint(step, weights, weights, {}, {}, scores))
    return tmp_path


def edit(folder: Path, place: int, key: str, value: Any) -> None:
    path = folder / "checkpoints.json"
    index = json.loads(path.read_text())
    index["checkpoints"][place][key] = value
    path.write_text(json.dumps(index))


@pytest.mark.parametrize(("place", "key", "value"), [(0, "bleu", 99.0), (1, "loss", None)])
def test_scores_that_a_checkpoint_contradicts_are_not_believed(
    folder: Path, capsys: pytest.CaptureFixture[str], place: int, key: str, value: Any
) -> None:
    before = read_index(folder)
    edit(folder, place, key, value)
    assert read_index(folder) == before
    assert "checkpoints.json is missing or damaged" in capsys.readouterr().err


def test_among_equal_bleu_the_loss_decides(tmp_path: Path) -> None:
    """Early in a run BLEU is zero at every evaluation."""
    for step, loss in ((4, 7.9), (8, 7.1), (12, 7.4), (16, None)):
        weights = {"weight": torch.full((2,), float(step))}
        scores = Scores(loss=loss, nll=None, bleu=0.0)
        write_checkpoint(tmp_path, Checkpoint(step, weights, weights, {}, {}, scores))
    assert read_index(tmp_path).best_bleu == "step-00000008"


def test_the_best_is_not_deleted_for_what_a_damaged_index_says(folder: Path) -> None:
    edit(folder, 0, "bleu", 99.0)
    edit(folder, 0, "loss", -1.0)
    mend_index(folder, print)
    prune(folder, CheckpointSettings(keep_latest=1))
    assert [entry.step for entry in read_index(folder).checkpoints] == [8, 12]


def test_a_checkpoint_whose_own_state_is_damaged_contradicts_nothing(folder: Path) -> None:
    before = read_index(folder)
    state = folder / "step-00000008" / "state.json"
    state.write_text(state.read_text().replace("30.0", "31.0"))
    assert read_index(folder) == before
    state.write_text("{}")
    found = find_intact(folder, print)
    assert found
    assert found.step == 12
    assert read_index(folder) == before
