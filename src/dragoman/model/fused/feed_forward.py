"""The feed-forward layer: products by cuBLAS, bias, ReLU and dropout in one kernel between."""

from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from dragoman.model.fused.column_sums import add_column_sums, processor_count
from dragoman.model.fused.dropout import Dropout, is_kept, site_keys
from dragoman.model.fused.flat_weights import Weight
from dragoman.model.fused.product import add_product

ROWS, COLUMNS, WARPS = 4, 512, 4


def feed_forward(
    inputs: Tensor, inner: Weight, inner_bias: Weight, outer: Weight, dropout: Dropout
) -> Tensor:
    """Transform inputs [tokens, width]; the outer bias is left to the `add_norm` that follows."""
    outputs: Tensor = _FeedForward.apply(inputs, inner, inner_bias, outer, dropout)
    return outputs


class _FeedForward(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        inputs: Tensor,
        inner: Weight,
        inner_bias: Weight,
        outer: Weight,
        dropout: Dropout,
    ) -> Tensor:
        hidden = inputs @ inner.copy.t()
        tokens, width = hidden.shape
        _forward[(triton.cdiv(tokens, ROWS), triton.cdiv(width, COLUMNS))](
            hidden,
            inner_bias.value,
            tokens=tokens,
            width=width,
            ROWS=ROWS,
            COLUMNS=COLUMNS,
            num_warps=WARPS,
            **dropout.arguments(),
        )
        ctx.save_for_backward(inputs, hidden)
        ctx.weights = inner, inner_bias, outer
        ctx.keep_scale = dropout.keep_scale
        return hidden @ outer.copy.t()

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        inputs, hidden = ctx.saved_tensors
        inner, inner_bias, outer = ctx.weights
        add_product(outer.gradient, gradients[0], hidden)
        gradient = gradients[0] @ outer.copy
        tokens, width = gradient.shape
        programs = min(triton.cdiv(tokens, ROWS), processor_count(hidden))
        partials = torch.empty(programs, 1, width, device=hidden.device)
        _backward[(programs, triton.cdiv(width, COLUMNS))](
            gradient,
            hidden,
            partials,
            tokens,
            width,
            KEEP_SCALE=ctx.keep_scale,
            ROWS=ROWS,
            COLUMNS=COLUMNS,
            num_warps=WARPS,
        )
        add_column_sums(partials, [inner_bias.gradient])
        add_product(inner.gradient, gradient, inputs)
        return (gradient @ inner.copy, *[None] * 4)


@triton.jit(do_not_specialize=["site"])
def _forward(
    values_ptr,
    bias_ptr,
    mask_key_ptr,
    site,
    tokens,
    width,
    DROP_THRESHOLD: tl.constexpr,
    KEEP_SCALE: tl.constexpr,
    ROWS: tl.constexpr,
    COLUMNS: tl.constexpr,
):
    """Replace values by dropout(relu(values + bias))."""
    token = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    column = tl.program_id(1) * COLUMNS + tl.arange(0, COLUMNS)
    inside_width = column < width
    inside = (token < tokens)[:, None] & inside_width[None, :]
    offsets = token[:, None].to(tl.int64) * width + column[None, :]
    values = tl.load(values_ptr + offsets, mask=inside, other=0.0).to(tl.float32)
    bias = tl.load(bias_ptr + column, mask=inside_width, other=0.0)
    values = tl.maximum(values + bias[None, :], 0.0)
    if DROP_THRESHOLD > 0:
        first, second = site_keys(mask_key_ptr, site)
        kept = is_kept(offsets, first, second, DROP_THRESHOLD)
        values = tl.where(kept, values * KEEP_SCALE, 0.0)
    tl.store(values_ptr + offsets, values.to(values_ptr.dtype.element_ty), mask=inside)


@triton.jit
def _backward(
    gradient_ptr,
    hidden_ptr,
    partial_ptr,
    tokens,
    width,
    KEEP_SCALE: tl.constexpr,
    ROWS: tl.constexpr,
    COLUMNS: tl.constexpr,
):
    """Pass the gradient on where the hidden value passed, in place, and sum it over tokens."""
    program = tl.program_id(0)
    column = tl.program_id(1) * COLUMNS + tl.arange(0, COLUMNS)
    inside_width = column < width
    total = tl.zeros([ROWS, COLUMNS], tl.float32)
    for start in range(program * ROWS, tokens, tl.num_programs(0) * ROWS):
        token = start + tl.arange(0, ROWS)
        inside = (token < tokens)[:, None] & inside_width[None, :]
        offsets = token[:, None].to(tl.int64) * width + column[None, :]
        hidden = tl.load(hidden_ptr + offsets, mask=inside, other=0.0).to(tl.float32)
        gradient = tl.load(gradient_ptr + offsets, mask=inside, other=0.0).to(tl.float32)
        # A hidden value of zero was cut by ReLU or by dropout: either way nothing flows back.
        gradient = tl.where(hidden > 0.0, gradient * KEEP_SCALE, 0.0)
        tl.store(gradient_ptr + offsets, gradient.to(gradient_ptr.dtype.element_ty), mask=inside)
        total += gradient
    tl.store(partial_ptr + program * width + column, tl.sum(total, axis=0), mask=inside_width)
