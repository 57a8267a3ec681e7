"""Raw text lines in, raw text lines out."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
import torch

from dragoman.config import TranslationSettings
from dragoman.corpus.subwords import Subwords
from dragoman.corpus.text import normalize
from dragoman.inference.beam_search import Hypothesis, SearchOptions, beam_search
from dragoman.model.transformer import Transformer

# Steps cost a GPU time, not tokens: it decodes so many times translation.batch_tokens at a time.
GPU_BATCHES = 4


@dataclass(frozen=True)
class Translation:
    """One translation of a line; the score is the length-normalised log-probability."""

    text: str
    score: float


@dataclass(frozen=True)
class TextSides:
    """How a line becomes token ids, and token ids a line."""

    source: Subwords
    target: Subwords
    normalize_punctuation: bool
    max_tokens: int  # Longer lines than in training are translated in pieces.


# The best hypotheses of each sentence of a batch, best first.
Search = Callable[[Sequence[Sequence[int]]], list[list[Hypothesis]]]


@dataclass(frozen=True)
class Translator:
    """A model with its vocabularies."""

    model: Transformer
    text: TextSides
    device: torch.device

    def translate(
        self,
        lines: Sequence[str],
        settings: TranslationSettings,
        n_best: int = 1,
        on_progress: Callable[[int], None] = lambda _: None,
    ) -> list[list[Translation]]:
        """Translate lines in any number and shape; as many come out, in the same order."""
        batches = GPU_BATCHES if self.device.type == "cuda" else 1
        return translate_text(
            lines,
            self.text,
            lambda sentences: self._search(sentences, settings, n_best),
            batches * settings.batch_tokens,
            n_best,
            on_progress,
        )

    def _search(
        self, sentences: Sequence[Sequence[int]], settings: TranslationSettings, n_best: int
    ) -> list[list[Hypothesis]]:
        width = max(map(len, sentences))
        source = np.zeros((len(sentences), width), dtype=np.int64)
        segments = np.zeros_like(source)
        for row, sentence in enumerate(sentences):
            source[row, : len(sentence)] = sentence
            segments[row, : len(sentence)] = 1
        beam, target = max(settings.beam, n_best), self.text.target
        options = SearchOptions(
            beam, settings.patience, settings.length_penalty, target.begin, target.end
        )
        return beam_search(
            self.model,
            torch.from_numpy(source).to(self.device),
            torch.from_numpy(segments).to(self.device),
            [longest_output(len(sentence)) for sentence in sentences],
            options,
        )


def translate_text(
    lines: Sequence[str],
    text: TextSides,
    search: Search,
    batch_tokens: int,
    n_best: int,
    on_progress: Callable[[int], None],
) -> list[list[Translation]]:
    """Cut lines into pieces that the search can take, search batch by batch, and join."""
    normal = [normalize(line, text.normalize_punctuation).strip() for line in lines]
    pieces = [
        (index, piece)
        for index, tokens in enumerate(text.source.encode(normal))
        if len(tokens) > 1  # Nothing but the end mark: an empty line stays empty.
        for piece in split_evenly(tokens, text.max_tokens)
    ]
    # Progress is counted in lines: a long one counts with its last piece, an empty one at once.
    counted = set({index: place for place, (index, _) in enumerate(pieces)}.values())
    on_progress(len(lines) - len(counted))
    found: list[list[Hypothesis]] = [[] for _ in pieces]
    for batch in batches_by_length([len(piece) for _, piece in pieces], batch_tokens):
        hypotheses = search([pieces[place][1] for place in batch])
        for place, best in zip(batch, hypotheses, strict=True):
            # A model that has come to no numbers finds nothing.
            found[place] = best or [Hypothesis((), float("-inf"))]
        on_progress(len(counted.intersection(batch)))
    by_line: list[list[list[Hypothesis]]] = [[] for _ in lines]
    for (index, _), best in zip(pieces, found, strict=True):
        by_line[index].append(best)
    return [_join(parts, text.target, n_best) for parts in by_line]


def _join(parts: list[list[Hypothesis]], target: Subwords, n_best: int) -> list[Translation]:
    """Put the pieces of a line together; one without content translates to nothing."""
    if not parts:
        return [Translation("", 0.0)] * n_best
    ranked = []
    for rank in range(n_best):
        chosen = [best[min(rank, len(best) - 1)] for best in parts]
        text = " ".join(target.decode([one.tokens for one in chosen]))
        ranked.append(Translation(one_line(text), sum(one.score for one in chosen) / len(chosen)))
    return ranked


def longest_output(source_tokens: int) -> int:
    """Most tokens a translation may have, the end mark included."""
    return 2 * source_tokens + 16


def one_line(text: str) -> str:
    """Keep a line a line: byte pieces could spell a line end."""
    return text.replace("\r", " ").replace("\n", " ")


def split_evenly(tokens: Sequence[int], most: int) -> list[list[int]]:
    """Cut a line with its end mark into pieces of nearly equal length, each with the end mark."""
    *body, end = tokens
    count = -(-len(body) // (most - 1))
    borders = [len(body) * index // count for index in range(count + 1)]
    return [[*body[start:stop], end] for start, stop in pairwise(borders)]


def batches_by_length(lengths: Sequence[int], batch_tokens: int) -> Iterator[list[int]]:
    """Group sentences of like length, the longest first, so that memory fails early or never."""
    batch: list[int] = []
    for index in sorted(range(len(lengths)), key=lambda index: -lengths[index]):
        longest = lengths[batch[0]] if batch else lengths[index]
        if batch and longest * (len(batch) + 1) > batch_tokens:
            yield batch
            batch = []
        batch.append(index)
    if batch:
        yield batch
