"""Attention within the segments of packed rows, forward and backward.

A program handles one head of one row. Attention weights are made again in the backward pass, from
the scores and the saved logarithms of their sums: nothing of size queries x keys is ever stored.
All logarithms are of base two, because powers of two are what the hardware has.
"""

import triton
import triton.language as tl

from dragoman.model.fused.dropout import is_kept, site_keys


@triton.jit
def _sees(query_segments, query_slot, key_segments, key_slot, IS_CAUSAL: tl.constexpr):
    """Same segment, not padding, not the future; arguments are rows or columns of the result."""
    seen = (query_segments == key_segments) & (query_segments > 0)
    if IS_CAUSAL:
        seen = seen & (query_slot >= key_slot)
    return seen


@triton.jit
def _blocks_meet(
    query_segments,
    key_segments,
    query_start,
    key_start,
    QUERY_BLOCK: tl.constexpr,
    IS_CAUSAL: tl.constexpr,
):
    """Whether any query of a block may see any key of a block; segments are in rising order."""
    first_key_segment = tl.min(tl.where(key_segments > 0, key_segments, 1 << 30))
    first_query_segment = tl.min(tl.where(query_segments > 0, query_segments, 1 << 30))
    meet = tl.max(query_segments) >= first_key_segment
    meet = meet & (tl.max(key_segments) >= first_query_segment)
    if IS_CAUSAL:
        meet = meet & (key_start < query_start + QUERY_BLOCK)
    return meet


@triton.jit(do_not_specialize=["site"])
def forward_kernel(
    query_ptr,
    key_ptr,
    value_ptr,
    output_ptr,
    log_sum_ptr,
    query_segments_ptr,
    key_segments_ptr,
    mask_key_ptr,
    site,
    query_stride,
    key_stride,
    scale,
    HEADS: tl.constexpr,
    QUERY_SLOTS: tl.constexpr,
    KEY_SLOTS: tl.constexpr,
    HEAD_WIDTH: tl.constexpr,
    QUERY_BLOCK: tl.constexpr,
    KEY_BLOCK: tl.constexpr,
    IS_CAUSAL: tl.constexpr,
    DROP_THRESHOLD: tl.constexpr,
    KEEP_SCALE: tl.constexpr,
):
    """Outputs of one block of queries."""
    LOG2_E: tl.constexpr = 1.4426950408889634
    row = tl.program_id(0) // HEADS
    head = tl.program_id(0) % HEADS
    query_start = tl.program_id(1) * QUERY_BLOCK
    query_slot = query_start + tl.arange(0, QUERY_BLOCK)
    column = head * HEAD_WIDTH + tl.arange(0, HEAD_WIDTH)[None, :]
    query_token = (row * QUERY_SLOTS + query_slot).to(tl.int64)
    queries = tl.load(query_ptr + query_token[:, None] * query_stride + column)
    query_segments = tl.load(query_segments_ptr + query_token)
    maximum = tl.full([QUERY_BLOCK], float("-inf"), tl.float32)
    total = tl.zeros([QUERY_BLOCK], tl.float32)
    output = tl.zeros([QUERY_BLOCK, HEAD_WIDTH], tl.float32)
    if DROP_THRESHOLD > 0:
        first, second = site_keys(mask_key_ptr, site)
    for key_start in range(0, KEY_SLOTS, KEY_BLOCK):
        key_slot = key_start + tl.arange(0, KEY_BLOCK)
        key_token = (row * KEY_SLOTS + key_slot).to(tl.int64)
        key_segments = tl.load(key_segments_ptr + key_token)
        if KEY_SLOTS == KEY_BLOCK or _blocks_meet(
            query_segments, key_segments, query_start, key_start, QUERY_BLOCK, IS_CAUSAL
        ):
            key_offsets = key_token[:, None] * key_stride + column
            keys = tl.load(key_ptr + key_offsets)
            values = tl.load(value_ptr + key_offsets)
            scores = tl.dot(queries, tl.trans(keys), input_precision="ieee") * (scale * LOG2_E)
            seen = _sees(
                query_segments[:, None],
                query_slot[:, None],
                key_segments[None, :],
                key_slot[None, :],
                IS_CAUSAL,
            )
            scores = tl.where(seen, scores, float("-inf"))
            new_maximum = tl.maximum(maximum, tl.max(scores, axis=1))
            # A query that has seen no key yet must not compute inf - inf.
            reference = tl.where(new_maximum == float("-inf"), 0.0, new_maximum)
            weights = tl.exp2(scores - reference[:, None])
            correction = tl.exp2(maximum - reference)
            total = total * correction + tl.sum(weights, axis=1)
            if DROP_THRESHOLD > 0:
                query_place = (tl.program_id(0) * QUERY_SLOTS + query_slot)[:, None]
                index = query_place * KEY_SLOTS + key_slot[None, :]
                weights = tl.where(is_kept(index, first, second, DROP_THRESHOLD), weights, 0.0)
            output = output * correction[:, None]
            output += tl.dot(weights.to(values.dtype), values, input_precision="ieee")
            maximum = new_maximum
    # Padding has seen nothing: its output is zero.
    total = tl.where(total == 0.0, 1.0, total)
    output = output * (KEEP_SCALE / total)[:, None]
    output_offsets = query_token[:, None] * (HEADS * HEAD_WIDTH) + column
    tl.store(output_ptr + output_offsets, output.to(output_ptr.dtype.element_ty))
    reference = tl.where(maximum == float("-inf"), 0.0, maximum)
    log_sums = reference + tl.log2(total)
    tl.store(log_sum_ptr + tl.program_id(0) * QUERY_SLOTS + query_slot, log_sums)


