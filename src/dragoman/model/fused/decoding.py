"""The kernels of a decoder's step: nothing in them depends on the host, so that it can be replayed.

Shapes as in `dragoman.model.decoding`.
"""

import torch
import triton
import triton.language as tl
from torch import Tensor

from dragoman.model.decoding import DecoderState, DecoderWeights, best_candidates
from dragoman.model.transformer import NORM_EPSILON

PLACES_AT_ONCE = 32
WORDS_AT_ONCE = 8_192
WIDEST_BEAM = 16  # Candidates of wider ones do not fit into a program.


class FusedDecoderKernels:
    """What a step is made of beside its matrix products, in Triton."""

    def __init__(self, weights: DecoderWeights) -> None:
        self._kind, self._heads = weights.kind, weights.shape.heads

    def begin_step(self, state: DecoderState) -> None:
        """Nothing to do: every program looks for itself."""

    def sentences_changed(self) -> None:
        """Nothing to do: sources are read where they are."""

    def add_norm(
        self, stream: Tensor, branch: Tensor | None, norm: tuple[Tensor, Tensor]
    ) -> Tensor:
        """Add a branch to the stream [R, D], in place, and give its layer norm."""
        rows, width = stream.shape
        normed = torch.empty_like(stream, dtype=self._kind)
        _add_norm[(rows,)](
            stream,
            stream if branch is None else branch,
            *norm,
            normed,
            width,
            NORM_EPSILON,
            HAS_BRANCH=branch is not None,
            COLUMNS=triton.next_power_of_2(width),
            num_warps=4,
        )
        return normed

    def attend_earlier(self, projected: Tensor, state: DecoderState, layer: int) -> Tensor:
        """Attend from new words to earlier ones; projected [R, 3 D] goes into the caches."""
        rows, width = len(projected), projected.shape[1] // 3
        output = projected.new_empty(rows, width)
        keys, values = state.caches[layer]
        _attend_earlier[(self._heads, rows)](
            projected,
            keys,
            values,
            state.ancestry,
            state.positions,
            output,
            width,
            keys.shape[1],
            (width // self._heads) ** -0.5,
            **self._sizes(width, state),
        )
        return output

    def attend_source(self, query: Tensor, state: DecoderState, layer: int) -> Tensor:
        """Attend from new words [R, D] to the sources of their sentences."""
        rows, width = query.shape
        output = torch.empty_like(query)
        _attend_source[(self._heads, rows)](
            query,
            state.memory[:, 2 * layer * width :],
            state.starts,
            state.lengths,
            output,
            width,
            state.memory.shape[1],
            (width // self._heads) ** -0.5,
            **self._sizes(width, state),
        )
        return output

    def best(self, logits: Tensor, scores: Tensor, count: int) -> tuple[Tensor, Tensor, Tensor]:
        """The best ways for the hypotheses of each slot to go on."""
        slots, beam = scores.shape
        rows, words = logits.shape
        if beam > WIDEST_BEAM or words < count:
            return best_candidates(logits, scores, count)
        part_size = min(WORDS_AT_ONCE, triton.next_power_of_2(words))
        parts = triton.cdiv(words, part_size)
        values = scores.new_empty(rows, parts, count)
        places = torch.empty_like(values, dtype=torch.int32)
        log_sums = scores.new_empty(rows, parts)
        _largest_of_part[(parts, rows)](
            logits, values, places, log_sums, words, COUNT=count, WORDS=part_size, num_warps=8
        )
        totals = scores.new_empty(slots, count)
        parents, chosen = (torch.empty_like(totals, dtype=torch.int64) for _ in range(2))
        _largest_of_slot[(slots,)](
            values,
            places,
            log_sums,
            scores,
            totals,
            parents,
            chosen,
            words,
            COUNT=count,
            PARTS=parts,
            BEAM=beam,
            SIZE=triton.next_power_of_2(beam * parts * count),
            num_warps=1,
        )
        return totals, parents, chosen

    def _sizes(self, width: int, state: DecoderState) -> dict[str, int]:
        head_width = width // self._heads
        return {
            "BEAM": state.beam,
            "HEAD_WIDTH": head_width,
            "COLUMNS": triton.next_power_of_2(head_width),
            "PLACES": PLACES_AT_ONCE,
            "num_warps": 2,
        }


@triton.jit
def _add_norm(
    stream_ptr,
    branch_ptr,
    weight_ptr,
    bias_ptr,
    output_ptr,
    width,
    epsilon,
    HAS_BRANCH: tl.constexpr,
    COLUMNS: tl.constexpr,
):
    column = tl.arange(0, COLUMNS)
    inside = column < width
    offsets = tl.program_id(0).to(tl.int64) * width + column
    stream = tl.load(stream_ptr + offsets, mask=inside, other=0.0)
    if HAS_BRANCH:
        stream += tl.load(branch_ptr + offsets, mask=inside, other=0.0).to(tl.float32)
        tl.store(stream_ptr + offsets, stream, mask=inside)
    mean = tl.sum(stream, axis=0) / width
    centred = tl.where(inside, stream - mean, 0.0)
    variance = tl.sum(centred * centred, axis=0) / width
    weight = tl.load(weight_ptr + column, mask=inside, other=0.0)
    bias = tl.load(bias_ptr + column, mask=inside, other=0.0)
    normed = centred / tl.sqrt(variance + epsilon) * weight + bias
    tl.store(output_ptr + offsets, normed.to(output_ptr.dtype.element_ty), mask=inside)


@triton.jit
def _attend_to_block(query, keys, values, seen, largest, total, output):
    """One more block of keys and values, after which all weights are relative to its largest."""
    scores = tl.where(seen, tl.sum(keys.to(tl.float32) * query[None, :], axis=1), float("-inf"))
    new_largest = tl.maximum(largest, tl.max(scores, axis=0))
    correction = tl.exp(largest - new_largest)
    weights = tl.exp(scores - new_largest)
    attended = tl.sum(weights[:, None] * values.to(tl.float32), axis=0)
    return new_largest, total * correction + tl.sum(weights, axis=0), output * correction + attended


@triton.jit
def _attend_earlier(
    projected_ptr,
    key_ptr,
    value_ptr,
    ancestry_ptr,
    position_ptr,
    output_ptr,
    width,
    longest,
    scale,
    BEAM: tl.constexpr,
    HEAD_WIDTH: tl.constexpr,
    COLUMNS: tl.constexpr,
    PLACES: tl.constexpr,
):
    row = tl.program_id(1).to(tl.int64)
    position = tl.load(position_ptr + row // BEAM).to(tl.int32)
    index = tl.arange(0, COLUMNS)
    inside = index < HEAD_WIDTH
    column = tl.program_id(0) * HEAD_WIDTH + index
    own = projected_ptr + row * 3 * width + column
    query = tl.load(own, mask=inside, other=0.0).to(tl.float32) * scale
    key = tl.load(own + width, mask=inside, other=0.0)
    value = tl.load(own + 2 * width, mask=inside, other=0.0)
    new = (row * longest + position) * width + column
    tl.store(key_ptr + new, key, mask=inside)
    tl.store(value_ptr + new, value, mask=inside)
    # The new word sees itself first.
    largest = tl.sum(query * key.to(tl.float32), axis=0)
    total = tl.exp(largest - largest)
    output = value.to(tl.float32)
    for start in range(0, position, PLACES):
        place = start + tl.arange(0, PLACES)
        seen = place < position
        ancestor = tl.load(ancestry_ptr + row * longest + place, mask=seen, other=0)
        made_by = row // BEAM * BEAM + ancestor
        offsets = (made_by * longest + place)[:, None] * width + column[None, :]
        mask = seen[:, None] & inside[None, :]
        keys = tl.load(key_ptr + offsets, mask=mask, other=0.0)
        values = tl.load(value_ptr + offsets, mask=mask, other=0.0)
        largest, total, output = _attend_to_block(query, keys, values, seen, largest, total, output)
    attended = (output / total).to(output_ptr.dtype.element_ty)
    tl.store(output_ptr + row * width + column, attended, mask=inside)


@triton.jit
def _attend_source(
    query_ptr,
    memory_ptr,
    start_ptr,
    length_ptr,
    output_ptr,
    width,
    memory_stride,
    scale,
    BEAM: tl.constexpr,
    HEAD_WIDTH: tl.constexpr,
    COLUMNS: tl.constexpr,
    PLACES: tl.constexpr,
):
    row = tl.program_id(1).to(tl.int64)
    first = tl.load(start_ptr + row // BEAM)
    length = tl.load(length_ptr + row // BEAM).to(tl.int32)
    index = tl.arange(0, COLUMNS)
    inside = index < HEAD_WIDTH
    column = tl.program_id(0) * HEAD_WIDTH + index
    query = tl.load(query_ptr + row * width + column, mask=inside, other=0.0)
    query = query.to(tl.float32) * scale
    largest = tl.sum(query, axis=0) * 0.0 - 1e30
    total = largest * 0.0
    output = query * 0.0
    for start in range(0, length, PLACES):
        place = start + tl.arange(0, PLACES)
        seen = place < length
        offsets = (first + place)[:, None] * memory_stride + column[None, :]
        mask = seen[:, None] & inside[None, :]
        keys = tl.load(memory_ptr + offsets, mask=mask, other=0.0)
        values = tl.load(memory_ptr + offsets + width, mask=mask, other=0.0)
        largest, total, output = _attend_to_block(query, keys, values, seen, largest, total, output)
    attended = (output / total).to(output_ptr.dtype.element_ty)
    tl.store(output_ptr + row * width + column, attended, mask=inside)


@triton.jit
def _largest_of_part(
    logit_ptr,
    value_ptr,
    place_ptr,
    log_sum_ptr,
    words,
    COUNT: tl.constexpr,
    WORDS: tl.constexpr,
):
    """The largest logits of a part of a row, and the logarithm of its sum of exponentials."""
    part, row = tl.program_id(0), tl.program_id(1).to(tl.int64)
    word = part * WORDS + tl.arange(0, WORDS)
    inside = word < words
    logits = tl.load(logit_ptr + row * words + word, mask=inside, other=float("-inf"))
    logits = logits.to(tl.float32)
    largest = tl.max(logits, axis=0)
    at = row * tl.num_programs(0) + part
    tl.store(log_sum_ptr + at, largest + tl.log(tl.sum(tl.exp(logits - largest), axis=0)))
    for nth in range(COUNT):
        value, place = tl.max(logits, axis=0, return_indices=True)
        tl.store(value_ptr + at * COUNT + nth, value)
        tl.store(place_ptr + at * COUNT + nth, part * WORDS + place)
        logits = tl.where(word == part * WORDS + place, float("-inf"), logits)


@triton.jit
def _largest_of_slot(
    value_ptr,
    place_ptr,
    log_sum_ptr,
    score_ptr,
    total_ptr,
    parent_ptr,
    word_ptr,
    words,
    COUNT: tl.constexpr,
    PARTS: tl.constexpr,
    BEAM: tl.constexpr,
    SIZE: tl.constexpr,
):
    """The best candidates of all hypotheses of a slot."""
    slot = tl.program_id(0).to(tl.int64)
    index = tl.arange(0, SIZE)
    inside = index < BEAM * PARTS * COUNT
    parent = index // (PARTS * COUNT)
    row = slot * BEAM + parent
    largest = tl.full([SIZE], float("-inf"), tl.float32)
    for part in range(PARTS):
        sums = tl.load(log_sum_ptr + row * PARTS + part, mask=inside, other=0.0)
        largest = tl.maximum(largest, sums)
    total = tl.zeros([SIZE], tl.float32)
    for part in range(PARTS):
        sums = tl.load(log_sum_ptr + row * PARTS + part, mask=inside, other=0.0)
        total += tl.exp(sums - largest)
    at = slot * BEAM * PARTS * COUNT + index
    values = tl.load(value_ptr + at, mask=inside, other=0.0)
    scores = tl.load(score_ptr + row, mask=inside, other=0.0)
    candidates = tl.where(inside, scores + values - largest - tl.log(total), float("-inf"))
    for nth in range(COUNT):
        best, chosen = tl.max(candidates, axis=0, return_indices=True)
        # Where nothing is a number, any place may come out.
        chosen = tl.minimum(chosen, BEAM * PARTS * COUNT - 1)
        word = tl.load(place_ptr + slot * BEAM * PARTS * COUNT + chosen)
        tl.store(total_ptr + slot * COUNT + nth, best)
        tl.store(parent_ptr + slot * COUNT + nth, (chosen // (PARTS * COUNT)).to(tl.int64))
        tl.store(word_ptr + slot * COUNT + nth, tl.minimum(word, words - 1).to(tl.int64))
        candidates = tl.where(index == chosen, float("-inf"), candidates)
