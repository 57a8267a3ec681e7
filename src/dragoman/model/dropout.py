"""Dropout, fast on CPUs too."""

import torch
import torch.nn.functional as F
from torch import Tensor


def dropout(x: Tensor, probability: float, training: bool) -> Tensor:
    """Set a random part of x to zero and scale the rest up, in training only."""
    if not training or probability == 0:
        return x
    if x.device.type != "cpu":
        return F.dropout(x, probability, training)
    # On a CPU one draw per element costs as much as a matrix product. One byte of a 64-bit draw
    # is enough: the probability is rounded to 1/256 and the scale follows the rounded one.
    dropped = max(1, round(256 * probability))
    words = torch.empty((x.numel() + 7) // 8, dtype=torch.int64).random_(-(2**63), None)
    kept = words.view(torch.uint8)[: x.numel()].view(x.shape) >= dropped
    return x * (kept * (256 / (256 - dropped)))