@triton.jit
def _score_gradients(
    queries,
    keys,
    values,
    output_gradient,
    log_sums,
    delta,
    seen,
    index,
    first,
    second,
    scale,
    DROP_THRESHOLD: tl.constexpr,
    KEEP_SCALE: tl.constexpr,
):
    """Dropped-out weights and gradients of the scores, both [keys, queries]."""
    LOG2_E: tl.constexpr = 1.4426950408889634
    scores = tl.dot(keys, tl.trans(queries), input_precision="ieee") * (scale * LOG2_E)
    weights = tl.where(seen, tl.exp2(scores - log_sums[None, :]), 0.0)
    weight_gradient = tl.dot(values, tl.trans(output_gradient), input_precision="ieee")
    dropped = weights
    if DROP_THRESHOLD > 0:
        kept = is_kept(index, first, second, DROP_THRESHOLD)
        dropped = tl.where(kept, weights * KEEP_SCALE, 0.0)
        weight_gradient = tl.where(kept, weight_gradient * KEEP_SCALE, 0.0)
    return dropped, weights * (weight_gradient - delta[None, :])


@triton.jit(do_not_specialize=["site"])
def backward_kernel(
    query_ptr,
    key_ptr,
    value_ptr,
    output_ptr,
    log_sum_ptr,
    output_gradient_ptr,
    query_gradient_ptr,
    key_gradient_ptr,
    value_gradient_ptr,
    query_segments_ptr,
    key_segments_ptr,
    mask_key_ptr,
    site,
    query_stride,
    key_stride,
    scale,
    HEADS: tl.constexpr,
    QUERY_SLOTS: tl.constexpr,
    KEY_SLOTS: tl.constexpr,
    HEAD_WIDTH: tl.constexpr,
    QUERY_BLOCK: tl.constexpr,
    KEY_BLOCK: tl.constexpr,
    IS_CAUSAL: tl.constexpr,
    STAGES: tl.constexpr,
    DROP_THRESHOLD: tl.constexpr,
    KEEP_SCALE: tl.constexpr,
):
    """Gradients of one block of keys and values, then of one block of queries."""
    # If one block holds all keys, whole rows of scores are at hand: queries get their gradient
    # on the way, and the second half has nothing left to do.
    HAS_ALL_KEYS: tl.constexpr = KEY_SLOTS == KEY_BLOCK
    row = tl.program_id(0) // HEADS
    column = (tl.program_id(0) % HEADS) * HEAD_WIDTH + tl.arange(0, HEAD_WIDTH)[None, :]
    first = tl.full([], 0, tl.uint32)
    second = tl.full([], 0, tl.uint32)
    if DROP_THRESHOLD > 0:
        first, second = site_keys(mask_key_ptr, site)
    key_start = tl.program_id(1) * KEY_BLOCK
    if key_start < KEY_SLOTS:
        key_slot = key_start + tl.arange(0, KEY_BLOCK)
        key_token = (row * KEY_SLOTS + key_slot).to(tl.int64)
        key_offsets = key_token[:, None] * key_stride + column
        keys = tl.load(key_ptr + key_offsets)
        values = tl.load(value_ptr + key_offsets)
        key_segments = tl.load(key_segments_ptr + key_token)
        key_gradient = tl.zeros([KEY_BLOCK, HEAD_WIDTH], tl.float32)
        value_gradient = tl.zeros([KEY_BLOCK, HEAD_WIDTH], tl.float32)
        for query_start in tl.range(0, QUERY_SLOTS, QUERY_BLOCK, num_stages=STAGES):
            query_slot = query_start + tl.arange(0, QUERY_BLOCK)
            query_token = (row * QUERY_SLOTS + query_slot).to(tl.int64)
            query_segments = tl.load(query_segments_ptr + query_token)
            if HAS_ALL_KEYS or _blocks_meet(
                query_segments, key_segments, query_start, key_start, QUERY_BLOCK, IS_CAUSAL
            ):
                query_place = tl.program_id(0) * QUERY_SLOTS + query_slot
                query_offsets = query_token[:, None] * query_stride + column
                output_offsets = query_token[:, None] * (HEADS * HEAD_WIDTH) + column
                queries = tl.load(query_ptr + query_offsets)
                output_gradient = tl.load(output_gradient_ptr + output_offsets)
                log_sums = tl.load(log_sum_ptr + query_place)
                outputs = tl.load(output_ptr + output_offsets).to(tl.float32)
                delta = tl.sum(outputs * output_gradient.to(tl.float32), axis=1)
                seen = _sees(
                    query_segments[None, :],
                    query_slot[None, :],
                    key_segments[:, None],
                    key_slot[:, None],
                    IS_CAUSAL,
                )
                dropped, score_gradient = _score_gradients(
                    queries,
                    keys,
                    values,
                    output_gradient,
                    log_sums,
                    delta,
                    seen,
                    query_place[None, :] * KEY_SLOTS + key_slot[:, None],
                    first,
                    second,
                    scale,
                    DROP_THRESHOLD,
                    KEEP_SCALE,
                )
                score_gradient = score_gradient.to(queries.dtype)
                dropped = dropped.to(queries.dtype)
                value_gradient += tl.dot(dropped, output_gradient, input_precision="ieee")
                key_gradient += tl.dot(score_gradient, queries, input_precision="ieee")
                if HAS_ALL_KEYS:
                    query_gradient = tl.dot(tl.trans(score_gradient), keys, input_precision="ieee")
                    rounded = (query_gradient * scale).to(query_gradient_ptr.dtype.element_ty)
                    tl.store(query_gradient_ptr + query_offsets, rounded)
        key_gradient = (key_gradient * scale).to(key_gradient_ptr.dtype.element_ty)
        tl.store(key_gradient_ptr + key_offsets, key_gradient)
        value_gradient = value_gradient.to(value_gradient_ptr.dtype.element_ty)
        tl.store(value_gradient_ptr + key_offsets, value_gradient)
    query_start = tl.program_id(1) * QUERY_BLOCK
    if not HAS_ALL_KEYS and query_start < QUERY_SLOTS:
        query_slot = query_start + tl.arange(0, QUERY_BLOCK)
        query_token = (row * QUERY_SLOTS + query_slot).to(tl.int64)
        query_place = tl.program_id(0) * QUERY_SLOTS + query_slot
        query_offsets = query_token[:, None] * query_stride + column
        output_offsets = query_token[:, None] * (HEADS * HEAD_WIDTH) + column
        query_segments = tl.load(query_segments_ptr + query_token)
        queries = tl.load(query_ptr + query_offsets)
        output_gradient = tl.load(output_gradient_ptr + output_offsets)
        log_sums = tl.load(log_sum_ptr + query_place)
        outputs = tl.load(output_ptr + output_offsets).to(tl.float32)
        delta = tl.sum(outputs * output_gradient.to(tl.float32), axis=1)
        query_gradient = tl.zeros([QUERY_BLOCK, HEAD_WIDTH], tl.float32)
        for key_start in range(0, KEY_SLOTS, KEY_BLOCK):
            key_slot = key_start + tl.arange(0, KEY_BLOCK)
            key_token = (row * KEY_SLOTS + key_slot).to(tl.int64)
            key_segments = tl.load(key_segments_ptr + key_token)
            if _blocks_meet(
                query_segments, key_segments, query_start, key_start, QUERY_BLOCK, IS_CAUSAL
            ):
                key_offsets = key_token[:, None] * key_stride + column
                keys = tl.load(key_ptr + key_offsets)
                values = tl.load(value_ptr + key_offsets)
                seen = _sees(
                    query_segments[None, :],
                    query_slot[None, :],
                    key_segments[:, None],
                    key_slot[:, None],
                    IS_CAUSAL,
                )
                dropped, score_gradient = _score_gradients(
                    queries,
                    keys,
                    values,
                    output_gradient,
                    log_sums,
                    delta,
                    seen,
                    query_place[None, :] * KEY_SLOTS + key_slot[:, None],
                    first,
                    second,
                    scale,
                    DROP_THRESHOLD,
                    KEEP_SCALE,
                )
                score_gradient = tl.trans(score_gradient.to(queries.dtype))
                query_gradient += tl.dot(score_gradient, keys, input_precision="ieee")
        rounded = (query_gradient * scale).to(query_gradient_ptr.dtype.element_ty)
        tl.store(query_gradient_ptr + query_offsets, rounded)
