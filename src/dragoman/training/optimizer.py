"""Adam that skips steps without a finite gradient, and knows its norm."""

from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from dragoman.config import OptimizerSettings
from dragoman.training.loss_scale import LossScale


@dataclass(frozen=True)
class Update:
    """What one update did, on the device."""

    gradient_norm: Tensor  # Global, before clipping.
    skipped: Tensor  # 1.0 if the gradient was not finite and the weights were left alone.


class Optimizer:
    """Fused Adam over all parameters of a model."""

    def __init__(
        self, model: nn.Module, settings: OptimizerSettings, loss_scale: LossScale
    ) -> None:
        self._named = dict(model.named_parameters())
        self._clip_norm = settings.clip_norm
        self._loss_scale = loss_scale
        self._adam = torch.optim.AdamW(
            self._named.values(),
            betas=(settings.beta1, settings.beta2),
            eps=settings.epsilon,
            weight_decay=settings.weight_decay,
            fused=True,
        )

    @property
    def loss_scale(self) -> Tensor:
        """Factor to put on the loss before its backward pass."""
        return self._loss_scale.value

    def step(self, learning_rate: float) -> Update:
        """Update the weights from their gradients, then clear the gradients."""
        gradients = [value.grad for value in self._named.values() if value.grad is not None]
        scale = self._loss_scale.value
        norm = torch.nn.utils.get_total_norm(gradients) / scale
        skipped = (~norm.isfinite()).float()
        clipping = (norm / self._clip_norm).clamp(min=1.0) if self._clip_norm else 1.0
        for group in self._adam.param_groups:
            group["lr"] = learning_rate
        # Fused Adam divides by grad_scale and leaves everything alone if found_inf is set, on
        # the device: nobody waits to learn whether the gradient was finite.
        self._adam.grad_scale = scale * clipping  # type: ignore[attr-defined]
        self._adam.found_inf = skipped  # type: ignore[attr-defined]
        self._adam.step()
        self._adam.zero_grad(set_to_none=True)
        self._loss_scale.update(skipped)
        return Update(norm, skipped)

    def tensors(self) -> dict[str, Tensor]:
        """Both moments of every parameter, by name; zeros before the first step."""
        moments = {}
        for name, parameter in self._named.items():
            state = self._adam.state.get(parameter, {})
            for moment in ("exp_avg", "exp_avg_sq"):
                moments[f"{name}.{moment}"] = state.get(moment, torch.zeros_like(parameter))
        return moments

    def state(self) -> dict[str, float]:
        """The few numbers beside the moments: updates made, and the loss scale."""
        first = next(iter(self._named.values()))
        steps = self._adam.state[first]["step"] if self._adam.state else 0.0
        return {
            "updates": float(steps),
            "loss_scale": float(self._loss_scale.value),
            "good_steps": float(self._loss_scale.good_steps),
        }

    def load(self, tensors: Mapping[str, Tensor], state: Mapping[str, float]) -> None:
        """Go on from saved moments."""
        for name, parameter in self._named.items():
            self._adam.state[parameter] = {
                # Fused Adam keeps its step count beside the parameter.
                "step": torch.full((), state["updates"], device=parameter.device),
                **{
                    moment: tensors[f"{name}.{moment}"].to(parameter.device, copy=True)
                    for moment in ("exp_avg", "exp_avg_sq")
                },
            }
        self._loss_scale.value.fill_(state["loss_scale"])
        self._loss_scale.good_steps.fill_(state["good_steps"])
