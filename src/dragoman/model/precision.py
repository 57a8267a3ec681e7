"""The arithmetic of a model: float32, or 16 bits."""

from contextlib import AbstractContextManager, nullcontext

import torch

from dragoman.config import Precision


def arithmetic(precision: Precision, device: torch.device) -> AbstractContextManager[object]:
    """Context in which matrix products use the given precision."""
    if precision == "float32":
        return nullcontext()
    return torch.autocast(device.type, getattr(torch, precision))


def choose_precision(
    asked: Precision | None, trained: Precision, device: torch.device
) -> Precision:
    """What was asked for; else as the run was trained on a GPU, and float32 on a CPU."""
    return asked or (trained if device.type == "cuda" else "float32")
