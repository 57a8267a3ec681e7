"""Add a residual branch to the stream and apply the next layer norm, in one kernel."""

from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from dragoman.model.fused.column_sums import add_column_sums, processor_count
from dragoman.model.fused.dropout import Dropout, is_kept, site_keys
from dragoman.model.fused.flat_weights import Weight

# The fastest of those timed on an H200; they change no result.
FORWARD_ELEMENTS, FORWARD_WARPS = 2048, 4
BACKWARD_ELEMENTS, BACKWARD_WARPS, BACKWARD_STAGES = 1024, 2, 3
PROGRAMS_PER_PROCESSOR = 4


def add_norm(
    stream: Tensor | None,
    branch: Tensor,
    bias: Weight | None,
    norm: tuple[Weight, Weight],
    epsilon: float,
    dropout: Dropout,
) -> tuple[Tensor, Tensor]:
    """The new stream, stream + dropout(branch + bias), and its layer norm; all [tokens, width]."""
    both: tuple[Tensor, Tensor] = _AddNorm.apply(stream, branch, bias, norm, epsilon, dropout)
    return both


class _AddNorm(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        stream: Tensor | None,
        branch: Tensor,
        bias: Weight | None,
        norm: tuple[Weight, Weight],
        epsilon: float,
        dropout: Dropout,
    ) -> tuple[Tensor, Tensor]:
        tokens, width = branch.shape
        columns = triton.next_power_of_2(width)
        rows = max(1, FORWARD_ELEMENTS // columns)
        total, normed = torch.empty_like(branch), torch.empty_like(branch)
        statistics = torch.empty(2, tokens, device=branch.device)
        weight, norm_bias = norm
        _forward[(triton.cdiv(tokens, rows),)](
            branch if stream is None else stream,
            branch,
            norm_bias.value if bias is None else bias.value,
            weight.value,
            norm_bias.value,
            total,
            normed,
            statistics,
            tokens=tokens,
            width=width,
            epsilon=epsilon,
            HAS_STREAM=stream is not None,
            HAS_BIAS=bias is not None,
            ROWS=rows,
            COLUMNS=columns,
            num_warps=FORWARD_WARPS,
            **dropout.arguments(),
        )
        ctx.save_for_backward(total, statistics)
        ctx.bias, ctx.norm, ctx.dropout = bias, norm, dropout
        ctx.has_stream = stream is not None
        ctx.set_materialize_grads(False)
        return total, normed

    @staticmethod
    def backward(ctx: Any, *gradients: Any) -> tuple[Tensor | None, ...]:
        later_gradient, normed_gradient = gradients
        total, statistics = ctx.saved_tensors
        weight, norm_bias = ctx.norm
        tokens, width = total.shape
        columns = triton.next_power_of_2(width)
        rows = max(1, BACKWARD_ELEMENTS // columns)
        branch_gradient = torch.empty_like(total)
        # Without dropout both gradients are the same numbers: one tensor serves both.
        is_shared = ctx.has_stream and ctx.dropout.threshold == 0
        stream_gradient = branch_gradient if is_shared else torch.empty_like(total)
        programs = min(triton.cdiv(tokens, rows), PROGRAMS_PER_PROCESSOR * processor_count(total))
        sums = [weight.gradient, norm_bias.gradient, *([ctx.bias.gradient] if ctx.bias else [])]
        partials = torch.empty(programs, len(sums), width, device=total.device)
        _backward[(programs,)](
            normed_gradient,
            total if later_gradient is None else later_gradient,
            total,
            statistics,
            weight.value,
            stream_gradient,
            branch_gradient,
            partials,
            tokens=tokens,
            width=width,
            HAS_LATER=later_gradient is not None,
            STORE_STREAM=ctx.has_stream and not is_shared,
            SUMS=len(sums),
            ROWS=rows,
            COLUMNS=columns,
            STAGES=BACKWARD_STAGES,
            num_warps=BACKWARD_WARPS,
            **ctx.dropout.arguments(),
        )
        add_column_sums(partials, sums)
        return (stream_gradient if ctx.has_stream else None, branch_gradient, *[None] * 4)


@triton.jit(do_not_specialize=["site"])
def _forward(
    stream_ptr,
    branch_ptr,
    bias_ptr,
    norm_weight_ptr,
    norm_bias_ptr,
    total_ptr,
    normed_ptr,
    statistics_ptr,
    mask_key_ptr,
    site,
    tokens,
    width,
    epsilon,
    HAS_STREAM: tl.constexpr,
    HAS_BIAS: tl.constexpr,
    DROP_THRESHOLD: tl.constexpr,
    KEEP_SCALE: tl.constexpr,
    ROWS: tl.constexpr,
    COLUMNS: tl.constexpr,
):
    token = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    column = tl.arange(0, COLUMNS)
    inside_width = column < width
    inside = (token < tokens)[:, None] & inside_width[None, :]
    offsets = token[:, None].to(tl.int64) * width + column[None, :]
    total = tl.load(branch_ptr + offsets, mask=inside, other=0.0).to(tl.float32)
    if HAS_BIAS:
        total += tl.load(bias_ptr + column, mask=inside_width, other=0.0)[None, :]
    if DROP_THRESHOLD > 0:
        first, second = site_keys(mask_key_ptr, site)
        total = tl.where(is_kept(offsets, first, second, DROP_THRESHOLD), total * KEEP_SCALE, 0.0)
    if HAS_STREAM:
        total += tl.load(stream_ptr + offsets, mask=inside, other=0.0).to(tl.float32)
    rounded = total.to(total_ptr.dtype.element_ty)
    tl.store(total_ptr + offsets, rounded, mask=inside)
    # The statistics are those of the rounded values: the backward pass sees no others.
    values = rounded.to(tl.float32)
    mean = tl.sum(values, axis=1) / width
    centered = tl.where(inside_width[None, :], values - mean[:, None], 0.0)
    scale = tl.rsqrt(tl.sum(centered * centered, axis=1) / width + epsilon)
    norm_weight = tl.load(norm_weight_ptr + column, mask=inside_width, other=0.0)
    norm_bias = tl.load(norm_bias_ptr + column, mask=inside_width, other=0.0)
    normed = centered * scale[:, None] * norm_weight[None, :] + norm_bias[None, :]
    tl.store(normed_ptr + offsets, normed.to(normed_ptr.dtype.element_ty), mask=inside)
    tl.store(statistics_ptr + token, mean, mask=token < tokens)
    tl.store(statistics_ptr + tokens + token, scale, mask=token < tokens)


@triton.jit(do_not_specialize=["site"])
def _backward(
    normed_gradient_ptr,
    later_gradient_ptr,
    total_ptr,
    statistics_ptr,
    norm_weight_ptr,
    stream_gradient_ptr,
    branch_gradient_ptr,
    partial_ptr,
    mask_key_ptr,
    site,
    tokens,
    width,
    HAS_LATER: tl.constexpr,
    STORE_STREAM: tl.constexpr,
    SUMS: tl.constexpr,
    DROP_THRESHOLD: tl.constexpr,
    KEEP_SCALE: tl.constexpr,
    ROWS: tl.constexpr,
    COLUMNS: tl.constexpr,
    STAGES: tl.constexpr,
):
    program = tl.program_id(0)
    column = tl.arange(0, COLUMNS)
    inside_width = column < width
    norm_weight = tl.load(norm_weight_ptr + column, mask=inside_width, other=0.0)
    weight_sum = tl.zeros([ROWS, COLUMNS], tl.float32)
    norm_bias_sum = tl.zeros([ROWS, COLUMNS], tl.float32)
    bias_sum = tl.zeros([ROWS, COLUMNS], tl.float32)
    if DROP_THRESHOLD > 0:
        first, second = site_keys(mask_key_ptr, site)
    for start in tl.range(program * ROWS, tokens, tl.num_programs(0) * ROWS, num_stages=STAGES):
        token = start + tl.arange(0, ROWS)
        inside = (token < tokens)[:, None] & inside_width[None, :]
        offsets = token[:, None].to(tl.int64) * width + column[None, :]
        values = tl.load(total_ptr + offsets, mask=inside, other=0.0).to(tl.float32)
        upstream = tl.load(normed_gradient_ptr + offsets, mask=inside, other=0.0).to(tl.float32)
        if HAS_LATER:
            later = tl.load(later_gradient_ptr + offsets, mask=inside, other=0.0).to(tl.float32)
        mean = tl.load(statistics_ptr + token, mask=token < tokens, other=0.0)
        scale = tl.load(statistics_ptr + tokens + token, mask=token < tokens, other=0.0)
        standard = (values - mean[:, None]) * scale[:, None]
        weight_sum += upstream * standard
        norm_bias_sum += upstream
        weighted = upstream * norm_weight[None, :]
        mean_weighted = tl.sum(weighted, axis=1) / width
        mean_product = tl.sum(weighted * standard, axis=1) / width
        gradient = weighted - mean_weighted[:, None] - standard * mean_product[:, None]
        gradient = gradient * scale[:, None]
        if HAS_LATER:
            gradient += later
        if STORE_STREAM:
            rounded = gradient.to(stream_gradient_ptr.dtype.element_ty)
            tl.store(stream_gradient_ptr + offsets, rounded, mask=inside)
        if DROP_THRESHOLD > 0:
            kept = is_kept(offsets, first, second, DROP_THRESHOLD)
            gradient = tl.where(kept, gradient * KEEP_SCALE, 0.0)
        rounded = gradient.to(branch_gradient_ptr.dtype.element_ty)
        tl.store(branch_gradient_ptr + offsets, rounded, mask=inside)
        if SUMS == 3:
            bias_sum += tl.where(inside, gradient, 0.0)
    base = partial_ptr + program * SUMS * width + column
    tl.store(base, tl.sum(weight_sum, axis=0), mask=inside_width)
    tl.store(base + width, tl.sum(norm_bias_sum, axis=0), mask=inside_width)
    if SUMS == 3:
        tl.store(base + 2 * width, tl.sum(bias_sum, axis=0), mask=inside_width)
