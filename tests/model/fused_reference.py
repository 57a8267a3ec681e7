"""The fused functions in plain PyTorch, with the same dropout masks; exact in float64.

Shapes as in `dragoman.model.fused`: tokens of all rows stand in one dimension.
"""

import math
import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any
from unittest import mock

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from dragoman.corpus.rows import pack
from dragoman.corpus.store import PairTokens, pack_lines
from dragoman.model.transformer import RowTensors

LOW_32_BITS = 0xFFFFFFFF
# Without a GPU the kernels can be run slowly by Triton's interpreter, in float32.
IS_INTERPRETED = os.environ.get("TRITON_INTERPRET") == "1"
DEVICE = torch.device("cpu" if IS_INTERPRETED else "cuda")
COMPUTE_TYPES = [torch.float32] if IS_INTERPRETED else [torch.bfloat16, torch.float16]
TOLERANCES = {torch.bfloat16: 1e-2, torch.float16: 2e-3, torch.float32: 2e-5}

needs_kernels = pytest.mark.skipif(
    not (IS_INTERPRETED or torch.cuda.is_available()), reason="needs a CUDA device"
)


@dataclass(frozen=True)
class Mask:
    """One use of dropout, as `dragoman.model.fused.dropout.Dropout` has it."""

    probability: float
    site: int
    key: Tensor

    def __call__(self, values: Tensor) -> Tensor:
        """Drop a part of values and scale the rest up."""
        if self.probability == 0:
            return values
        kept = self.kept(values.shape)
        return torch.where(kept, values / (1 - self.probability), 0.0)

    def kept(self, shape: torch.Size) -> Tensor:
        """Which elements are kept."""
        one, other = (self.key.to(torch.int64) & LOW_32_BITS).unbind()
        first = _mix(one ^ _mix((other + self.site * 0x9E3779B9) & LOW_32_BITS))
        second = _mix(other ^ _mix((one + self.site * 0x85EBCA6B) & LOW_32_BITS))
        bits = (torch.arange(shape.numel(), device=self.key.device) + first) & LOW_32_BITS
        bits = bits ^ (bits >> 16)
        bits = (bits * 0x7FEB352D) & LOW_32_BITS
        bits = bits ^ second
        bits = bits ^ (bits >> 15)
        bits = (bits * 0x846CA68B) & LOW_32_BITS
        return (bits >= int(self.probability * 2**32)).view(shape)


def _mix(bits: Tensor) -> Tensor:
    """Scramble 32 bits held in int64 (the lowbias32 hash)."""
    bits = bits ^ (bits >> 16)
    bits = (bits * 0x7FEB352D) & LOW_32_BITS
    bits = bits ^ (bits >> 15)
    bits = (bits * 0x846CA68B) & LOW_32_BITS
    return bits ^ (bits >> 16)


def add_norm(
    stream: Tensor | None,
    branch: Tensor,
    bias: Tensor | None,
    norm: tuple[Tensor, Tensor],
    epsilon: float,
    mask: Mask,
) -> tuple[Tensor, Tensor]:
    """The new stream and its layer norm."""
    total = mask(branch if bias is None else branch + bias)
    if stream is not None:
        total = stream + total
    return total, F.layer_norm(total, branch.shape[-1:], *norm, epsilon)


def feed_forward(
    inputs: Tensor, inner: Tensor, inner_bias: Tensor, outer: Tensor, mask: Mask
) -> Tensor:
    """Two products with a ReLU between them, without the outer bias."""
    return mask(F.relu(inputs @ inner.T + inner_bias)) @ outer.T


def attention(
    query_key_value: Sequence[Tensor],
    query_segments: Tensor,
    key_segments: Tensor,
    heads: int,
    is_causal: bool,
    mask: Mask,
) -> Tensor:
    """Attention of each query to the keys of its own segment; padding gives zeros."""
    rows = len(query_segments)
    query, key, value = (
        one.reshape(rows, -1, heads, one.shape[1] // heads).transpose(1, 2)
        for one in query_key_value
    )
    sees = query_segments[:, :, None] == key_segments[:, None, :]
    sees = sees & (query_segments > 0)[:, :, None]
    sees = (sees.tril() if is_causal else sees)[:, None]
    scores = query @ key.mT / math.sqrt(query.shape[3])
    lowest = torch.finfo(scores.dtype).min
    weights = scores.masked_fill(~sees, lowest).softmax(dim=-1) * sees
    return (mask(weights) @ value).transpose(1, 2).flatten(2).flatten(0, 1)


def loss_sums(
    hidden: Tensor, words: Tensor, labels: Tensor, segments: Tensor, label_smoothing: float
) -> Tensor:
    """Loss and nll, summed over real tokens."""
    real = segments > 0
    log_probabilities = (hidden @ words.T).log_softmax(dim=-1)[real]
    nll = -log_probabilities.gather(1, labels[real, None].long()).sum()
    spread = -log_probabilities.mean(dim=1).sum()
    return torch.stack([(1 - label_smoothing) * nll + label_smoothing * spread, nll])


def random_rows(rows: int, slots: int, words: int, generator: torch.Generator) -> RowTensors:
    """Packed rows of pairs of many lengths, on the device; the last rows are far from full."""

    def draw(low: int, high: int, size: int = 1) -> list[int]:
        drawn: list[int] = torch.randint(low, high, (size,), generator=generator).tolist()
        return drawn

    def lines() -> list[list[int]]:
        return [draw(3, words, draw(1, slots // 2)[0]) for _ in range(6 * rows)]

    pairs = PairTokens(pack_lines(lines(), "uint16"), pack_lines(lines(), "uint16"))
    packed = pack(pairs, slots, begin=1)
    return RowTensors.copy_to(DEVICE, packed[slice(len(packed) - rows, len(packed))].arrays())


@contextmanager
def poisoned_outputs() -> Iterator[None]:
    """Fresh tensors start as NaN, so that an element nobody writes shows."""

    def poisoned(make: Callable[..., Tensor]) -> Callable[..., Tensor]:
        def made(*arguments: Any, **options: Any) -> Tensor:
            tensor = make(*arguments, **options)
            return tensor.fill_(float("nan")) if tensor.is_floating_point() else tensor

        return made

    with (
        mock.patch.object(torch, "empty", poisoned(torch.empty)),
        mock.patch.object(torch, "empty_like", poisoned(torch.empty_like)),
    ):
        yield


def relative_error(found: Tensor, exact: Tensor) -> float:
    """Norm of the difference over the norm of the exact tensor; NaN is infinitely wrong."""
    error = float((found.double() - exact).norm() / exact.norm().clamp(min=1e-30))
    return error if error == error else math.inf
