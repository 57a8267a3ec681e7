"""Dropout whose mask is a function of (key, site, element) and is never stored."""

from dataclasses import dataclass
from typing import Any

import triton
import triton.language as tl
from torch import Tensor


@dataclass(frozen=True)
class Dropout:
    """One use of dropout: how much, where in the model, and the key of the micro-batch."""

    probability: float
    site: int
    key: Tensor  # Two 32-bit integers on the device.

    @property
    def threshold(self) -> int:
        """An element is dropped if its 32 random bits are below this."""
        return int(self.probability * 2**32)

    @property
    def keep_scale(self) -> float:
        """Factor of the elements that are kept."""
        return 1.0 / (1.0 - self.probability)

    def arguments(self) -> dict[str, Any]:
        """Arguments that every kernel with dropout takes."""
        return {
            "mask_key_ptr": self.key,
            "site": self.site,
            "DROP_THRESHOLD": self.threshold,
            "KEEP_SCALE": self.keep_scale,
        }


@triton.jit
def _mix(bits):
    """Scramble 32 bits (the lowbias32 hash)."""
    bits ^= bits >> 16
    bits *= 0x7FEB352D
    bits ^= bits >> 15
    bits *= 0x846CA68B
    bits ^= bits >> 16
    return bits


@triton.jit
def site_keys(mask_key_ptr, site):
    """Two 32-bit keys for one dropout site of one micro-batch."""
    first_part = tl.load(mask_key_ptr).to(tl.uint32)
    second_part = tl.load(mask_key_ptr + 1).to(tl.uint32)
    place = site.to(tl.uint32)
    first = _mix(first_part ^ _mix(second_part + place * 0x9E3779B9))
    second = _mix(second_part ^ _mix(first_part + place * 0x85EBCA6B))
    return first, second


@triton.jit
def is_kept(index, first, second, DROP_THRESHOLD: tl.constexpr):
    """Whether element `index` is kept; the backward pass asks again and gets the same answer."""
    bits = index.to(tl.uint32) + first
    bits ^= bits >> 16
    bits *= 0x7FEB352D
    bits ^= second
    bits ^= bits >> 15
    bits *= 0x846CA68B
    return bits >= DROP_THRESHOLD
