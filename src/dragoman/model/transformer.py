"""The Transformer of the reference runs: pre-norm, tied embeddings, sinusoidal positions.

Shapes: R rows, S source slots, T target slots, D d_model, V words.
"""

import math
from collections.abc import Iterable, Mapping
from typing import NamedTuple, cast

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor, nn

from dragoman.config import ModelSettings, ModelShape, shape_of
from dragoman.model.attention import CrossAttention, SelfAttention, segment_mask
from dragoman.model.dropout import dropout
from dragoman.model.loss import LossSums, cross_entropy

NORM_EPSILON = 1e-6
BRANCH_ENDS = ("attention.output.weight", "cross.output.weight", "feed_forward.outer.weight")


class RowTensors(NamedTuple):
    """Packed rows on a device, all [R, slots]; segment 0 is padding."""

    source: Tensor
    source_segments: Tensor
    source_positions: Tensor
    target_input: Tensor
    target: Tensor
    target_segments: Tensor
    target_positions: Tensor

    @classmethod
    def copy_to(cls, device: torch.device, arrays: Iterable[NDArray[np.integer]]) -> "RowTensors":
        """Copy packed rows, in the order of the fields, to a device."""
        return cls(*(torch.from_numpy(array).to(device) for array in arrays))


class Transformer(nn.Module):
    """Encoder, decoder and the embeddings they share."""

    def __init__(self, settings: ModelSettings, source_words: int, target_words: int, joint: bool):
        super().__init__()
        self.shape = shape = shape_of(settings)
        self.dropout = settings.dropout
        self.target_embedding = _embedding(target_words, shape.d_model)
        self.source_embedding = (
            self.target_embedding if joint else _embedding(source_words, shape.d_model)
        )
        self.encoder = nn.ModuleList(
            EncoderLayer(settings, shape) for _ in range(shape.encoder_layers)
        )
        self.encoder_norm = _norm(shape)
        self.decoder = nn.ModuleList(
            DecoderLayer(settings, shape) for _ in range(shape.decoder_layers)
        )
        self.decoder_norm = _norm(shape)
        if settings.zero_branches:
            for name, parameter in self.named_parameters():
                if name.endswith(BRANCH_ENDS):
                    nn.init.zeros_(parameter)

    def forward(self, rows: RowTensors, label_smoothing: float) -> LossSums:
        """Sum the loss over all real target tokens."""
        return cross_entropy(
            self.hidden_states(rows).flatten(0, 1),
            self.target_embedding.weight,
            rows.target.flatten().long(),
            rows.target_segments.flatten() > 0,
            label_smoothing,
        )

    def hidden_states(self, rows: RowTensors) -> Tensor:
        """Of all target slots, teacher forced, [R, T, D]."""
        encoded = self.encode(rows.source, rows.source_positions, rows.source_segments)
        return self.decode(
            encoded,
            rows.source_segments,
            rows.target_input,
            rows.target_positions,
            rows.target_segments,
        )

    def encode(self, source: Tensor, positions: Tensor, segments: Tensor) -> Tensor:
        """Encode source rows into [R, S, D]."""
        mask = segment_mask(segments, segments)
        x = self._embed(self.source_embedding, source, sinusoids(positions, self.shape.d_model))
        for layer in self.encoder:
            x = layer(x, mask)
        normed: Tensor = self.encoder_norm(x)
        return normed

    def decode(
        self,
        encoded: Tensor,
        source_segments: Tensor,
        target_input: Tensor,
        positions: Tensor,
        segments: Tensor,
    ) -> Tensor:
        """Decode whole target rows, teacher forced, into hidden states [R, T, D]."""
        self_mask = segment_mask(segments, segments, causal=True)
        cross_mask = segment_mask(segments, source_segments)
        x = self._embed(
            self.target_embedding, target_input, sinusoids(positions, self.shape.d_model)
        )
        for layer in cast(Iterable[DecoderLayer], self.decoder):
            x = layer(x, self_mask, *layer.cross.memory(encoded), cross_mask)
        normed: Tensor = self.decoder_norm(x)
        return normed

    def _embed(self, embedding: nn.Embedding, tokens: Tensor, places: Tensor) -> Tensor:
        x = embedding(tokens) * math.sqrt(self.shape.d_model) + places
        return dropout(x, self.dropout, self.training)


