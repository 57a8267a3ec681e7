"""Label-smoothed cross entropy and its gradient in one pass, a few logits at a time."""

import torch
import triton
import triton.language as tl
from torch import Tensor

from dragoman.model.fused.flat_weights import Weight
from dragoman.model.fused.product import add_product

# Logits of this many tokens exist at a time: with 32,768 words they take 256 MiB.
TOKENS_AT_ONCE = 4096
WORDS_AT_ONCE, WARPS = 8192, 8


def sums_and_gradient(
    hidden: Tensor,
    words: Weight,
    labels: Tensor,
    segments: Tensor,
    label_smoothing: float,
    gradient_scale: Tensor,
) -> tuple[Tensor, Tensor]:
    """Loss and nll summed over real tokens [2], and gradient_scale x the gradient of hidden.

    The gradient of the words is added to theirs at once: everything is made while the logits of
    a few tokens exist.
    """
    tokens = len(hidden)
    losses = torch.empty(tokens, 2, device=hidden.device)
    hidden_gradient = torch.empty_like(hidden)
    logits = hidden.new_empty(min(tokens, TOKENS_AT_ONCE), len(words.copy))
    for start in range(0, tokens, TOKENS_AT_ONCE):
        part = slice(start, min(tokens, start + TOKENS_AT_ONCE))
        some = torch.mm(hidden[part], words.copy.t(), out=logits[: part.stop - start])
        cross_entropy_in_place(
            some, labels[part], segments[part], losses[part], label_smoothing, gradient_scale
        )
        torch.mm(some, words.copy, out=hidden_gradient[part])
        add_product(words.gradient, some, hidden[part])
    return losses.sum(dim=0), hidden_gradient


def cross_entropy_in_place(
    logits: Tensor,
    labels: Tensor,
    segments: Tensor,
    losses: Tensor,
    label_smoothing: float,
    gradient_scale: Tensor,
) -> None:
    """Write loss and nll of each token to losses [tokens, 2], and gradients over the logits."""
    words = logits.shape[1]
    block = min(WORDS_AT_ONCE, triton.next_power_of_2(words))
    _cross_entropy[(len(logits),)](
        logits,
        labels,
        segments,
        losses,
        gradient_scale,
        words,
        label_smoothing,
        BLOCK=block,
        IS_EVEN=words % block == 0,
        num_warps=WARPS,
    )


@triton.jit
def _cross_entropy(
    logits_ptr,
    label_ptr,
    segment_ptr,
    losses_ptr,
    gradient_scale_ptr,
    words,
    smoothing,
    BLOCK: tl.constexpr,
    IS_EVEN: tl.constexpr,
):
    LOG2_E: tl.constexpr = 1.4426950408889634
    token = tl.program_id(0)
    row_ptr = logits_ptr + token.to(tl.int64) * words
    if tl.load(segment_ptr + token) == 0:
        tl.store(losses_ptr + 2 * token, 0.0)
        tl.store(losses_ptr + 2 * token + 1, 0.0)
        for start in range(0, words, BLOCK):
            word = start + tl.arange(0, BLOCK)
            nothing = tl.zeros([BLOCK], logits_ptr.dtype.element_ty)
            tl.store(row_ptr + word, nothing, mask=word < words)
    else:
        label = tl.load(label_ptr + token)
        label_logit = tl.load(row_ptr + label).to(tl.float32)
        maximum = float("-inf")
        total = 0.0
        logit_sum = 0.0
        for start in range(0, words, BLOCK):
            word = start + tl.arange(0, BLOCK)
            if IS_EVEN:
                logits = tl.load(row_ptr + word).to(tl.float32)
                logit_sum += tl.sum(logits, axis=0)
            else:
                inside = word < words
                logits = tl.load(row_ptr + word, mask=inside, other=float("-inf")).to(tl.float32)
                logit_sum += tl.sum(tl.where(inside, logits, 0.0), axis=0)
            new_maximum = tl.maximum(maximum, tl.max(logits, axis=0))
            powers = tl.exp2(logits * LOG2_E - new_maximum * LOG2_E)
            total = total * tl.exp2((maximum - new_maximum) * LOG2_E) + tl.sum(powers, axis=0)
            maximum = new_maximum
        log_total = maximum + tl.log(total)
        nll = log_total - label_logit
        spread_loss = log_total - logit_sum / words
        tl.store(losses_ptr + 2 * token, (1.0 - smoothing) * nll + smoothing * spread_loss)
        tl.store(losses_ptr + 2 * token + 1, nll)
        # Every thread must have read the label's logit before any thread overwrites it.
        tl.debug_barrier()
        scale = tl.load(gradient_scale_ptr)
        spread = smoothing / words
        for start in range(0, words, BLOCK):
            word = start + tl.arange(0, BLOCK)
            inside = word < words
            logits = tl.load(row_ptr + word, mask=inside, other=float("-inf")).to(tl.float32)
            gradient = (tl.exp2(logits * LOG2_E - log_total * LOG2_E) - spread) * scale
            tl.store(row_ptr + word, gradient.to(logits_ptr.dtype.element_ty), mask=inside)
        # The label's own gradient is one number: written last, it spares a comparison per word.
        tl.debug_barrier()
        probability = tl.exp2((label_logit - log_total) * LOG2_E)
        label_gradient = (probability - spread - (1.0 - smoothing)) * scale
        tl.store(row_ptr + label, label_gradient.to(logits_ptr.dtype.element_ty))
