"""Embeddings with positions, and their gradient."""

import torch
import triton
import triton.language as tl
from torch import Tensor

from dragoman.model.fused.flat_weights import Weight

ROWS, WARPS = 4, 4


def embed(tokens: Tensor, positions: Tensor, weight: Weight, sinusoids: Tensor) -> Tensor:
    """Scaled embeddings plus the sinusoids of the positions, [tokens, width]."""
    count, width = tokens.numel(), weight.copy.shape[1]
    outputs = torch.empty(count, width, device=tokens.device, dtype=weight.copy.dtype)
    _embed[(triton.cdiv(count, ROWS),)](
        tokens,
        positions,
        weight.copy,
        sinusoids,
        outputs,
        count,
        width,
        width**0.5,
        ROWS=ROWS,
        COLUMNS=triton.next_power_of_2(width),
        num_warps=WARPS,
    )
    return outputs


def add_embedding_gradient(
    tokens: Tensor, segments: Tensor, weight: Weight, gradient: Tensor
) -> None:
    """Add the gradient [tokens, width] of embedded tokens to their words; padding has none."""
    count, width = gradient.shape
    _add_gradient[(triton.cdiv(count, ROWS),)](
        tokens,
        segments,
        gradient,
        weight.gradient,
        count,
        width,
        width**0.5,
        ROWS=ROWS,
        COLUMNS=triton.next_power_of_2(width),
        num_warps=WARPS,
    )


@triton.jit
def _embed(
    token_ptr,
    position_ptr,
    weight_ptr,
    sinusoid_ptr,
    output_ptr,
    count,
    width,
    scale,
    ROWS: tl.constexpr,
    COLUMNS: tl.constexpr,
):
    place = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    column = tl.arange(0, COLUMNS)
    inside = (place < count)[:, None] & (column < width)[None, :]
    token = tl.load(token_ptr + place, mask=place < count, other=0).to(tl.int64)
    position = tl.load(position_ptr + place, mask=place < count, other=0)
    embedding = tl.load(weight_ptr + token[:, None] * width + column[None, :], mask=inside)
    sinusoid = tl.load(sinusoid_ptr + position[:, None] * width + column[None, :], mask=inside)
    output = embedding.to(tl.float32) * scale + sinusoid
    offsets = place[:, None].to(tl.int64) * width + column[None, :]
    tl.store(output_ptr + offsets, output.to(output_ptr.dtype.element_ty), mask=inside)


@triton.jit
def _add_gradient(
    token_ptr,
    segment_ptr,
    gradient_ptr,
    weight_gradient_ptr,
    count,
    width,
    scale,
    ROWS: tl.constexpr,
    COLUMNS: tl.constexpr,
):
    place = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    column = tl.arange(0, COLUMNS)
    is_real = tl.load(segment_ptr + place, mask=place < count, other=0) > 0
    inside = is_real[:, None] & (column < width)[None, :]
    token = tl.load(token_ptr + place, mask=is_real, other=0).to(tl.int64)
    offsets = place[:, None].to(tl.int64) * width + column[None, :]
    gradient = tl.load(gradient_ptr + offsets, mask=inside, other=0.0).to(tl.float32)
    target = weight_gradient_ptr + token[:, None] * width + column[None, :]
    # In any order: the last bits of these sums differ from run to run.
    tl.atomic_add(target, gradient * scale, mask=inside, sem="relaxed")
