"""Vectors as they travel: in 32 or 16 bits, or in blocks of 8, 4 or 2 bits that share a scale."""

import importlib.util
from typing import Literal, assert_never

import torch
from torch import Tensor

WireFormat = Literal["none", "bf16", "fp16", "int8", "int4", "int2"]

ROUNDED: tuple[WireFormat, ...] = ("int8", "int4", "int2")  # What they lose is worth sending later.
BLOCK = 512  # Elements that share one float32 scale: a few hundredths of the bytes.
SCALE_BYTES = 4
# float16 loses numbers under 6e-8; what is sent is lifted well above that.
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
        case "int2":
            return 2
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
        case "int8" | "int4" | "int2":
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
        case "int8" | "int4" | "int2":
            return _unpack_levels(packed, bits_of(form))
        case _:
            assert_never(form)


def split_packed(packed: Tensor, bits: int) -> tuple[Tensor, Tensor]:
    """The scales [..., blocks] and the levels' bytes of what was packed in few bits, in place."""
    blocks = packed.shape[-1] // (SCALE_BYTES + BLOCK * bits // 8)
    scales, levels = packed[..., : blocks * SCALE_BYTES], packed[..., blocks * SCALE_BYTES :]
    return scales.view(torch.float32), levels


def _pack_levels(values: Tensor, bits: int) -> Tensor:
    """Round to the nearest level of each block: all scales come first, then all levels.

    With 8 and 4 bits the levels lie evenly between a block's extremes, zero among them. With 2 bits
    they are a half and one and a half root mean squares on either side of zero, about the best for
    a normal distribution; what is further out follows as kept-back error.
    """
    blocks = values.view(*values.shape[:-1], -1, BLOCK)
    if bits == 2:
        scales = blocks.square().mean(dim=-1).sqrt_()
    else:
        scales = blocks.abs().amax(dim=-1) / (2 ** (bits - 1) - 1)
    # A block of zeros has no scale. One that is not finite keeps it, for everyone to see.
    divisors = scales.where(scales != 0, 1.0).unsqueeze(-1)
    lowest, middle, highest = level_range(bits)
    levels = (blocks / divisors).nan_to_num_(0.0).add_(middle).round_().clamp_(lowest, highest)
    levels = levels.to(torch.uint8).flatten(-2)
    in_a_byte = 8 // bits
    packed = levels[..., 0::in_a_byte]
    for place in range(1, in_a_byte):
        packed = packed << bits | levels[..., place::in_a_byte]
    return torch.cat((scales.view(torch.uint8), packed), dim=-1)


def _unpack_levels(packed: Tensor, bits: int) -> Tensor:
    scales, levels = split_packed(packed, bits)
    if bits < 8:
        shifts = range(8 - bits, -1, -bits)
        levels = torch.stack([levels >> shift & 2**bits - 1 for shift in shifts], -1).flatten(-2)
    _, middle, _ = level_range(bits)
    values = levels.reshape(*scales.shape, BLOCK).float().sub_(middle)
    return values.mul_(scales.unsqueeze(-1)).flatten(-2)


def level_range(bits: int) -> tuple[int, float, int]:
    """The lowest level, where zero is, and the highest."""
    return (0, 1.5, 3) if bits == 2 else (1, 2.0 ** (bits - 1), 2**bits - 1)
