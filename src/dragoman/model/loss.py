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
    hidden: Tensor,
    weight: Tensor,
    labels: Tensor,
    is_real: Tensor,
    label_smoothing: float,
    r_drop: float = 0.0,
) -> LossSums:
    """Project hidden [N, D] on the words weight [V, D] and compare with labels [N].

    The logits exist for a few tokens at a time; their gradient is taken at once, while they are
    there, so that nothing of size N x V is ever stored. With R-Drop the second half of the tokens
    are those of the first once more.
    """
    if r_drop:
        tokens = len(labels) // 2
        of_two = hidden, weight, labels[:tokens], is_real[:tokens], label_smoothing, r_drop
        return LossSums(*_ChunkedAgreement.apply(*of_two))  # type: ignore[no-untyped-call]
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


class _ChunkedAgreement(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        hidden: Tensor,
        weight: Tensor,
        labels: Tensor,
        is_real: Tensor,
        label_smoothing: float,
        r_drop: float,
    ) -> tuple[Tensor, Tensor]:
        words = weight.to(hidden.dtype)
        hidden_gradient, weight_gradient = torch.empty_like(hidden), torch.zeros_like(weight)
        both, both_gradients = (one.view(2, len(labels), -1) for one in (hidden, hidden_gradient))
        sums = hidden.new_zeros(2, dtype=torch.float32)
        step = max(1, LOGITS_AT_ONCE // (2 * len(weight)))
        for start in range(0, len(labels), step):
            part = slice(start, start + step)
            some = both[:, part]
            part_sums, gradient = agreement_sums_and_gradient(
                some @ words.T, labels[part], is_real[part], label_smoothing, r_drop
            )
            sums += part_sums
            gradient = gradient.to(hidden.dtype)
            both_gradients[:, part] = gradient @ words
            weight_gradient += gradient.flatten(0, 1).T @ some.flatten(0, 1)
        ctx.save_for_backward(hidden_gradient, weight_gradient)
        loss, nll = sums
        ctx.mark_non_differentiable(nll)
        return loss, nll

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        return *_ChunkedCrossEntropy.backward(ctx, *gradients), None


def agreement_sums_and_gradient(
    logits: Tensor, labels: Tensor, is_real: Tensor, label_smoothing: float, r_drop: float
) -> tuple[Tensor, Tensor]:
    """Mean loss and nll of two passes, summed over real tokens [2], and R-Drop's gradient.

    Logits [2, N, V] are those of two passes over the same N tokens. The gradient, of the logits, is
    that of the mean loss plus r_drop / 4 times the Kullback-Leibler divergences of each pass from
    the other: half of what Liang and others (2021) minimise, so that its scale is the usual one.
    The loss told is without them, so that it compares with that of any other run.
    """
    words = logits.shape[-1]
    log_probabilities = logits.float().log_softmax(dim=-1)
    probabilities = log_probabilities.exp()
    difference = log_probabilities - log_probabilities.flip(0)
    divergence = (probabilities * difference).sum(dim=-1)
    places = labels.long().expand(2, -1)[..., None]
    nll = -log_probabilities.gather(2, places).squeeze(2)
    smoothed = (1 - label_smoothing) * nll - label_smoothing * log_probabilities.mean(dim=-1)
    sums = torch.stack((smoothed, nll)).mean(dim=1).masked_fill(~is_real, 0.0).sum(dim=1)

    gradient = (probabilities - label_smoothing / words) / 2
    gradient.scatter_add_(2, places, gradient.new_full(places.shape, (label_smoothing - 1) / 2))
    apart = probabilities * (difference - divergence[..., None])
    gradient += r_drop / 4 * (apart + probabilities - probabilities.flip(0))
    return sums, gradient.masked_fill_(~is_real[:, None], 0.0)
