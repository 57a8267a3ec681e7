"""Self-attention and attention to the source, on packed rows.

Shapes: N = rows x slots tokens, D width, L decoder layers. Rows keep their slots together.
"""

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from dragoman.model.fused.attention_kernels import backward_kernel, forward_kernel
from dragoman.model.fused.dropout import Dropout

# The fastest of those timed on an H200 with heads of 64; they change no result.
KEYS = 128
FORWARD_QUERIES, FORWARD_WARPS, FORWARD_REGISTERS = 128, 8, 128
BACKWARD_QUERIES, BACKWARD_WARPS, BACKWARD_STAGES = 32, 4, 2


@dataclass(frozen=True)
class Kind:
    """What sets one attention of the model apart from the others."""

    heads: int
    is_causal: bool
    dropout: Dropout


@dataclass
class Memory:
    """Keys and values of the encoded source for all decoder layers, [N, 2 D L]."""

    keys_values: Tensor
    gradient: Tensor | None = None  # All layers leave theirs here.


def self_attention(queries_keys_values: Tensor, segments: Tensor, kind: Kind) -> Tensor:
    """Let each slot attend to its own segment; [N, 3 D] to [N, D]."""
    outputs: Tensor = _SelfAttention.apply(queries_keys_values, segments, kind)
    return outputs


def cross_attention(
    queries: Tensor,
    memory: Memory,
    layer: int,
    target_segments: Tensor,
    source_segments: Tensor,
    kind: Kind,
) -> Tensor:
    """Let target segments [N, D] attend to source segments of the same number."""
    outputs: Tensor = _CrossAttention.apply(
        queries, memory.keys_values, memory, layer, target_segments, source_segments, kind
    )
    return outputs


class _SelfAttention(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, queries_keys_values: Tensor, segments: Tensor, kind: Kind) -> Tensor:
        query, key, value = queries_keys_values.chunk(3, dim=1)
        output, log_sums = _attend(query, key, value, segments, segments, kind)
        ctx.save_for_backward(queries_keys_values, segments, output, log_sums)
        ctx.kind = kind
        return output

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        queries_keys_values, segments, output, log_sums = ctx.saved_tensors
        gradient = torch.empty_like(queries_keys_values)
        query, key, value = queries_keys_values.chunk(3, dim=1)
        query_gradient, key_gradient, value_gradient = gradient.chunk(3, dim=1)
        _attend_backward(
            (query, key, value),
            (output, log_sums, gradients[0]),
            (query_gradient, key_gradient, value_gradient),
            segments,
            segments,
            ctx.kind,
        )
        return gradient, None, None


class _CrossAttention(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        query: Tensor,
        keys_values: Tensor,
        memory: Memory,
        layer: int,
        target_segments: Tensor,
        source_segments: Tensor,
        kind: Kind,
    ) -> Tensor:
        key, value = _of_layer(keys_values, layer, query.shape[1])
        output, log_sums = _attend(query, key, value, target_segments, source_segments, kind)
        ctx.save_for_backward(
            query, keys_values, target_segments, source_segments, output, log_sums
        )
        ctx.memory, ctx.layer, ctx.kind = memory, layer, kind
        return output

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        query, keys_values, target_segments, source_segments, output, log_sums = ctx.saved_tensors
        memory, layer, width = ctx.memory, ctx.layer, query.shape[1]
        if memory.gradient is None:
            memory.gradient = torch.empty_like(keys_values)
        query_gradient = torch.empty_like(query)
        _attend_backward(
            (query, *_of_layer(keys_values, layer, width)),
            (output, log_sums, gradients[0]),
            (query_gradient, *_of_layer(memory.gradient, layer, width)),
            target_segments,
            source_segments,
            ctx.kind,
        )
        # The first layer comes last: only then are the gradients of all layers there.
        return (query_gradient, memory.gradient if layer == 0 else None, *[None] * 5)


def _of_layer(keys_values: Tensor, layer: int, width: int) -> tuple[Tensor, Tensor]:
    """Keys and values of one layer, or their gradients."""
    keys, values = keys_values[:, 2 * layer * width : 2 * (layer + 1) * width].chunk(2, dim=1)
    return keys, values


def _attend(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    query_segments: Tensor,
    key_segments: Tensor,
    kind: Kind,
) -> tuple[Tensor, Tensor]:
    rows, query_slots = query_segments.shape
    key_slots, width = key_segments.shape[1], query.shape[1]
    output = torch.empty(query.shape, device=query.device, dtype=query.dtype)
    log_sums = torch.empty(rows * kind.heads, query_slots, device=query.device)
    head_width = width // kind.heads
    query_block = _block(query_slots, FORWARD_QUERIES, head_width)
    forward_kernel[(rows * kind.heads, query_slots // query_block)](
        query,
        key,
        value,
        output,
        log_sums,
        query_segments,
        key_segments,
        query_stride=query.stride(0),
        key_stride=key.stride(0),
        scale=head_width**-0.5,
        HEADS=kind.heads,
        QUERY_SLOTS=query_slots,
        KEY_SLOTS=key_slots,
        HEAD_WIDTH=head_width,
        QUERY_BLOCK=query_block,
        KEY_BLOCK=_block(key_slots, KEYS, head_width),
        IS_CAUSAL=kind.is_causal,
        num_warps=FORWARD_WARPS,
        maxnreg=FORWARD_REGISTERS,
        num_stages=1,
        **kind.dropout.arguments(),
    )
    return output, log_sums


def _attend_backward(
    inputs: tuple[Tensor, Tensor, Tensor],
    outputs: tuple[Tensor, Tensor, Tensor],
    gradients: tuple[Tensor, Tensor, Tensor],
    query_segments: Tensor,
    key_segments: Tensor,
    kind: Kind,
) -> None:
    """From (query, key, value) and (output, log-sums, output's gradient) fill the gradients."""
    query, key, value = inputs
    output, log_sums, output_gradient = outputs
    rows, query_slots = query_segments.shape
    key_slots, width = key_segments.shape[1], query.shape[1]
    head_width = width // kind.heads
    query_block = _block(query_slots, BACKWARD_QUERIES, head_width)
    key_block = _block(key_slots, KEYS, head_width)
    has_all_keys = key_block == key_slots
    blocks = 1 if has_all_keys else max(query_slots // query_block, key_slots // key_block)
    backward_kernel[(rows * kind.heads, blocks)](
        query,
        key,
        value,
        output,
        log_sums,
        output_gradient.contiguous(),
        *gradients,
        query_segments,
        key_segments,
        query_stride=query.stride(0),
        key_stride=key.stride(0),
        scale=head_width**-0.5,
        HEADS=kind.heads,
        QUERY_SLOTS=query_slots,
        KEY_SLOTS=key_slots,
        HEAD_WIDTH=head_width,
        QUERY_BLOCK=query_block,
        KEY_BLOCK=key_block,
        IS_CAUSAL=kind.is_causal,
        STAGES=BACKWARD_STAGES,
        num_warps=BACKWARD_WARPS,
        num_stages=1,
        **kind.dropout.arguments(),
    )


def _block(slots: int, most: int, head_width: int) -> int:
    """The largest power of two that divides the row; less than `most` where heads are wide."""
    return min(max(16, most * 64 // max(head_width, 64)), slots & -slots)