class EncoderLayer(nn.Module):
    """Self-attention and a feed-forward layer, each on a residual branch."""

    def __init__(self, settings: ModelSettings, shape: ModelShape) -> None:
        super().__init__()
        self.dropout = settings.dropout
        self.attention_norm = _norm(shape)
        self.attention = SelfAttention(shape.d_model, shape.heads, settings.attention_dropout)
        self.feed_forward_norm = _norm(shape)
        self.feed_forward = FeedForward(shape, settings.relu_dropout)

    def forward(self, x: Tensor, mask: Tensor) -> Tensor:
        """Transform x [R, S, D]."""
        x = x + self._drop(self.attention(self.attention_norm(x), mask))
        return x + self._drop(self.feed_forward(self.feed_forward_norm(x)))

    def _drop(self, x: Tensor) -> Tensor:
        return dropout(x, self.dropout, self.training)


class DecoderLayer(nn.Module):
    """Causal self-attention, attention to the source, and a feed-forward layer."""

    def __init__(self, settings: ModelSettings, shape: ModelShape) -> None:
        super().__init__()
        self.dropout = settings.dropout
        self.attention_norm = _norm(shape)
        self.attention = SelfAttention(shape.d_model, shape.heads, settings.attention_dropout)
        self.cross_norm = _norm(shape)
        self.cross = CrossAttention(shape.d_model, shape.heads, settings.attention_dropout)
        self.feed_forward_norm = _norm(shape)
        self.feed_forward = FeedForward(shape, settings.relu_dropout)

    def forward(
        self, x: Tensor, self_mask: Tensor, keys: Tensor, values: Tensor, cross_mask: Tensor
    ) -> Tensor:
        """Transform x [R, T, D]."""
        x = x + self._drop(self.attention(self.attention_norm(x), self_mask))
        x = x + self._drop(self.cross(self.cross_norm(x), keys, values, cross_mask))
        return x + self._drop(self.feed_forward(self.feed_forward_norm(x)))

    def _drop(self, x: Tensor) -> Tensor:
        return dropout(x, self.dropout, self.training)


class FeedForward(nn.Module):
    """Two projections with a ReLU between them."""

    def __init__(self, shape: ModelShape, dropout: float) -> None:
        super().__init__()
        self.dropout = dropout
        self.inner = nn.Linear(shape.d_model, shape.feed_forward)
        self.outer = nn.Linear(shape.feed_forward, shape.d_model)
        for layer in (self.inner, self.outer):
            nn.init.xavier_uniform_(layer.weight)
            nn.init.zeros_(layer.bias)

    def forward(self, x: Tensor) -> Tensor:
        """Transform each slot of x [..., D] by itself."""
        inner = dropout(F.relu(self.inner(x)), self.dropout, self.training)
        outer: Tensor = self.outer(inner)
        return outer


def sinusoids(positions: Tensor, d_model: int) -> Tensor:
    """Sines then cosines of each position [...] at falling frequencies: [..., D]."""
    half = d_model // 2
    exponents = torch.arange(half, device=positions.device) / max(half - 1, 1)
    angles = positions[..., None] * torch.exp(-math.log(10_000) * exponents)
    return torch.cat((angles.sin(), angles.cos()), dim=-1)


def count_parameters(model: nn.Module) -> int:
    """Parameters of a model, shared ones counted once."""
    return sum(parameter.numel() for parameter in model.parameters())


def load_weights(model: nn.Module, weights: Mapping[str, Tensor]) -> None:
    """Copy weights into a model by name; every name must be there, and no other."""
    parameters = dict(model.named_parameters())
    assert parameters.keys() == weights.keys(), parameters.keys() ^ weights.keys()
    with torch.no_grad():
        for name, parameter in parameters.items():
            parameter.copy_(weights[name])


def _embedding(words: int, d_model: int) -> nn.Embedding:
    embedding = nn.Embedding(words, d_model)
    nn.init.normal_(embedding.weight, std=d_model**-0.5)
    return embedding


def _norm(shape: ModelShape) -> nn.LayerNorm:
    return nn.LayerNorm(shape.d_model, eps=NORM_EPSILON)
