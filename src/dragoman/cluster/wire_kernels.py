"""The rounding of `wire_format` and the outer step on a GPU, each in one pass over its vectors."""

from threading import Lock

import torch
import triton
import triton.language as tl
from torch import Tensor

from dragoman.cluster.wire_format import (
    BLOCK,
    SCALE_BYTES,
    level_range,
    padded_size,
    split_packed,
)

STEP_BLOCK = 1024
# Sizes are left open where kernels are compiled, so that fragments of any size share them.

# Threads launch in turn: Triton loads a kernel's launcher into a module that all kernels share, and
# a thread could get another's.
_in_turn = Lock()


def pack_levels(
    vector: Tensor, error: Tensor | None, parts: int, bits: int
) -> tuple[Tensor, Tensor | None]:
    """Pack a vector and what was kept back before; also give what is kept back now."""
    blocks = padded_size(len(vector), parts) // BLOCK // parts
    packed = _room(vector, parts, blocks, bits)
    scales, levels = split_packed(packed, bits)
    left_over = vector if error is None else torch.empty_like(vector)
    with _in_turn:
        _pack[(blocks, parts)](
            vector,
            vector if error is None else error,
            scales,
            levels,
            left_over,
            len(vector),
            packed.stride(0),
            IS_ERROR_KEPT=error is not None,
            MIDDLE=level_range(bits)[1],
            BITS=bits,
            BLOCK=BLOCK,
            num_warps=4,
        )
    return packed, None if error is None else left_over


def add_up_levels(received: Tensor, bits: int) -> tuple[Tensor, Tensor]:
    """Add packed vectors [count, bytes] up in float32 and pack the sum."""
    scales, levels = split_packed(received, bits)
    blocks = scales.shape[-1]
    packed = _room(received, 1, blocks, bits)[0]
    left_over = torch.empty(blocks * BLOCK, device=received.device)
    with _in_turn:
        _add_up[(blocks,)](
            scales,
            levels,
            *split_packed(packed, bits),
            left_over,
            received.stride(0),
            COUNT=len(received),
            MIDDLE=level_range(bits)[1],
            BITS=bits,
            BLOCK=BLOCK,
            num_warps=4,
        )
    return packed, left_over


def unpack_levels(packed: Tensor, bits: int, divisor: int, into: Tensor) -> None:
    """Write packed parts [parts, bytes] to a vector, divided."""
    scales, levels = split_packed(packed, bits)
    parts, blocks = scales.shape
    with _in_turn:
        _unpack[(blocks, parts)](
            scales,
            levels,
            into,
            len(into),
            packed.stride(0),
            float(divisor),
            MIDDLE=level_range(bits)[1],
            BITS=bits,
            BLOCK=BLOCK,
            num_warps=4,
        )


def outer_step(
    mean: Tensor,
    sent: Tensor,
    momentum: Tensor,
    common: Tensor,
    weights: Tensor,
    learning_rate: float,
    decay: float,
) -> None:
    """Make the Nesterov step of the common weights, and bring a worker's own along."""
    count = len(mean)
    with _in_turn:
        _outer_step[(triton.cdiv(count, STEP_BLOCK),)](
            mean,
            sent,
            momentum,
            common,
            weights,
            count,
            learning_rate,
            decay,
            BLOCK=STEP_BLOCK,
            num_warps=4,
        )


