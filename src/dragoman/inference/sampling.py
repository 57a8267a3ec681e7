"""Translations sampled from the model's distribution, for synthetic training text.

Shapes: B sentences, N translations of each, V words. A row is one translation, b * N + n.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from hashlib import blake2b

import numpy as np
import torch
from torch import Tensor

from dragoman.corpus.order import keyed_hash
from dragoman.documents import item
from dragoman.inference.beam_search import arithmetic_type, encode
from dragoman.inference.hypotheses import Hypothesis
from dragoman.model.attention import kernels_for_any_shape
from dragoman.model.decoding import DecoderWeights, PlainKernels, decoder_step, empty_state
from dragoman.model.transformer import Transformer

SHARE_LEFT = 0.5  # Of a batch's sentences: with fewer it goes on without those that are done.


@dataclass(frozen=True)
class Sampling:
    """How to draw."""

    top_k: int = item("sample from this many most likely words; 0: from all", minimum=0)
    temperature: float = item("below 1 likely words are sampled more often, above 1 less often")
    seed: int = item("of the sampling", minimum=0)


@dataclass(frozen=True)
class SampleOptions:
    """How to draw, how many, and what translations begin and end with."""

    sampling: Sampling
    count: int
    length_penalty: float
    begin: int
    end: int


@torch.inference_mode()
def sample(
    model: Transformer,
    sentences: Sequence[Sequence[int]],
    longest: Sequence[int],
    options: SampleOptions,
) -> list[list[Hypothesis]]:
    """Draw N translations of each sentence, in no order."""
    count, sampling = options.count, options.sampling
    device = model.target_embedding.weight.device
    weights = DecoderWeights(model, arithmetic_type(device), are_copies=False)
    encoded = encode(model, sentences, device)
    drawn, all_keys = _Drawn(longest, options, device), _keys(sentences, count)
    keys = all_keys
    # Every step has a shape of its own, for which cuDNN would plan.
    with torch.autocast(device.type, enabled=False), kernels_for_any_shape():
        kernels = PlainKernels(weights)
        state = empty_state(weights, len(sentences), count, max(longest), weights.memory(encoded))
        source = torch.tensor(list(map(len, sentences)), device=device)
        state.lengths.copy_(source)
        state.starts.copy_(source.cumsum(dim=0) - source)
        for step in range(1, max(longest) + 1):
            logits = decoder_step(weights, kernels, state, drawn.tokens[drawn.rows, step - 1])
            state.positions += 1
            following = logits.float().log_softmax(dim=1)
            chosen = _draw(following, _uniform(keys, sampling.seed, step), sampling)
            is_going = drawn.add(step, chosen, following)
            left = int(is_going.sum())
            if not left:
                break
            if left <= SHARE_LEFT * len(is_going):
                slots = is_going.nonzero().flatten()
                state = state.select(slots)
                kernels.sentences_changed()
                keys = all_keys[drawn.keep(slots)]
    return drawn.hypotheses()


class _Drawn:
    """The translations of a batch, and the rows of those sentences that are not done."""

    def __init__(
        self, longest: Sequence[int], options: SampleOptions, device: torch.device
    ) -> None:
        self._options = options
        self._limits = torch.tensor(longest, device=device).repeat_interleave(options.count)
        size = len(self._limits), max(longest) + 1
        self.tokens = torch.full(size, options.begin, device=device)
        self._totals = torch.zeros(size[0], device=device)
        self._lengths = torch.zeros_like(self._limits)
        self._is_open = torch.ones(size[0], dtype=torch.bool, device=device)
        self.rows = torch.arange(size[0], device=device)

    def add(self, step: int, chosen: Tensor, following: Tensor) -> Tensor:
        """Add a word to each row; tell which sentences have translations that go on."""
        rows, end = self.rows, self._options.end
        was_open = self._is_open[rows]
        chosen = chosen.masked_fill(~was_open, end)
        self.tokens[rows, step] = chosen
        gained = following.gather(1, chosen[:, None])[:, 0]
        self._totals[rows] += gained.masked_fill(~was_open, 0.0)
        self._lengths[rows] += was_open
        goes_on = was_open & (chosen != end) & (step < self._limits[rows])
        self._is_open[rows] = goes_on
        return goes_on.view(-1, self._options.count).any(dim=1)

    def keep(self, slots: Tensor) -> np.ndarray:
        """Go on with these of the sentences only; give their rows."""
        self.rows = self.rows.view(-1, self._options.count)[slots].flatten()
        kept: np.ndarray = self.rows.cpu().numpy()
        return kept

    def hypotheses(self) -> list[list[Hypothesis]]:
        """All of them, by sentence."""
        end, penalty, count = self._options.end, self._options.length_penalty, self._options.count
        found = [
            Hypothesis(_words(row[1 : length + 1], end), total / length**penalty)
            for row, length, total in zip(
                self.tokens.tolist(), self._lengths.tolist(), self._totals.tolist(), strict=True
            )
        ]
        return [found[first : first + count] for first in range(0, len(found), count)]


def _keys(sentences: Sequence[Sequence[int]], count: int) -> np.ndarray:
    """A number for each row that follows from its sentence alone.

    So what is drawn for a line depends neither on the lines around it nor on where a text was cut.
    """
    hashes = [
        int.from_bytes(blake2b(np.array(one, np.int64).tobytes(), digest_size=8).digest())
        for one in sentences
    ]
    each = np.repeat(np.array(hashes, dtype=np.uint64), count)
    return each + np.tile(np.arange(count, dtype=np.uint64), len(sentences))


def _uniform(keys: np.ndarray, seed: int, step: int) -> Tensor:
    """A number from 0 up to 1 for each row."""
    drawn = keyed_hash(keys, seed, step) >> np.uint64(40)  # As many bits as float32 has.
    return torch.from_numpy(drawn.astype(np.float32) / np.float32(1 << 24))


def _draw(log_probabilities: Tensor, uniform: Tensor, sampling: Sampling) -> Tensor:
    """The word of each row at which the sum of all probabilities up to it passes the number."""
    if not 0 < sampling.top_k < log_probabilities.shape[1]:
        return _place(log_probabilities, uniform, sampling.temperature)
    candidates, words = log_probabilities.topk(sampling.top_k, dim=1)
    return words.gather(1, _place(candidates, uniform, sampling.temperature)[:, None])[:, 0]


def _place(log_probabilities: Tensor, uniform: Tensor, temperature: float) -> Tensor:
    sums = (log_probabilities / temperature).softmax(dim=1).cumsum(dim=1)
    # Not beyond the last sum, which rounding may leave short of 1.
    wanted = uniform.to(sums.device)[:, None] * sums[:, -1:]
    places = torch.searchsorted(sums, wanted, right=True)
    return places.clamp_(max=sums.shape[1] - 1)[:, 0]


def _words(tokens: list[int], end: int) -> tuple[int, ...]:
    return tuple(tokens[:-1] if tokens[-1] == end else tokens)
