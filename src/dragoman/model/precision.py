"""The arithmetic of a model: float32, or 16 bits."""

import subprocess
import sys
from contextlib import AbstractContextManager, nullcontext

import torch

from dragoman.config import Precision
from dragoman.errors import UserError


def arithmetic(precision: Precision, device: torch.device) -> AbstractContextManager[object]:
    """Context in which matrix products use the given precision."""
    if precision == "float32":
        return nullcontext()
    return torch.autocast(device.type, getattr(torch, precision))


def refuse_impossible(precision: Precision, device: torch.device) -> None:
    """Refuse a precision in which products end the process, as bfloat16's do on some processors."""
    if precision == "float32" or device.type != "cpu":
        return
    product = f"import torch; one = torch.ones(64, 64, dtype=torch.{precision}); one @ one"
    if subprocess.run([sys.executable, "-c", product], capture_output=True).returncode:
        raise UserError(
            f"this CPU cannot compute in {precision}: use float32, or see docs/troubleshooting.md"
        )


def choose_precision(
    asked: Precision | None, trained: Precision, device: torch.device
) -> Precision:
    """What was asked for; else as the run was trained on a GPU, and float32 on a CPU."""
    return asked or (trained if device.type == "cuda" else "float32")
