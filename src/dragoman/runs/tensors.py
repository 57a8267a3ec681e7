"""The tensors of a checkpoint, as the model and the optimizer of its run have them."""

import os
import re
from collections.abc import Mapping
from pathlib import Path

from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor

from dragoman.errors import UserError


def write_tensors(
    tensors: Mapping[str, Tensor], path: Path, note: dict[str, str] | None = None
) -> None:
    """Write tensors; what the system refuses is told as it tells it."""
    try:
        save_file(dict(tensors), path, note)
    except SafetensorError as error:
        number = re.search(r"\(os error (\d+)\)", str(error))
        if not number:
            raise OSError(str(error)) from None
        raise OSError(int(number[1]), os.strerror(int(number[1])), str(path)) from None


def read_tensors(path: Path, wanted: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Read tensors of the same names, types and shapes as those they are for."""
    try:
        found = load_file(path)
    except (SafetensorError, FileNotFoundError) as error:
        raise UserError(f"{path} cannot be read: {error}") from None
    for name in sorted(found.keys() ^ wanted.keys()):
        verb = "lacks" if name in wanted else "has"
        raise UserError(f"{path} {verb} the tensor {name}, unlike the model in this run's config")
    for name, tensor in wanted.items():
        there, here = _kind(found[name]), _kind(tensor)
        if there != here:  # torch would stretch or round some of them without a word.
            raise UserError(
                f"{path}: {name} is {there}, but {here} in the model of this run's config"
            )
    return found


def _kind(tensor: Tensor) -> str:
    return f"{str(tensor.dtype).removeprefix('torch.')} {list(tensor.shape)}"
