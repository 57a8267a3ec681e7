"""Adam that skips steps without a finite gradient, and knows its norm."""

from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.optim.adamw import adamw

from dragoman.config import OptimizerSettings
from dragoman.training.loss_scale import LossScale


@dataclass(frozen=True)
class Update:
    """What one update did, on the device."""

    gradient_norm: Tensor  # Global, before clipping.
    skipped: Tensor  # 1.0 if the gradient was not finite and the weights were left alone.


class Optimizer:
    """Fused Adam over all parameters of a model.

    From its function, as torch's class imports the compiler: a second of every start.
    """

    def __init__(
        self, model: nn.Module, settings: OptimizerSettings, loss_scale: LossScale
    ) -> None:
        self._named = dict(model.named_parameters())
        self._settings = settings
        self._loss_scale = loss_scale
        self._means = [torch.zeros_like(value) for value in self._named.values()]
        self._squares = [torch.zeros_like(value) for value in self._named.values()]
        # One each, beside the parameter: that is how fused Adam counts.
        self._updates = [torch.zeros((), device=value.device) for value in self._named.values()]

    @property
    def loss_scale(self) -> Tensor:
        """Factor to put on the loss before its backward pass."""
        return self._loss_scale.value

    @torch.no_grad()
    def step(self, learning_rate: float) -> Update:
        """Update the weights from their gradients, then clear the gradients."""
        parameters: list[Tensor] = [*self._named.values()]
        gradients = [value.grad for value in parameters if value.grad is not None]
        assert len(gradients) == len(parameters), "a weight had no part in the loss"
        scale = self._loss_scale.value
        norm = torch.nn.utils.get_total_norm(gradients) / scale
        skipped = (~norm.isfinite()).float()
        clip_norm = self._settings.clip_norm
        clipping = (norm / clip_norm).clamp(min=1.0) if clip_norm else 1.0
        adamw(
            parameters,
            gradients,
            self._means,
            self._squares,
            [],
            self._updates,
            fused=True,
            # Fused Adam divides by grad_scale and leaves everything alone if found_inf is set,
            # on the device: nobody waits to learn whether the gradient was finite.
            grad_scale=scale * clipping,
            found_inf=skipped,
            amsgrad=False,
            beta1=self._settings.beta1,
            beta2=self._settings.beta2,
            lr=learning_rate,
            weight_decay=self._settings.weight_decay,
            eps=self._settings.epsilon,
            maximize=False,
        )
        for value in parameters:
            value.grad = None
        self._loss_scale.update(skipped)
        return Update(norm, skipped)

    def tensors(self) -> dict[str, Tensor]:
        """Both moments of every parameter, by name; zeros before the first step."""
        moments: dict[str, Tensor] = {}
        for name, mean, square in zip(self._named, self._means, self._squares, strict=True):
            moments |= {f"{name}.exp_avg": mean, f"{name}.exp_avg_sq": square}
        return moments

    def state(self) -> dict[str, float]:
        """The few numbers beside the moments: updates made, and the loss scale."""
        return {
            "updates": float(self._updates[0]),
            "loss_scale": float(self._loss_scale.value),
            "good_steps": float(self._loss_scale.good_steps),
        }

    def load(self, tensors: Mapping[str, Tensor], state: Mapping[str, float]) -> None:
        """Go on from saved moments."""
        for name, moment in self.tensors().items():
            moment.copy_(tensors[name])
        for updates in self._updates:
            updates.fill_(state["updates"])
        self._loss_scale.value.fill_(state["loss_scale"])
        self._loss_scale.good_steps.fill_(state["good_steps"])
