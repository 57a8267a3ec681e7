"""Tensors are read as the model has them, or refused by name, shape and type."""

import os
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file
from torch import Tensor

from dragoman.errors import UserError
from dragoman.records import Scores
from dragoman.runs.checkpoint import Checkpoint, write_checkpoint
from dragoman.runs.tensors import read_tensors

WANTED = {"layer.weight": torch.zeros(3, 4), "layer.bias": torch.zeros(3)}


def read(tensors: dict[str, Tensor], folder: Path) -> dict[str, Tensor]:
    save_file(tensors, folder / "weights.safetensors")
    return read_tensors(folder / "weights.safetensors", WANTED)


def test_what_fits_is_read(tmp_path: Path) -> None:
    ones = {name: torch.ones_like(tensor) for name, tensor in WANTED.items()}
    assert all(torch.equal(value, ones[name]) for name, value in read(ones, tmp_path).items())


@pytest.mark.parametrize(
    ("change", "problem"),
    [
        ({"layer.bias": torch.zeros(1)}, r"layer\.bias is float32 \[1\], but float32 \[3\] in the"),
        ({"layer.bias": torch.zeros(4)}, r"layer\.bias is float32 \[4\], but float32 \[3\] in the"),
        ({"layer.bias": torch.zeros(3).half()}, r"layer\.bias is float16 \[3\], but float32 \[3\]"),
        ({"layer.bias": torch.zeros(3, dtype=torch.int64)}, r"layer\.bias is int64 \[3\], but"),
        ({"other": torch.zeros(3)}, "has the tensor other, unlike the model in this run's config"),
    ],
)
def test_what_does_not_fit_is_named(
    tmp_path: Path, change: dict[str, Tensor], problem: str
) -> None:
    with pytest.raises(UserError, match=problem):
        read({**WANTED, **change}, tmp_path)


def test_what_is_missing_or_no_tensors_is_named(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"lacks the tensor layer\.weight"):
        read({"layer.bias": torch.zeros(3)}, tmp_path)
    (tmp_path / "junk").write_bytes(b"junk")
    with pytest.raises(UserError, match="junk cannot be read"):
        read_tensors(tmp_path / "junk", WANTED)


@pytest.mark.parametrize("mask", [0o022, 0o077, 0o007])
def test_files_of_a_checkpoint_obey_the_umask(tmp_path: Path, mask: int) -> None:
    before = os.umask(mask)
    try:
        write_checkpoint(tmp_path, Checkpoint(1, WANTED, WANTED, {}, {}, Scores(None, None, None)))
    finally:
        os.umask(before)
    modes = {path.stat().st_mode & 0o777 for path in (tmp_path / "step-00000001").iterdir()}
    assert modes == {0o666 & ~mask}
