"""The decoder one word at a time, for many hypotheses at different positions.

Shapes: B slots, one sentence in each; K hypotheses of each sentence, R = B * K rows; L the longest
translation; M source tokens of all sentences, end to end; N layers, D d_model, H heads, V words.
"""

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Protocol

import torch
import torch.nn.functional as F
from torch import Tensor

from dragoman.model.transformer import NORM_EPSILON, Transformer, sinusoids

# The largest of many are looked for in the groups with the largest maxima: no other can hold them.
WORDS_IN_GROUP = 256


class DecoderWeights:
    """A model's weights in the type that its products are made in; those of norms in float32."""

    def __init__(self, model: Transformer, kind: torch.dtype, *, are_copies: bool) -> None:
        self.kind, self.shape = kind, model.shape
        self._model = model
        self._weights = {
            name: value.detach().to(value.dtype if "norm" in name else kind, copy=are_copies)
            for name, value in _decoder_parameters(model)
        }
        self._keys_values = self._all_keys_values()

    def refresh(self) -> None:
        """Copy the model's weights again, which may have changed; the copies stay in place."""
        for name, value in _decoder_parameters(self._model):
            self._weights[name].copy_(value)
        self._keys_values.copy_(self._all_keys_values())

    def __getitem__(self, name: str) -> Tensor:
        return self._weights[name]

    def memory(self, encoded: Tensor) -> Tensor:
        """Keys and values of the encoded source [M, D] for all layers, [M, N * 2 * D]."""
        return F.linear(encoded.to(self.kind), self._keys_values)

    def _all_keys_values(self) -> Tensor:
        layers = range(self.shape.decoder_layers)
        return torch.cat([self[f"decoder.{layer}.cross.key_value.weight"] for layer in layers])


def _decoder_parameters(model: Transformer) -> Iterator[tuple[str, Tensor]]:
    for name, value in model.named_parameters():
        if name.startswith(("decoder", "target_embedding")):
            yield name, value


@dataclass
class DecoderState:
    """What decoding remembers of each slot; a step changes it in place."""

    caches: Tensor  # [N, 2, R, L, D]: keys and values of the words so far, where they were made.
    ancestry: Tensor  # [B, K, L]: which of the slot's rows made a hypothesis's word at each place.
    positions: Tensor  # [B], of the word that comes in next.
    memory: Tensor  # [M, N * 2 * D], of all sentences.
    starts: Tensor  # [B]: where the slot's sentence starts there,
    lengths: Tensor  # [B]: and its tokens.
    sinusoids: Tensor  # [L, D]

    @property
    def beam(self) -> int:
        """K."""
        return self.ancestry.shape[1]

    def select(self, slots: Tensor) -> "DecoderState":
        """Keep only these slots."""
        beam = torch.arange(self.beam, device=slots.device)
        rows = (slots[:, None] * self.beam + beam).flatten()
        return DecoderState(
            self.caches[:, :, rows],
            self.ancestry[slots],
            self.positions[slots],
            self.memory,
            self.starts[slots],
            self.lengths[slots],
            self.sinusoids,
        )


def empty_state(
    weights: DecoderWeights, slots: int, beam: int, longest: int, memory: Tensor
) -> DecoderState:
    """A state of which no slot has a sentence yet."""
    shape, device = weights.shape, memory.device
    caches = shape.decoder_layers, 2, slots * beam, longest, shape.d_model
    places = torch.zeros(3, slots, dtype=torch.int64, device=device)
    return DecoderState(
        torch.zeros(caches, dtype=weights.kind, device=device),
        torch.zeros(slots, beam, longest, dtype=torch.int32, device=device),
        places[0],
        memory,
        places[1],
        places[2] + 1,
        sinusoids(torch.arange(longest, device=device), shape.d_model),
    )


