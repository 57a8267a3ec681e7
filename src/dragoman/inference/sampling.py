"""Translations drawn at random from the model's distribution, for text that others learn from.

Shapes: B sentences, N translations of each, V words. A row is one translation, b * N + n.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from hashlib import blake2b

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from dragoman.config import TranslationSettings
from dragoman.corpus.order import keyed_hash
from dragoman.documents import item
from dragoman.inference.beam_search import Hypothesis
from dragoman.inference.translate import Translation, Translator, longest_output, translate_text
from dragoman.model.transformer import Transformer


@dataclass(frozen=True)
class Sampling:
    """How to draw."""

    top_k: int = item("from so many likeliest words; 0: from all", minimum=0)
    temperature: float = item("below 1 likelier words come more often, above 1 less often")
    seed: int = item("of what is drawn", minimum=0)


@dataclass(frozen=True)
class SampleOptions:
    """How to draw, how many, and what translations begin and end with."""

    sampling: Sampling
    count: int
    length_penalty: float
    begin: int
    end: int


def sample_lines(
    translator: Translator,
    lines: Sequence[str],
    settings: TranslationSettings,
    count: int,
    sampling: Sampling,
) -> list[list[Translation]]:
    """Draw `count` translations of each line; the same line gets the same ones anywhere."""
    target = translator.text.target
    options = SampleOptions(sampling, count, settings.length_penalty, target.begin, target.end)

    def draw(sentences: Sequence[Sequence[int]]) -> list[list[Hypothesis]]:
        longest = [longest_output(len(sentence)) for sentence in sentences]
        return sample(translator.model, sentences, longest, options)

    return translate_text(
        lines, translator.text, draw, settings.batch_tokens, count, lambda _: None
    )


@torch.inference_mode()
def sample(
    model: Transformer,
    sentences: Sequence[Sequence[int]],
    longest: Sequence[int],
    options: SampleOptions,
) -> list[list[Hypothesis]]:
    """Draw N translations of each sentence, in no order."""
    count, end, sampling = options.count, options.end, options.sampling
    decoder = _Decoder(model, sentences, max(longest), count)
    limits = torch.tensor(longest, device=decoder.device).repeat_interleave(count)
    rows = len(limits)
    tokens = torch.full((rows, max(longest) + 1), options.begin, device=decoder.device)
    totals = torch.zeros(rows, device=decoder.device)
    lengths = torch.zeros_like(limits)
    is_open = torch.ones(rows, dtype=torch.bool, device=decoder.device)
    keys = _keys(sentences, count)
    for step in range(1, max(longest) + 1):
        following = decoder.following(tokens[:, step - 1])
        chosen = _draw(following, _uniform(keys, sampling.seed, step), sampling)
        chosen = chosen.masked_fill(~is_open, end)
        tokens[:, step] = chosen
        totals += following.gather(1, chosen[:, None])[:, 0].masked_fill(~is_open, 0.0)
        lengths += is_open
        is_open &= (chosen != end) & (step < limits)
        if not is_open.any():
            break
    found = [
        Hypothesis(_words(row[1 : length + 1], end), total / length**options.length_penalty)
        for row, length, total in zip(
            tokens.tolist(), lengths.tolist(), totals.tolist(), strict=True
        )
    ]
    return [found[first : first + count] for first in range(0, rows, count)]


class _Decoder:
    """The model, one word of each row after the other."""

    def __init__(
        self, model: Transformer, sentences: Sequence[Sequence[int]], longest: int, count: int
    ) -> None:
        self.device = model.target_embedding.weight.device
        rows = [torch.tensor(sentence, device=self.device) for sentence in sentences]
        source = nn.utils.rnn.pad_sequence(rows, batch_first=True)
        ones = [torch.ones_like(row) for row in rows]
        segments = nn.utils.rnn.pad_sequence(ones, batch_first=True)
        positions = torch.arange(source.shape[1], device=self.device).expand_as(source)
        encoded = model.encode(source, positions, segments)
        self._model = model
        self._decoding = model.start_decoding(encoded, segments, longest, count)

    def following(self, words: Tensor) -> Tensor:
        """Log-probabilities [rows, V] of the word after these, which come next in each row."""
        return self._model.decode_step(self._decoding, words)


def _keys(sentences: Sequence[Sequence[int]], count: int) -> NDArray[np.uint64]:
    """A number for each row that follows from its sentence alone.

    So what is drawn for a line depends neither on the lines around it nor on where a text was cut.
    """
    hashes = [
        int.from_bytes(blake2b(np.array(one, np.int64).tobytes(), digest_size=8).digest())
        for one in sentences
    ]
    each = np.repeat(np.array(hashes, dtype=np.uint64), count)
    return each + np.tile(np.arange(count, dtype=np.uint64), len(sentences))


def _uniform(keys: NDArray[np.uint64], seed: int, step: int) -> Tensor:
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
