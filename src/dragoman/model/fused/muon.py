"""Muon over the matrices in flat buffers, which also writes the 16-bit copies of the weights."""

import torch
import triton
import triton.language as tl
from torch import Tensor

from dragoman.model.fused.flat_weights import FlatWeights, Stack
from dragoman.model.muon import SMALLEST_NORM, arithmetic_type, raise_singular_values, update_size

BLOCK, WARPS = 1024, 4


def muon(flat: FlatWeights, numbers: Tensor, momentum: float) -> None:
    """Update Muon's matrices; everything that changes by step is on the device.

    numbers [4]: 1 to skip the update; the gradients' factor; 1 - learning rate x weight decay; the
    learning rate.
    """
    stacks = flat.stacks()
    ahead = [_follow(flat, stack, numbers, momentum) for stack in stacks]
    for stack, update in zip(stacks, raise_singular_values(ahead), strict=True):
        _apply[_grid(stack)](
            flat.values[stack.start :],
            flat.copies[stack.start :],
            update,
            numbers,
            stack.stride,
            stack.rows * stack.columns,
            update_size(stack.rows, stack.columns),
            BLOCK=BLOCK,
            num_warps=WARPS,
        )


def _follow(flat: FlatWeights, stack: Stack, numbers: Tensor, momentum: float) -> Tensor:
    """Let the momenta follow the gradients; return where they would go from there, of norm 1."""
    device, size = flat.values.device, stack.rows * stack.columns
    shape = stack.count, stack.rows, stack.columns
    ahead = torch.empty(shape, dtype=arithmetic_type(device), device=device)
    blocks, count = _grid(stack)
    squares = torch.empty(count, blocks, device=device)
    _follow_gradients[blocks, count](
        flat.gradients[stack.start :],
        flat.means[stack.start :],
        ahead,
        squares,
        numbers,
        stack.stride,
        size,
        momentum,
        1 - momentum,
        BLOCK=BLOCK,
        num_warps=WARPS,
    )
    norms = squares.sum(dim=1).sqrt()
    _divide[blocks, count](ahead, norms, size, SMALLEST_NORM, BLOCK=BLOCK, num_warps=WARPS)
    return ahead


def _grid(stack: Stack) -> tuple[int, int]:
    return triton.cdiv(stack.rows * stack.columns, BLOCK), stack.count


@triton.jit
def _follow_gradients(
    gradient_ptr,
    momentum_ptr,
    ahead_ptr,
    squares_ptr,
    numbers_ptr,
    stride,
    count,
    decay,
    rest,
    BLOCK: tl.constexpr,
):
    factor = tl.load(numbers_ptr + 1)
    matrix = tl.program_id(1).to(tl.int64)
    index = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    inside = index < count
    place = matrix * stride + index
    new = rest * factor * tl.load(gradient_ptr + place, mask=inside, other=0.0)
    momentum = decay * tl.load(momentum_ptr + place, mask=inside, other=0.0) + new
    if tl.load(numbers_ptr) == 0.0:
        tl.store(momentum_ptr + place, momentum, mask=inside)
    ahead = decay * momentum + new
    tl.store(ahead_ptr + matrix * count + index, ahead.to(ahead_ptr.dtype.element_ty), mask=inside)
    block = matrix * tl.num_programs(0) + tl.program_id(0)
    tl.store(squares_ptr + block, tl.sum(ahead * ahead, axis=0))


@triton.jit
def _divide(ahead_ptr, norms_ptr, count, smallest, BLOCK: tl.constexpr):
    matrix = tl.program_id(1).to(tl.int64)
    index = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    inside = index < count
    place = ahead_ptr + matrix * count + index
    norm = tl.maximum(tl.load(norms_ptr + matrix), smallest)
    ahead = tl.load(place, mask=inside, other=0.0).to(tl.float32) / norm
    tl.store(place, ahead.to(ahead_ptr.dtype.element_ty), mask=inside)


@triton.jit
def _apply(
    value_ptr,
    copy_ptr,
    update_ptr,
    numbers_ptr,
    stride,
    count,
    size,
    BLOCK: tl.constexpr,
):
    if tl.load(numbers_ptr) == 0.0:
        decay = tl.load(numbers_ptr + 2)
        rate = size * tl.load(numbers_ptr + 3)
        matrix = tl.program_id(1).to(tl.int64)
        index = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
        inside = index < count
        place = matrix * stride + index
        update = tl.load(update_ptr + matrix * count + index, mask=inside, other=0.0)
        value = tl.load(value_ptr + place, mask=inside, other=0.0)
        value = value * decay - rate * update.to(tl.float32)
        tl.store(value_ptr + place, value, mask=inside)
        tl.store(copy_ptr + place, value.to(copy_ptr.dtype.element_ty), mask=inside)
