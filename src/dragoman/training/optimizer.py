"""Adam, or Muon beside it, that skips steps without a finite gradient, and knows its norm."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import assert_never

import torch
from torch import Tensor, nn
from torch.optim.adamw import adamw

from dragoman.config import OptimizerSettings
from dragoman.model.muon import (
    arithmetic_type,
    map_shape,
    matrices_of,
    orthogonalize,
    update_size,
)
from dragoman.training.loss_scale import LossScale


@dataclass(frozen=True)
class Update:
    """What one update did, on the device."""

    gradient_norm: Tensor  # Global, before clipping.
    skipped: Tensor  # 1.0 if the gradient was not finite and the weights were left alone.


class Optimizer:
    """Updates all parameters of a model."""

    def __init__(
        self, model: nn.Module, settings: OptimizerSettings, loss_scale: LossScale
    ) -> None:
        self._parameters = dict(model.named_parameters())
        self._settings = settings
        self._loss_scale = loss_scale
        of_adam, of_muon = dict(self._parameters), dict[str, nn.Parameter]()
        match settings.kind:
            case "adam":
                pass
            case "muon":
                shapes = {name: one.shape for name, one in self._parameters.items()}
                of_muon = {name: of_adam.pop(name) for name in matrices_of(shapes)}
            case _:
                assert_never(settings.kind)
        self._adam, self._muon = _Adam(of_adam, settings), _Muon(of_muon, settings)

    @property
    def loss_scale(self) -> Tensor:
        """Factor to put on the loss before its backward pass."""
        return self._loss_scale.value

    @torch.no_grad()
    def step(self, learning_rate: float) -> Update:
        """Update the weights from their gradients, then clear the gradients."""
        gradients = [one.grad for one in self._parameters.values() if one.grad is not None]
        assert len(gradients) == len(self._parameters), "a weight had no part in the loss"
        scale = self._loss_scale.value
        norm = torch.nn.utils.get_total_norm(gradients) / scale
        skipped = (~norm.isfinite()).float()
        clip_norm = self._settings.clip_norm
        clipping = (norm / clip_norm).clamp(min=1.0) if clip_norm else 1.0
        self._adam.step(learning_rate, scale * clipping, skipped)
        self._muon.step(learning_rate, scale * clipping, skipped)
        for parameter in self._parameters.values():
            parameter.grad = None
        self._loss_scale.update(skipped)
        return Update(norm, skipped)

    def tensors(self) -> dict[str, Tensor]:
        """The moments of every parameter, by name; zeros before the first step."""
        return {**self._adam.tensors(), **self._muon.tensors()}

    def state(self) -> dict[str, float]:
        """The few numbers beside the moments: updates made, and the loss scale."""
        return {
            "updates": self._adam.updates,
            "loss_scale": float(self._loss_scale.value),
            "good_steps": float(self._loss_scale.good_steps),
        }

    def load(self, tensors: Mapping[str, Tensor], state: Mapping[str, float]) -> None:
        """Go on from saved moments."""
        for name, moment in self.tensors().items():
            moment.copy_(tensors[name])
        self._adam.updates = state["updates"]
        self._loss_scale.value.fill_(state["loss_scale"])
        self._loss_scale.good_steps.fill_(state["good_steps"])


class _Adam:
    """Fused Adam, from its function, as torch's class imports the compiler: a second of a start."""

    def __init__(self, parameters: dict[str, nn.Parameter], settings: OptimizerSettings) -> None:
        self._parameters, self._settings = parameters, settings
        self._means = [torch.zeros_like(value) for value in parameters.values()]
        self._squares = [torch.zeros_like(value) for value in parameters.values()]
        # One each, beside the parameter: that is how fused Adam counts.
        self._updates = [torch.zeros((), device=value.device) for value in parameters.values()]

    def step(self, learning_rate: float, gradient_divisor: Tensor, skipped: Tensor) -> None:
        parameters: list[Tensor] = [*self._parameters.values()]
        adamw(
            parameters,
            [value.grad for value in parameters if value.grad is not None],
            self._means,
            self._squares,
            [],
            self._updates,
            fused=True,
            # Fused Adam divides by grad_scale and leaves everything alone if found_inf is set,
            # on the device: nobody waits to learn whether the gradient was finite.
            grad_scale=gradient_divisor,
            found_inf=skipped,
            amsgrad=False,
            beta1=self._settings.beta1,
            beta2=self._settings.beta2,
            lr=learning_rate,
            weight_decay=self._settings.weight_decay,
            eps=self._settings.epsilon,
            maximize=False,
        )

    def tensors(self) -> dict[str, Tensor]:
        moments: dict[str, Tensor] = {}
        for name, mean, square in zip(self._parameters, self._means, self._squares, strict=True):
            moments |= {f"{name}.exp_avg": mean, f"{name}.exp_avg_sq": square}
        return moments

    @property
    def updates(self) -> float:
        return float(self._updates[0])

    @updates.setter
    def updates(self, value: float) -> None:
        for updates in self._updates:
            updates.fill_(value)


class _Muon:
    """Muon over matrices, those of like shape together."""

    def __init__(self, parameters: dict[str, nn.Parameter], settings: OptimizerSettings) -> None:
        self._parameters, self._settings = parameters, settings
        self._momenta = {name: torch.zeros_like(one) for name, one in parameters.items()}
        self._alike: dict[torch.Size, list[str]] = {}
        for name, parameter in parameters.items():
            self._alike.setdefault(map_shape(name, parameter.shape), []).append(name)

    def step(self, learning_rate: float, gradient_divisor: Tensor, skipped: Tensor) -> None:
        ahead = {name: self._follow(name, gradient_divisor, skipped) for name in self._parameters}
        stacks = [
            torch.cat([ahead[name].view(-1, *shape) for name in names])
            for shape, names in self._alike.items()
        ]
        decay = 1 - learning_rate * self._settings.weight_decay
        for (shape, names), stack in zip(self._alike.items(), orthogonalize(stacks), strict=True):
            rate = learning_rate * self._settings.matrix_rate * update_size(*shape)
            sizes = [self._parameters[name].numel() // shape.numel() for name in names]
            for name, update in zip(names, torch.split(stack, sizes), strict=True):
                value = self._parameters[name]
                updated = value * decay - rate * update.reshape_as(value)
                value.copy_(torch.where(skipped > 0, value, updated))

    def tensors(self) -> dict[str, Tensor]:
        return {f"{name}.momentum": momentum for name, momentum in self._momenta.items()}

    def _follow(self, name: str, gradient_divisor: Tensor, skipped: Tensor) -> Tensor:
        """Let a momentum follow its gradient, and tell where it would go from there."""
        momentum, decay = self._momenta[name], self._settings.momentum
        gradient = self._parameters[name].grad
        assert gradient is not None
        new = (1 - decay) * (gradient / gradient_divisor)
        followed = decay * momentum + new
        momentum.copy_(torch.where(skipped > 0, momentum, followed))
        return (decay * followed + new).to(arithmetic_type(momentum.device))
