"""Vectors as they travel: in 32 or 16 bits, or in blocks of 8 or 4 bits that share a scale."""

import importlib.util
from typing import Literal, assert_never

import torch
from torch import Tensor

WireFormat = Literal["none", "bf16", "fp16", "int8", "int4"]

ROUNDED: tuple[WireFormat, ...] = ("int8", "int4")  # What they lose is worth sending later.
BLOCK = 512  # Elements that share one float32 scale: less than two hundredths of the bytes.
SCALE_BYTES = 4
# float16 loses numbers under 6e-8; differences of weights are lifted well above that.
FLOAT16_LIFT = 2.0**10
HAS_KERNELS = importlib.util.find_spec("triton") is not None


def padded_size(elements: int, parts: int) -> int:
    """Elements after padding, so that so many equal parts hold whole blocks each."""
    return -(-elements // (BLOCK * parts)) * BLOCK * parts


def pack_parts(
    vector: Tensor, error: Tensor | None, parts: int, form: WireFormat
) -> tuple[Tensor, Tensor | None]:
    """Pack a vector and what was kept back before, as [parts, bytes]; tell what is kept back now.

    Nothing is kept back if there is no error to add.
    """
    if vector.is_cuda and HAS_KERNELS and form in ROUNDED:
        from dragoman.cluster.wire_kernels import pack_levels

        return pack_levels(vector, error, parts, bits_of(form))
    whole = vector if error is None else vector + error
    padding = padded_size(len(vector), parts) - len(vector)
    padded = torch.nn.functional.pad(whole, (0, padding)) if padding else whole
    packed = pack(padded.view(parts, -1), form)
    if error is None:
        return packed, None
    return packed, whole - unpack(packed, form).view(-1)[: len(vector)]


def add_up(received: Tensor, form: WireFormat) -> tuple[Tensor, Tensor]:
    """Add packed vectors [count, bytes] up and pack the sum; also tell what that kept back."""
    if received.is_cuda and HAS_KERNELS and form in ROUNDED:
        from dragoman.cluster.wire_kernels import add_up_levels

        return add_up_levels(received, bits_of(form))
    total = unpack(received, form).sum(dim=0)
    packed = pack(total, form)
    return packed, total - unpack(packed, form)


def unpack_parts(packed: Tensor, form: WireFormat, divisor: int, into: Tensor) -> None:
    """Write packed parts [parts, bytes] to a vector, divided."""
    if into.is_cuda and HAS_KERNELS and form in ROUNDED:
        from dragoman.cluster.wire_kernels import unpack_levels

        unpack_levels(packed, bits_of(form), divisor, into)
        return
    torch.div(unpack(packed, form).view(-1)[: len(into)], divisor, out=into)


def bits_of(form: WireFormat) -> int:
    """Bits of an element, but for its share of a scale."""
    match form:
        case "none":
            return 32
        case "bf16" | "fp16":
            return 16
        case "int8":
            return 8
        case "int4":
            return 4
        case _:
            assert_never(form)


def pack(values: Tensor, form: WireFormat) -> Tensor:
    """Give the bytes of values [..., n], n being a whole number of blocks."""
    match form:
        case "none":
            return values.contiguous().view(torch.uint8)
        case "bf16":
            return values.bfloat16().view(torch.uint8)
        case "fp16":
            return (values * FLOAT16_LIFT).half().view(torch.uint8)
        case "int8" | "int4":
            return _pack_levels(values, bits_of(form))
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
        case "int8" | "int4":
            return _unpack_levels(packed, bits_of(form))
        case _:
            assert_never(form)


def split_packed(packed: Tensor, bits: int) -> tuple[Tensor, Tensor]:
    """The scales [..., blocks] and the levels' bytes of what was packed in few bits, in place."""
    blocks = packed.shape[-1] // (SCALE_BYTES + BLOCK * bits // 8)
    scales, levels = packed[..., : blocks * SCALE_BYTES], packed[..., blocks * SCALE_BYTES :]
    return scales.view(torch.float32), levels


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
    scales, levels = split_packed(packed, bits)
    if bits == 4:
        levels = torch.stack((levels >> 4, levels & 15), dim=-1).flatten(-2)
    values = levels.reshape(*scales.shape, BLOCK).float().sub_(largest + 1)
    return values.mul_(scales.unsqueeze(-1)).flatten(-2)
