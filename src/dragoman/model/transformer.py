"""The Transformer of the reference runs: pre-norm, tied embeddings, sinusoidal positions.

Shapes: R rows, S source slots, T target slots, D d_model, V words.
"""

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import NamedTuple, cast

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from dragoman.config import ModelSettings, ModelShape, shape_of
from dragoman.model.attention import CrossAttention, SelfAttention, segment_mask
from dragoman.model.dropout import dropout
from dragoman.model.loss import LossSums, cross_entropy

NORM_EPSILON = 1e-6


class RowTensors(NamedTuple):
    """Packed rows on a device, all [R, slots]; segment 0 is padding."""

    source: Tensor
    source_segments: Tensor
    source_positions: Tensor
    target_input: Tensor
    target: Tensor
    target_segments: Tensor
    target_positions: Tensor


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

    def forward(self, rows: RowTensors, label_smoothing: float) -> LossSums:
        """Sum the loss over all real target tokens."""
        encoded = self.encode(rows.source, rows.source_positions, rows.source_segments)
        hidden = self.decode(
            encoded,
            rows.source_segments,
            rows.target_input,
            rows.target_positions,
            rows.target_segments,
        )
        return cross_entropy(
            hidden.flatten(0, 1),
            self.target_embedding.weight,
            rows.target.flatten().long(),
            rows.target_segments.flatten() > 0,
            label_smoothing,
        )

    def encode(self, source: Tensor, positions: Tensor, segments: Tensor) -> Tensor:
        """Encode source rows into [R, S, D]."""
        mask = segment_mask(segments, segments)
        x = self._embed(self.source_embedding, source, positions)
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
        x = self._embed(self.target_embedding, target_input, positions)
        for layer in self._decoder_layers():
            x = layer(x, self_mask, *layer.cross.memory(encoded), cross_mask)
        normed: Tensor = self.decoder_norm(x)
        return normed

    def start_decoding(self, encoded: Tensor, source_segments: Tensor, longest: int) -> "Decoding":
        """Prepare to decode one sentence per row, one token at a time."""
        memory = [layer.cross.memory(encoded) for layer in self._decoder_layers()]
        rows, heads, _, width = memory[0][0].shape
        caches = encoded.new_zeros(len(self.decoder), 2, rows, heads, longest, width)
        return Decoding(
            memory, caches, segment_mask(torch.ones_like(source_segments[:, :1]), source_segments)
        )

    def decode_step(self, decoding: "Decoding", tokens: Tensor, position: int) -> Tensor:
        """Log-probabilities [R, V] of the token after `tokens` [R], which stand at `position`."""
        positions = torch.full_like(tokens, position)[:, None]
        x = self._embed(self.target_embedding, tokens[:, None], positions)
        for layer, memory, cache in zip(
            self._decoder_layers(), decoding.memory, decoding.caches, strict=True
        ):
            x = layer.step(x, cache, position, *memory, decoding.cross_mask)
        hidden = self.decoder_norm(x)[:, 0]
        logits = F.linear(hidden, self.target_embedding.weight.to(hidden.dtype))
        return logits.float().log_softmax(dim=-1)

    def _decoder_layers(self) -> Iterable["DecoderLayer"]:
        return cast(Iterable[DecoderLayer], self.decoder)

    def _embed(self, embedding: nn.Embedding, tokens: Tensor, positions: Tensor) -> Tensor:
        x = embedding(tokens) * math.sqrt(self.shape.d_model)
        x = x + sinusoids(positions, self.shape.d_model)
        return dropout(x, self.dropout, self.training)


@dataclass
class Decoding:
    """What incremental decoding remembers."""

    memory: list[tuple[Tensor, Tensor]]  # Per layer: keys and values of the source.
    caches: Tensor  # [layers, 2, R, H, longest, E]
    cross_mask: Tensor  # [R, 1, 1, S]

    def select(self, rows: Tensor, length: int) -> "Decoding":
        """Keep only the given rows; the caches hold `length` tokens."""
        memory = [(keys[rows], values[rows]) for keys, values in self.memory]
        caches = self.caches.new_zeros(*self.caches.shape[:2], len(rows), *self.caches.shape[3:])
        caches[..., :length, :] = self.caches[:, :, rows, :, :length]
        return Decoding(memory, caches, self.cross_mask[rows])

    def reorder(self, rows: Tensor, length: int) -> None:
        """Let row i go on from row rows[i] of the same sentence."""
        self.caches[..., :length, :] = self.caches[:, :, rows, :, :length]


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

    def step(
        self, x: Tensor, cache: Tensor, position: int, keys: Tensor, values: Tensor, mask: Tensor
    ) -> Tensor:
        """Transform one new token x [R, 1, D]."""
        x = x + self.attention.step(self.attention_norm(x), cache, position)
        x = x + self.cross(self.cross_norm(x), keys, values, mask)
        return x + self.feed_forward(self.feed_forward_norm(x))

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
