"""Multi-head attention on packed rows.

Shapes: R rows, S source slots, T target slots, D d_model, H heads, E = D / H.
"""

from collections.abc import Iterator
from contextlib import contextmanager

import torch
import torch.nn.functional as F
from torch import Tensor, nn


@contextmanager
def kernels_for_any_shape() -> Iterator[None]:
    """Do without cuDNN's attention: it plans for every new shape, which takes longer than it does.

    Training has one shape; sentences of all lengths have many.
    """
    was_on = torch.backends.cuda.cudnn_sdp_enabled()
    torch.backends.cuda.enable_cudnn_sdp(False)
    try:
        yield
    finally:
        torch.backends.cuda.enable_cudnn_sdp(was_on)


def segment_mask(queries: Tensor, keys: Tensor, *, causal: bool = False) -> Tensor:
    """Which key slots each query slot may see [R, 1, queries, keys]: those of its own segment.

    Padding (segment 0) sees everything: its output is never used, and a query that sees nothing
    would be a softmax over nothing. No real query sees padding.
    """
    mask = (queries[:, :, None] == keys[:, None, :]) | (queries == 0)[:, :, None]
    if causal:
        mask = mask.tril()
    return mask[:, None]


class SelfAttention(nn.Module):
    """Attention of a sequence to itself."""

    def __init__(self, d_model: int, heads: int, dropout: float) -> None:
        super().__init__()
        self.heads = heads
        self.dropout = dropout
        self.query_key_value = _projection(d_model, d_model, parts=3)
        self.output = _projection(d_model, d_model)

    def forward(self, x: Tensor, mask: Tensor) -> Tensor:
        """Attend within x [R, T, D]."""
        query, key, value = self._project(x)
        dropout = self.dropout if self.training else 0.0
        attended = F.scaled_dot_product_attention(query, key, value, mask, dropout)
        return self.output(_merge(attended))

    def _project(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        query, key, value = self.query_key_value(x).chunk(3, dim=-1)
        return _split(query, self.heads), _split(key, self.heads), _split(value, self.heads)


class CrossAttention(nn.Module):
    """Attention of target slots to the encoded source."""

    def __init__(self, d_model: int, heads: int, dropout: float) -> None:
        super().__init__()
        self.heads = heads
        self.dropout = dropout
        self.query = _projection(d_model, d_model)
        self.key_value = _projection(d_model, d_model, parts=2)
        self.output = _projection(d_model, d_model)

    def forward(self, x: Tensor, keys: Tensor, values: Tensor, mask: Tensor) -> Tensor:
        """Attend from x [R, T, D] to keys and values made by `memory`."""
        query = _split(self.query(x), self.heads)
        dropout = self.dropout if self.training else 0.0
        attended = F.scaled_dot_product_attention(query, keys, values, mask, dropout)
        return self.output(_merge(attended))

    def memory(self, encoded: Tensor) -> tuple[Tensor, Tensor]:
        """Keys and values [R, H, S, E] of the encoded source [R, S, D]."""
        key, value = self.key_value(encoded).chunk(2, dim=-1)
        return _split(key, self.heads), _split(value, self.heads)


def _projection(inputs: int, outputs: int, parts: int = 1) -> nn.Linear:
    """Several square projections in one matrix, each with the spread it would have alone."""
    projection = nn.Linear(inputs, parts * outputs, bias=False)
    for part in projection.weight.detach().chunk(parts):
        nn.init.xavier_uniform_(part)
    return projection


def _split(x: Tensor, heads: int) -> Tensor:
    rows, slots, _ = x.shape
    return x.view(rows, slots, heads, -1).transpose(1, 2)


def _merge(x: Tensor) -> Tensor:
    return x.transpose(1, 2).flatten(2)
