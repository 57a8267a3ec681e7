"""Matrix products that add the gradient of their weight in float32."""

from typing import Any

import torch
from torch import Tensor

from dragoman.model.fused.flat_weights import Weight


def linear(inputs: Tensor, weight: Weight) -> Tensor:
    """Multiply inputs [tokens, in] by the transposed weight [out, in]."""
    outputs: Tensor = _Linear.apply(inputs, weight)
    return outputs


class _Linear(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, inputs: Tensor, weight: Weight) -> Tensor:
        ctx.save_for_backward(inputs)
        ctx.weight = weight
        return inputs @ weight.copy.t()

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        (inputs,) = ctx.saved_tensors
        add_product(ctx.weight.gradient, gradients[0], inputs)
        return gradients[0] @ ctx.weight.copy, None


def add_product(total: Tensor, left: Tensor, right: Tensor) -> None:
    """Add left^T right to a total that may be of a wider type than they are."""
    if total.dtype == right.dtype:
        torch.addmm(total, left.t(), right, out=total)
    else:
        torch.addmm(total, left.t(), right, out_dtype=total.dtype, out=total)
