"""The forward and backward pass of a Transformer on packed rows, on fused kernels.

The same function as `Transformer.forward` and its gradient, on the same parameters. Tokens of all
rows stand in one dimension: N = rows x slots, D width.
"""

import torch
from torch import Tensor

from dragoman.config import ModelSettings, shape_of
from dragoman.model.fused.attention import Kind, Memory, cross_attention, self_attention
from dragoman.model.fused.dropout import Dropout
from dragoman.model.fused.embedding import add_embedding_gradient, embed
from dragoman.model.fused.feed_forward import feed_forward
from dragoman.model.fused.flat_weights import FlatWeights, Weight
from dragoman.model.fused.loss import sums_and_gradient
from dragoman.model.fused.norm import add_norm
from dragoman.model.fused.product import linear
from dragoman.model.transformer import NORM_EPSILON, RowTensors, sinusoids


class FusedTransformer:
    """Makes the gradients of a Transformer whose weights lie in flat buffers."""

    def __init__(
        self,
        settings: ModelSettings,
        flat: FlatWeights,
        joint: bool,
        row_tokens: int,
        label_smoothing: float,
    ) -> None:
        self._settings, self._flat = settings, flat
        self._label_smoothing = label_smoothing
        self._target_words = flat.weight("target_embedding.weight")
        self._source_words = self._target_words if joint else flat.weight("source_embedding.weight")
        slots = torch.arange(row_tokens, device=flat.values.device)
        self._sinusoids = sinusoids(slots, shape_of(settings).d_model)

    def add_gradients(self, rows: RowTensors, mask_key: Tensor, gradient_scale: Tensor) -> Tensor:
        """Add gradient_scale x the gradients of the summed loss; return loss and nll, summed."""
        source = self._embed(rows.source, rows.source_positions, self._source_words)
        target = self._embed(rows.target_input, rows.target_positions, self._target_words)
        run = _Pass(self._settings, self._flat, rows, mask_key)
        hidden = run.decode(target, run.encode(source))
        sums, hidden_gradient = sums_and_gradient(
            hidden.detach(),
            self._target_words,
            rows.target.flatten(),
            rows.target_segments.flatten(),
            self._label_smoothing,
            gradient_scale,
        )
        source_gradient, target_gradient = torch.autograd.grad(
            hidden, (source, target), hidden_gradient
        )
        add_embedding_gradient(
            rows.source, rows.source_segments, self._source_words, source_gradient
        )
        add_embedding_gradient(
            rows.target_input, rows.target_segments, self._target_words, target_gradient
        )
        return sums

    def _embed(self, tokens: Tensor, positions: Tensor, words: Weight) -> Tensor:
        return embed(tokens, positions, words, self._sinusoids).requires_grad_()


class _Pass:
    """One forward pass; each use of dropout gets the next number, so order matters.

    A branch joins the stream in the same kernel as the norm that follows it, so that each layer
    ends with the first norm of the next.
    """

    def __init__(
        self, settings: ModelSettings, flat: FlatWeights, rows: RowTensors, mask_key: Tensor
    ) -> None:
        self._settings, self._shape, self._flat = settings, shape_of(settings), flat
        self._rows = rows
        self._mask_key = mask_key
        self._sites = 0

    def encode(self, embedded: Tensor) -> Tensor:
        """Encode embedded source tokens [N, D]."""
        layers = [f"encoder.{index}" for index in range(self._shape.encoder_layers)]
        norms = [*(f"{layer}.attention_norm" for layer in layers), "encoder_norm"]
        stream, normed = self._add_norm(None, embedded, norms[0])
        for layer, next_norm in zip(layers, norms[1:], strict=True):
            branch = self._self_attention(normed, layer, self._rows.source_segments, causal=False)
            stream, normed = self._add_norm(stream, branch, f"{layer}.feed_forward_norm")
            branch = self._feed_forward(normed, layer)
            stream, normed = self._add_norm(stream, branch, next_norm, f"{layer}.feed_forward")
        return normed

    def decode(self, embedded: Tensor, encoded: Tensor) -> Tensor:
        """Decode embedded target tokens [N, D] into hidden states."""
        layers = [f"decoder.{index}" for index in range(self._shape.decoder_layers)]
        norms = [*(f"{layer}.attention_norm" for layer in layers), "decoder_norm"]
        # One product for the keys and values of all layers: their weights are adjacent.
        keys_values = self._flat.weight(*(f"{layer}.cross.key_value.weight" for layer in layers))
        memory = Memory(linear(encoded, keys_values))
        stream, normed = self._add_norm(None, embedded, norms[0])
        for index, (layer, next_norm) in enumerate(zip(layers, norms[1:], strict=True)):
            branch = self._self_attention(normed, layer, self._rows.target_segments, causal=True)
            stream, normed = self._add_norm(stream, branch, f"{layer}.cross_norm")
            branch = self._cross_attention(normed, layer, memory, index)
            stream, normed = self._add_norm(stream, branch, f"{layer}.feed_forward_norm")
            branch = self._feed_forward(normed, layer)
            stream, normed = self._add_norm(stream, branch, next_norm, f"{layer}.feed_forward")
        return normed

    def _self_attention(self, normed: Tensor, layer: str, segments: Tensor, causal: bool) -> Tensor:
        projected = linear(normed, self._flat.weight(f"{layer}.attention.query_key_value.weight"))
        attended = self_attention(projected, segments, self._attention_kind(causal))
        return linear(attended, self._flat.weight(f"{layer}.attention.output.weight"))

    def _cross_attention(self, normed: Tensor, layer: str, memory: Memory, index: int) -> Tensor:
        queries = linear(normed, self._flat.weight(f"{layer}.cross.query.weight"))
        attended = cross_attention(
            queries,
            memory,
            index,
            self._rows.target_segments,
            self._rows.source_segments,
            self._attention_kind(causal=False),
        )
        return linear(attended, self._flat.weight(f"{layer}.cross.output.weight"))

    def _feed_forward(self, normed: Tensor, layer: str) -> Tensor:
        return feed_forward(
            normed,
            self._flat.weight(f"{layer}.feed_forward.inner.weight"),
            self._flat.weight(f"{layer}.feed_forward.inner.bias"),
            self._flat.weight(f"{layer}.feed_forward.outer.weight"),
            self._dropout(self._settings.relu_dropout),
        )

    def _add_norm(
        self, stream: Tensor | None, branch: Tensor, norm: str, feed_forward: str = ""
    ) -> tuple[Tensor, Tensor]:
        """Add a branch to the stream, a feed-forward layer's with its outer bias, and norm it."""
        bias = self._flat.weight(f"{feed_forward}.outer.bias") if feed_forward else None
        weights = self._flat.weight(f"{norm}.weight"), self._flat.weight(f"{norm}.bias")
        dropout = self._dropout(self._settings.dropout)
        return add_norm(stream, branch, bias, weights, NORM_EPSILON, dropout)

    def _attention_kind(self, causal: bool) -> Kind:
        return Kind(self._shape.heads, causal, self._dropout(self._settings.attention_dropout))

    def _dropout(self, probability: float) -> Dropout:
        self._sites += 1
        return Dropout(probability, self._sites, self._mask_key)