class DecoderKernels(Protocol):
    """What a step is made of beside its matrix products."""

    def begin_step(self, state: DecoderState) -> None:
        """Look at the state once for all layers."""

    def sentences_changed(self) -> None:
        """Take note that slots have got other sentences, or are fewer."""

    def add_norm(
        self, stream: Tensor, branch: Tensor | None, norm: tuple[Tensor, Tensor]
    ) -> Tensor:
        """Add a branch to the stream [R, D], in place, and give its layer norm."""

    def attend_earlier(self, projected: Tensor, state: DecoderState, layer: int) -> Tensor:
        """Attend from new words to earlier ones; projected [R, 3 D] goes into the caches."""

    def attend_source(self, query: Tensor, state: DecoderState, layer: int) -> Tensor:
        """Attend from new words [R, D] to the sources of their sentences."""

    def best(self, logits: Tensor, scores: Tensor, count: int) -> tuple[Tensor, Tensor, Tensor]:
        """The best ways for the hypotheses of each slot to go on, as `best_candidates` has it."""


def decoder_step(
    weights: DecoderWeights, kernels: DecoderKernels, state: DecoderState, words: Tensor
) -> Tensor:
    """Logits [R, V] of the word after `words` [R], the next of each hypothesis."""
    rows = torch.arange(state.beam, dtype=torch.int32, device=words.device)[None, :, None]
    place = state.positions[:, None, None].expand(-1, state.beam, -1)
    state.ancestry.scatter_(2, place, rows.expand_as(place))
    kernels.begin_step(state)
    embedding = weights["target_embedding.weight"]
    places = state.sinusoids[state.positions].repeat_interleave(
        state.beam, dim=0, output_size=len(words)
    )
    stream = places.add_(F.embedding(words, embedding), alpha=math.sqrt(weights.shape.d_model))
    branch = None
    for layer in range(weights.shape.decoder_layers):
        name = f"decoder.{layer}"
        normed = kernels.add_norm(stream, branch, _both(weights, f"{name}.attention_norm"))
        projected = F.linear(normed, weights[f"{name}.attention.query_key_value.weight"])
        attended = kernels.attend_earlier(projected, state, layer)
        branch = F.linear(attended, weights[f"{name}.attention.output.weight"])
        normed = kernels.add_norm(stream, branch, _both(weights, f"{name}.cross_norm"))
        query = F.linear(normed, weights[f"{name}.cross.query.weight"])
        attended = kernels.attend_source(query, state, layer)
        branch = F.linear(attended, weights[f"{name}.cross.output.weight"])
        normed = kernels.add_norm(stream, branch, _both(weights, f"{name}.feed_forward_norm"))
        inner = F.linear(normed, *_both(weights, f"{name}.feed_forward.inner")).relu_()
        branch = F.linear(inner, *_both(weights, f"{name}.feed_forward.outer"))
    return F.linear(kernels.add_norm(stream, branch, _both(weights, "decoder_norm")), embedding)


def _both(weights: DecoderWeights, name: str) -> tuple[Tensor, Tensor]:
    """Weight and bias."""
    return weights[f"{name}.weight"], weights[f"{name}.bias"]


