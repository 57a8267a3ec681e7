"""Sums over tokens, for the gradients of biases and norms.

Kernels that go through all tokens leave one partial sum per program; these are added up here, in
a fixed order.
"""

import torch
import triton
import triton.language as tl
from torch import Tensor

COLUMNS_AT_ONCE = 16


def processor_count(tensor: Tensor) -> int:
    """Multiprocessors of the tensor's device, for kernels that start a few programs on each."""
    if not tensor.is_cuda:
        return 2  # Triton's interpreter, in tests.
    return torch.cuda.get_device_properties(tensor.device).multi_processor_count


def add_column_sums(partials: Tensor, gradients: list[Tensor]) -> None:
    """Add partial sums [parts, gradients, columns] to one to three gradients."""
    parts, width, columns = partials.shape
    assert width == len(gradients) <= 3
    first, second, third = (gradients + gradients[:1] * 2)[:3]
    _add_column_sums[(triton.cdiv(columns, COLUMNS_AT_ONCE), width)](
        partials,
        first,
        second,
        third,
        parts,
        columns,
        WIDTH=width,
        # All parts in one sweep, in two variants only: each is compiled once.
        PARTS=256 if parts <= 256 else 1024,
        COLUMNS=COLUMNS_AT_ONCE,
        num_warps=8,
    )


@triton.jit
def _add_column_sums(
    partial_ptr,
    first_ptr,
    second_ptr,
    third_ptr,
    parts,
    columns,
    WIDTH: tl.constexpr,
    PARTS: tl.constexpr,
    COLUMNS: tl.constexpr,
):
    which = tl.program_id(1)
    column = tl.program_id(0) * COLUMNS + tl.arange(0, COLUMNS)
    inside = column < columns
    total = tl.zeros([COLUMNS], tl.float32)
    for start in range(0, parts, PARTS):
        part = start + tl.arange(0, PARTS)
        offsets = (part[:, None] * WIDTH + which) * columns + column[None, :]
        mask = (part < parts)[:, None] & inside[None, :]
        total += tl.sum(tl.load(partial_ptr + offsets, mask=mask, other=0.0), axis=0)
    gradient_ptr = first_ptr
    if which == 1:
        gradient_ptr = second_ptr
    if which == 2:
        gradient_ptr = third_ptr
    before = tl.load(gradient_ptr + column, mask=inside, other=0.0)
    tl.store(gradient_ptr + column, before + total, mask=inside)
