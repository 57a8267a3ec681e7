"""Words drawn from the model's distribution, for synthetic training text.

Shapes: B translations in the making, one of each sentence or several; V words.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from hashlib import blake2b

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from dragoman.corpus.order import GOLDEN, MIXERS, keyed_hash
from dragoman.documents import item
from dragoman.model.decoding import WORDS_IN_GROUP, largest


@dataclass(frozen=True)
class Sampling:
    """How to draw."""

    top_k: int = item("sample from this many most likely words; 0: from all", minimum=0)
    temperature: float = item("below 1 likely words are sampled more often, above 1 less often")
    seed: int = item("of the sampling", minimum=0)


def sentence_keys(
    sentences: Sequence[Sequence[int]], count: int, sampling: Sampling
) -> NDArray[np.int64]:
    """A number for each of `count` translations of a sentence that follows from it and the seed.

    So what is drawn for a line depends neither on the lines around it nor on where a text was cut.
    """
    hashes = [
        int.from_bytes(blake2b(np.array(one, np.int64).tobytes(), digest_size=8).digest())
        for one in sentences
    ]
    each = np.repeat(np.array(hashes, dtype=np.uint64), count)
    apart = each + np.tile(np.arange(count, dtype=np.uint64), len(sentences))
    return keyed_hash(apart, sampling.seed).view(np.int64)


def uniform(keys: Tensor, step: Tensor) -> Tensor:
    """A number from 0 up to 1 for each key [B] and step [B]: `keyed_hash` on any device."""
    mixed = keys + (step + 1) * _signed(GOLDEN)
    for shift, factor in MIXERS:
        mixed = (mixed ^ _shifted(mixed, shift)) * _signed(factor)
    # Its last shift, by 31, changes none of the highest bits; 24 are as many as float32 has.
    return _shifted(mixed, 40).float() / (1 << 24)


def draw(
    logits: Tensor, scores: Tensor, numbers: Tensor, sampling: Sampling
) -> tuple[Tensor, Tensor, Tensor]:
    """Go on with one word: totals, parents and words as `best_candidates` has them, each [B, 1]."""
    following = logits.log_softmax(dim=1, dtype=torch.float32)
    if 0 < sampling.top_k < following.shape[1]:
        candidates, places = largest(following, sampling.top_k)
        words = places.gather(1, _place(candidates, numbers, sampling.temperature))
    else:
        words = _place(following, numbers, sampling.temperature)
    return scores + following.gather(1, words), torch.zeros_like(words), words


def _place(log_probabilities: Tensor, numbers: Tensor, temperature: float) -> Tensor:
    """The place [B, 1] at which the sum of all probabilities up to it passes the number."""
    if temperature != 1:
        most = log_probabilities.amax(dim=1, keepdim=True)
        log_probabilities = (log_probabilities - most) / temperature
    rows, words = log_probabilities.shape
    weights, share = log_probabilities.exp(), numbers[:, None]
    if words % WORDS_IN_GROUP:
        return _pass(weights, share)[0]
    # First among groups of words, then in that group: sums over all words are slow on a GPU.
    grouped = weights.view(rows, -1, WORDS_IN_GROUP)
    group, share = _pass(grouped.sum(dim=2), share)
    chosen = grouped.gather(1, group[:, :, None].expand(-1, -1, WORDS_IN_GROUP))[:, 0]
    return group * WORDS_IN_GROUP + _pass(chosen, share)[0]


def _pass(weights: Tensor, share: Tensor) -> tuple[Tensor, Tensor]:
    """Where sums pass this share of their total, and the share of that weight they need for it."""
    sums = weights.cumsum(dim=1)
    wanted = share * sums[:, -1:]
    # Not beyond the last sum, which rounding may leave short of the total.
    place = torch.searchsorted(sums, wanted, right=True).clamp_(max=weights.shape[1] - 1)
    beyond = (sums.gather(1, place) - wanted) / weights.gather(1, place)
    return place, (1 - beyond).clamp(0, 1)


def _shifted(values: Tensor, bits: int) -> Tensor:
    """Shift to the right as if there were no signs."""
    return (values >> bits) & ((1 << (64 - bits)) - 1)


def _signed(value: int) -> int:
    return value - (1 << 64)