def _room(like: Tensor, parts: int, blocks: int, bits: int) -> Tensor:
    size = blocks * (SCALE_BYTES + BLOCK * bits // 8)
    return torch.empty((parts, size), dtype=torch.uint8, device=like.device)


@triton.jit
def _store_levels(
    values, scale_ptr, level_ptr, MIDDLE: tl.constexpr, BITS: tl.constexpr, BLOCK: tl.constexpr
):
    """Round a block, store its scale and levels, and give what it was rounded to."""
    HIGHEST: tl.constexpr = 2**BITS - 1
    LOWEST: tl.constexpr = 0 if BITS == 2 else 1
    # What is not finite makes the scale so, for everyone to see: its zeroth part is not zero.
    if BITS == 2:
        scale = tl.sqrt_rn(tl.div_rn(tl.sum(values * values, axis=0), BLOCK * 1.0))
    else:
        scale = tl.div_rn(tl.max(tl.abs(values), axis=0), 2 ** (BITS - 1) - 1.0)
    scale += tl.sum(values * 0.0, axis=0)
    tl.store(scale_ptr, scale)
    divisor = tl.where(scale != 0.0, scale, 1.0)
    levels = tl.div_rn(values, tl.zeros_like(values) + divisor)
    levels = tl.where(levels == levels, levels, 0.0) + MIDDLE
    # So large a number leaves no bits for fractions: they are rounded, halves to even.
    levels = levels + 12_582_912.0 - 12_582_912.0
    levels = tl.minimum(tl.maximum(levels, LOWEST), HIGHEST)
    stored = levels.to(tl.int32)
    if BITS == 2:
        even, odd = tl.split(tl.reshape(stored, (BLOCK // 4, 2, 2)))
        first, third = tl.split(even)
        second, fourth = tl.split(odd)
        stored = first * 64 + second * 16 + third * 4 + fourth
    elif BITS == 4:
        high, low = tl.split(tl.reshape(stored, (BLOCK // 2, 2)))
        stored = high * 16 + low
    tl.store(level_ptr + tl.arange(0, BLOCK * BITS // 8), stored.to(tl.uint8))
    return (levels - MIDDLE) * scale


@triton.jit
def _load_levels(
    scale_ptr, level_ptr, MIDDLE: tl.constexpr, BITS: tl.constexpr, BLOCK: tl.constexpr
):
    """Give the values of a packed block."""
    levels = tl.load(level_ptr + tl.arange(0, BLOCK * BITS // 8)).to(tl.int32)
    if BITS == 2:
        even = tl.join(levels >> 6, levels >> 2 & 3)
        odd = tl.join(levels >> 4 & 3, levels & 3)
        levels = tl.reshape(tl.join(even, odd), (BLOCK,))
    elif BITS == 4:
        levels = tl.reshape(tl.join(levels >> 4, levels & 15), (BLOCK,))
    return (levels.to(tl.float32) - MIDDLE) * tl.load(scale_ptr)


@triton.jit(do_not_specialize=["count", "part_bytes"])
def _pack(
    vector_ptr,
    error_ptr,
    scale_ptr,
    level_ptr,
    left_over_ptr,
    count,
    part_bytes,
    IS_ERROR_KEPT: tl.constexpr,
    MIDDLE: tl.constexpr,
    BITS: tl.constexpr,
    BLOCK: tl.constexpr,
):
    block, part = tl.program_id(0), tl.program_id(1).to(tl.int64)
    index = (part * tl.num_programs(0) + block) * BLOCK + tl.arange(0, BLOCK)
    inside = index < count
    values = tl.load(vector_ptr + index, mask=inside, other=0.0)
    if IS_ERROR_KEPT:
        values += tl.load(error_ptr + index, mask=inside, other=0.0)
    scale_ptr += part * (part_bytes // 4) + block
    level_ptr += part * part_bytes + block * (BLOCK * BITS // 8)
    rounded = _store_levels(values, scale_ptr, level_ptr, MIDDLE, BITS, BLOCK)
    if IS_ERROR_KEPT:
        tl.store(left_over_ptr + index, values - rounded, mask=inside)


@triton.jit(do_not_specialize=["part_bytes"])
def _add_up(
    scale_ptr,
    level_ptr,
    sum_scale_ptr,
    sum_level_ptr,
    left_over_ptr,
    part_bytes,
    COUNT: tl.constexpr,
    MIDDLE: tl.constexpr,
    BITS: tl.constexpr,
    BLOCK: tl.constexpr,
):
    block = tl.program_id(0)
    start = block * (BLOCK * BITS // 8)
    total = tl.zeros([BLOCK], tl.float32)
    for _ in range(COUNT):
        total += _load_levels(scale_ptr + block, level_ptr + start, MIDDLE, BITS, BLOCK)
        scale_ptr += part_bytes // 4
        level_ptr += part_bytes
    rounded = _store_levels(
        total, sum_scale_ptr + block, sum_level_ptr + start, MIDDLE, BITS, BLOCK
    )
    index = block.to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    tl.store(left_over_ptr + index, total - rounded)


@triton.jit(do_not_specialize=["count", "part_bytes"])
def _unpack(
    scale_ptr,
    level_ptr,
    into_ptr,
    count,
    part_bytes,
    divisor,
    MIDDLE: tl.constexpr,
    BITS: tl.constexpr,
    BLOCK: tl.constexpr,
):
    block, part = tl.program_id(0), tl.program_id(1).to(tl.int64)
    index = (part * tl.num_programs(0) + block) * BLOCK + tl.arange(0, BLOCK)
    scale_ptr += part * (part_bytes // 4) + block
    level_ptr += part * part_bytes + block * (BLOCK * BITS // 8)
    values = _load_levels(scale_ptr, level_ptr, MIDDLE, BITS, BLOCK) / divisor
    tl.store(into_ptr + index, values, mask=index < count)


@triton.jit(do_not_specialize=["count"])
def _outer_step(
    mean_ptr,
    sent_ptr,
    momentum_ptr,
    common_ptr,
    weight_ptr,
    count,
    learning_rate,
    decay,
    BLOCK: tl.constexpr,
):
    index = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    inside = index < count
    mean = tl.load(mean_ptr + index, mask=inside)
    momentum = decay * tl.load(momentum_ptr + index, mask=inside) + mean
    change = learning_rate * (mean + decay * momentum)
    common = tl.load(common_ptr + index, mask=inside) - change
    sent = tl.load(sent_ptr + index, mask=inside)
    weight = tl.load(weight_ptr + index, mask=inside) + (sent - change)
    tl.store(momentum_ptr + index, momentum, mask=inside)
    tl.store(common_ptr + index, common, mask=inside)
    tl.store(weight_ptr + index, weight, mask=inside)