class PlainKernels:
    """In plain PyTorch: runs anywhere, and is what faster ones are compared with."""

    def __init__(self, weights: DecoderWeights) -> None:
        self._kind, self._heads = weights.kind, weights.shape.heads
        self._memory: Tensor | None = None

    def begin_step(self, state: DecoderState) -> None:
        """See how far the furthest has come: nobody needs to look beyond."""
        longest, beam = state.ancestry.shape[2], state.beam
        places = torch.arange(int(state.positions.max()) + 1, device=state.positions.device)
        seen = (places <= state.positions[:, None]).repeat_interleave(beam, dim=0)
        self._seen = seen[:, None, None]
        rows = torch.arange(len(seen), device=places.device)
        self._at = rows, state.positions.repeat_interleave(beam)
        first_rows = rows.view(-1, beam)[:, :1, None]
        made_by = first_rows + state.ancestry[:, :, : len(places)]
        self._ancestors = (made_by * longest + places).flatten()
        if self._memory is None:
            self._memory = self._gather_memory(state)

    def sentences_changed(self) -> None:
        """Forget the sources: slots have other sentences."""
        self._memory = None

    def add_norm(
        self, stream: Tensor, branch: Tensor | None, norm: tuple[Tensor, Tensor]
    ) -> Tensor:
        """Add a branch to the stream [R, D], in place, and give its layer norm."""
        if branch is not None:
            stream += branch
        return F.layer_norm(stream, stream.shape[1:], *norm, NORM_EPSILON).to(self._kind)

    def attend_earlier(self, projected: Tensor, state: DecoderState, layer: int) -> Tensor:
        """Attend from new words to earlier ones; projected [R, 3 D] goes into the caches."""
        query, *new = projected.chunk(3, dim=1)
        for cache, values in zip(state.caches[layer], new, strict=True):
            cache[self._at] = values
        keys, values = (self._earlier(cache, state.beam) for cache in state.caches[layer])
        return self._attend(query[:, None], keys, values, self._seen)

    def attend_source(self, query: Tensor, state: DecoderState, layer: int) -> Tensor:
        """Attend from new words [R, D] to the sources of their sentences."""
        assert self._memory is not None
        keys, values = self._memory[layer].chunk(2, dim=2)
        # The hypotheses of a sentence look at its source together, as if they were slots of a row.
        by_sentence = query.view(len(keys), state.beam, -1)
        return self._attend(by_sentence, keys, values, self._is_source)

    def best(self, logits: Tensor, scores: Tensor, count: int) -> tuple[Tensor, Tensor, Tensor]:
        """The best ways for the hypotheses of each slot to go on."""
        return best_candidates(logits, scores, count)

    def _earlier(self, cache: Tensor, beam: int) -> Tensor:
        """What is cached of each hypothesis's words [R, places, D]."""
        places = self._seen.shape[3]
        if beam == 1:
            return cache[:, :places]
        return cache.flatten(0, 1).index_select(0, self._ancestors).view(len(cache), places, -1)

    def _gather_memory(self, state: DecoderState) -> Tensor:
        """The sources of the slots' sentences [N, B, S, 2 D], as wide as the longest."""
        places = torch.arange(int(state.lengths.max()), device=state.memory.device)
        self._is_source = (places < state.lengths[:, None])[:, None, None]
        at = (state.starts[:, None] + places).clamp_(max=len(state.memory) - 1)
        by_layer = state.memory.view(len(state.memory), len(state.caches), -1)
        return torch.stack([by_layer[:, layer][at] for layer in range(len(state.caches))])

    def _attend(self, query: Tensor, keys: Tensor, values: Tensor, mask: Tensor) -> Tensor:
        query, keys, values = (
            one.view(*one.shape[:2], self._heads, -1).transpose(1, 2)
            for one in (query, keys, values)
        )
        attended = F.scaled_dot_product_attention(query, keys, values, mask)
        return attended.transpose(1, 2).reshape(-1, keys.shape[1] * keys.shape[3])


def best_candidates(logits: Tensor, scores: Tensor, count: int) -> tuple[Tensor, Tensor, Tensor]:
    """The best `count` ways for the hypotheses of each slot, with scores [B, K], to go on.

    Totals, parents among the slot's K rows, and words; each [B, count], best first.
    """
    logits = logits.float()
    values, words = largest(logits, min(count, logits.shape[1]))
    values = values - logits.logsumexp(dim=1, keepdim=True)
    totals = (scores[:, :, None] + values.view(*scores.shape, -1)).flatten(1)
    best, places = totals.topk(count, dim=1)
    return best, places // values.shape[1], words.view(len(scores), -1).gather(1, places)


def largest(logits: Tensor, count: int) -> tuple[Tensor, Tensor]:
    """The largest `count` of each row, and their places."""
    rows, words = logits.shape
    groups = words // WORDS_IN_GROUP
    if words % WORDS_IN_GROUP or groups <= count:
        found = logits.topk(count, dim=1)
        return found.values, found.indices
    grouped = logits.view(rows, groups, WORDS_IN_GROUP)
    chosen = grouped.amax(dim=2).topk(count, dim=1).indices
    candidates = grouped.gather(1, chosen[:, :, None].expand(-1, -1, WORDS_IN_GROUP)).flatten(1)
    values, places = candidates.topk(count, dim=1)
    group = chosen.gather(1, places // WORDS_IN_GROUP)
    return values, group * WORDS_IN_GROUP + places % WORDS_IN_GROUP
