"""Dynamic loss scaling, which float16 needs."""

import torch
from torch import Tensor

from dragoman.config import Precision

FIRST_SCALE = 2.0**15
STEPS_TO_GROW = 1_000
LARGEST_SCALE = 2.0**24


class LossScale:
    """Keeps small float16 gradients from vanishing; 1 and fixed for other precisions.

    Lives on the device: halved by a step whose gradient is not finite, doubled after many good
    ones, without the host ever waiting to know.
    """

    def __init__(self, precision: Precision, device: torch.device) -> None:
        self.is_dynamic = precision == "float16"
        self.value = torch.full((), FIRST_SCALE if self.is_dynamic else 1.0, device=device)
        self.good_steps = torch.zeros((), device=device)

    def update(self, is_bad: Tensor) -> None:
        """Adapt to a step whose gradient was not finite (1.0) or was (0.0)."""
        if not self.is_dynamic:
            return
        good_steps = (self.good_steps + 1) * (1 - is_bad)
        grows = good_steps >= STEPS_TO_GROW
        scale = torch.where(
            is_bad > 0, self.value / 2, torch.where(grows, self.value * 2, self.value)
        )
        self.value.copy_(scale.clamp(1.0, LARGEST_SCALE))
        self.good_steps.copy_(torch.where(grows, 0.0, good_steps))
