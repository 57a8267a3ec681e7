"""Vectors as they travel: in 32 or 16 bits, or in blocks of 8 or 4 bits that share a scale."""

from typing import Literal, assert_never

import torch
from torch import Tensor

WireFormat = Literal["none", "bf16", "fp16", "int8", "int4"]

ROUNDED: tuple[WireFormat, ...] = ("int8", "int4")  # What they lose is worth sending later.
BLOCK = 512  # Elements that share one float32 scale: less than two hundredths of the bytes.
SCALE_BYTES = 4
# float16 loses numbers under 6e-8; differences of weights are lifted well above that.
FLOAT16_LIFT = 2.0**10


def padded_size(elements: int, parts: int) -> int:
    """Elements after padding, so that so many equal parts hold whole blocks each."""
    return -(-elements // (BLOCK * parts)) * BLOCK * parts


def pack(values: Tensor, form: WireFormat) -> Tensor:
    """Give the bytes of values [..., n], n being a whole number of blocks."""
    match form:
        case "none":
            return values.contiguous().view(torch.uint8)
        case "bf16":
            return values.bfloat16().view(torch.uint8)
        case "fp16":
            return (values * FLOAT16_LIFT).half().view(torch.uint8)
        case "int8":
            return _pack_levels(values, 8)
        case "int4":
            return _pack_levels(values, 4)
        case _:
            assert_never(form)


def unpack(packed: Tensor, form: WireFormat) -> Tensor:
    """Give the values that `pack` rounded to, in float32."""
    match form:
        case "none":
            return packed.view(torch.float32)
        case "bf16":
            return packed.view(torch.bfloat16).float()
        case "fp16":
            return packed.view(torch.float16).float() / FLOAT16_LIFT
        case "int8":
            return _unpack_levels(packed, 8)
        case "int4":
            return _unpack_levels(packed, 4)
        case _:
            assert_never(form)


def _pack_levels(values: Tensor, bits: int) -> Tensor:
    """Round to the nearest of 2^bits - 1 levels between the extremes of each block.

    All scales come first, then all levels.
    """
    largest = 2 ** (bits - 1) - 1
    blocks = values.view(*values.shape[:-1], -1, BLOCK)
    scales = blocks.abs().amax(dim=-1) / largest
    # A block of zeros has no scale. One that is not finite keeps it, for everyone to see.
    divisors = scales.where(scales != 0, 1.0).unsqueeze(-1)
    levels = (blocks / divisors).round_().nan_to_num_(0.0).clamp_(-largest, largest)
    levels = levels.add_(largest + 1).to(torch.uint8).flatten(-2)
    if bits == 4:
        levels = levels[..., 0::2] << 4 | levels[..., 1::2]
    return torch.cat((scales.view(torch.uint8), levels), dim=-1)


def _unpack_levels(packed: Tensor, bits: int) -> Tensor:
    largest = 2 ** (bits - 1) - 1
    blocks = packed.shape[-1] // (SCALE_BYTES + BLOCK * bits // 8)
    scales, levels = packed[..., : blocks * SCALE_BYTES], packed[..., blocks * SCALE_BYTES :]
    if bits == 4:
        levels = torch.stack((levels >> 4, levels & 15), dim=-1).flatten(-2)
    values = levels.reshape(*levels.shape[:-1], blocks, BLOCK).float().sub_(largest + 1)
    return values.mul_(scales.contiguous().view(torch.float32).unsqueeze(-1)).flatten(-2)
