"""Label-smoothed cross entropy that never holds all the logits."""

from typing import Any, NamedTuple

import torch
from torch import Tensor

LOGITS_AT_ONCE = 1 << 24


class LossSums(NamedTuple):
    """Sums over all real target tokens; divide by their count for the mean."""

    loss: Tensor  # Label-smoothed cross entropy; carries the gradient.
    nll: Tensor  # Negative log-likelihood, comparable with anyone's; no gradient.


def cross_entropy(
    hidden: Tensor, weight: Tensor, labels: Tensor, is_real: Tensor, label_smoothing: float
) -> LossSums:
    """Project hidden [N, D] on the words weight [V, D] and compare with labels [N].

    The logits exist for a few tokens at a time; their gradient is taken at once, while they are
    there, so that nothing of size N x V is ever stored.
    """
    arguments = hidden, weight, labels, is_real, label_smoothing
    return LossSums(*_ChunkedCrossEntropy.apply(*arguments))  # type: ignore[no-untyped-call]


class _ChunkedCrossEntropy(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        hidden: Tensor,
        weight: Tensor,
        labels: Tensor,
        is_real: Tensor,
        label_smoothing: float,
    ) -> tuple[Tensor, Tensor]:
        words = weight.to(hidden.dtype)
        with_gradient = ctx.needs_input_grad[0]
        hidden_gradient = torch.empty_like(hidden) if with_gradient else None
        weight_gradient = torch.zeros_like(weight) if with_gradient else None
        loss = hidden.new_zeros((), dtype=torch.float32)
        nll = hidden.new_zeros((), dtype=torch.float32)
        step = max(1, LOGITS_AT_ONCE // len(weight))
        for start in range(0, len(hidden), step):
            part = slice(start, start + step)
            real = is_real[part].float()
            log_probabilities = (hidden[part] @ words.T).float().log_softmax(dim=-1)
            at_label = log_probabilities.gather(1, labels[part, None]).squeeze(1)
            part_nll = -(at_label * real).sum()
            spread = -(log_probabilities.mean(dim=-1) * real).sum()
            nll += part_nll
            loss += (1 - label_smoothing) * part_nll + label_smoothing * spread
            if hidden_gradient is None or weight_gradient is None:
                continue
            gradient = log_probabilities.exp_().sub_(label_smoothing / len(weight))
            gradient.scatter_add_(
                1, labels[part, None], gradient.new_full((len(gradient), 1), label_smoothing - 1)
            )
            gradient = gradient.mul_(real[:, None]).to(hidden.dtype)
            torch.mm(gradient, words, out=hidden_gradient[part])
            weight_gradient += gradient.T @ hidden[part]
        ctx.save_for_backward(hidden_gradient, weight_gradient)
        ctx.mark_non_differentiable(nll)
        return loss, nll

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        scale = gradients[0]
        hidden_gradient, weight_gradient = ctx.saved_tensors
        return (
            hidden_gradient * scale.to(hidden_gradient.dtype),
            weight_gradient * scale,
            None,
            None,
            None,
        )
