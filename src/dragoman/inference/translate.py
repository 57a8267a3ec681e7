"""Raw text lines in, raw text lines out."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import pairwise

import torch

from dragoman.config import TranslationSettings
from dragoman.corpus.subwords import Subwords
from dragoman.corpus.text import normalize
from dragoman.inference.beam_search import (
    BeamSearch,
    Room,
    arithmetic_type,
    beam_search,
    can_record,
)
from dragoman.inference.hypotheses import Hypothesis, SearchOptions
from dragoman.model.transformer import Transformer

# A GPU decodes so many times translation.batch_tokens side by side, all hypotheses counted, and
# encodes so many before it starts. A few sentences go through a search of their own size.
GPU_DECODED, GPU_ENCODED = 64, 32
FEW_SENTENCES = 16


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
    tag: str = ""  # Put before every line, and before every piece of one.


# The best hypotheses of each sentence of a batch, best first.
Search = Callable[[Sequence[Sequence[int]]], list[list[Hypothesis]]]


@dataclass(frozen=True)
class Translator:
    """A model with its vocabularies."""

    model: Transformer
    text: TextSides
    device: torch.device
    # What was recorded on a GPU, by slots: what it is for, and the search.
    _recorded: dict[int, tuple[object, BeamSearch]] = field(
        default_factory=dict, init=False, repr=False, compare=False
    )

    def translate(
        self,
        lines: Sequence[str],
        settings: TranslationSettings,
        n_best: int = 1,
        on_progress: Callable[[int], None] = lambda _: None,
    ) -> list[list[Translation]]:
        """Translate lines in any number and shape; as many come out, in the same order."""
        is_recorded = can_record(self.device)
        return translate_text(
            lines,
            self.text,
            lambda sentences: self._search(sentences, settings, n_best),
            (GPU_ENCODED if is_recorded else 1) * settings.batch_tokens,
            n_best,
            on_progress,
            groups_by_length if is_recorded else batches_by_length,
        )

    def _search(
        self, sentences: Sequence[Sequence[int]], settings: TranslationSettings, n_best: int
    ) -> list[list[Hypothesis]]:
        beam, target = max(settings.beam, n_best), self.text.target
        options = SearchOptions(
            beam, settings.patience, settings.length_penalty, target.begin, target.end, n_best
        )
        longest = [longest_output(len(sentence)) for sentence in sentences]
        if not can_record(self.device):
            return beam_search(self.model, sentences, longest, options)
        room = self._room(len(sentences), settings.batch_tokens, beam)
        purpose = room, options, arithmetic_type(self.device)
        known = self._recorded.get(room.slots)
        if known is None or known[0] != purpose:
            self._recorded.pop(room.slots, None)  # Its memory is needed.
            search = BeamSearch(self.model, options, room, is_recorded=True)
            known = self._recorded[room.slots] = purpose, search
        return known[1].search(sentences, longest)

    def _room(self, sentences: int, batch_tokens: int, beam: int) -> Room:
        """Room for these sentences, and for any others that come like them."""
        most = self.text.max_tokens
        encoded = max(GPU_ENCODED * batch_tokens, most)
        if sentences <= FEW_SENTENCES and FEW_SENTENCES * most <= encoded:
            slots, sentences, encoded = FEW_SENTENCES, FEW_SENTENCES, FEW_SENTENCES * most
        else:
            slots, sentences = GPU_DECODED * batch_tokens // (most * beam), most_sentences(encoded)
        return Room(max(slots, 1), sentences, encoded, longest_output(most))


def translate_text(
    lines: Sequence[str],
    text: TextSides,
    search: Search,
    batch_tokens: int,
    n_best: int,
    on_progress: Callable[[int], None],
    in_batches: Callable[[Sequence[int], int], Iterator[list[int]]] | None = None,
) -> list[list[Translation]]:
    """Cut lines into pieces that the search can take, search batch by batch, and join."""
    in_batches = in_batches or batches_by_length
    normal = [normalize(line, text.normalize_punctuation).strip() for line in lines]
    tag = [token for token in [text.source.tag(text.tag)] if text.tag and token is not None]
    pieces = [
        (index, [*tag, *piece])
        for index, tokens in enumerate(text.source.encode(normal))
        if len(tokens) > 1  # Nothing but the end mark: an empty line stays empty.
        for piece in split_evenly(tokens, max(2, text.max_tokens - len(tag)))
    ]
    # Progress is counted in lines: a long one counts with its last piece, an empty one at once.
    counted = set({index: place for place, (index, _) in enumerate(pieces)}.values())
    on_progress(len(lines) - len(counted))
    found: list[list[Hypothesis]] = [[] for _ in pieces]
    for batch in in_batches([len(piece) for _, piece in pieces], batch_tokens):
        hypotheses = search([pieces[place][1] for place in batch])
        for place, best in zip(batch, hypotheses, strict=True):
            # A model that has come to no numbers finds nothing.
            found[place] = best or [Hypothesis((), float("-inf"))]
        on_progress(len(counted.intersection(batch)))
    by_line: list[list[list[Hypothesis]]] = [[] for _ in lines]
    for (index, _), best in zip(pieces, found, strict=True):
        by_line[index].append(best)
    return _join(by_line, text.target, n_best)


def _join(
    by_line: Sequence[list[list[Hypothesis]]], target: Subwords, n_best: int
) -> list[list[Translation]]:
    """Put the pieces of each line together; one without content translates to nothing."""
    chosen = [
        [best[min(rank, len(best) - 1)] for best in parts]
        for parts in by_line
        for rank in range(n_best)
    ]
    # All at once: threads are started for every call.
    pieces = iter(target.decode([one.tokens for parts in chosen for one in parts]))
    translations = [
        Translation(
            one_line(" ".join(next(pieces) for _ in parts)),
            sum(one.score for one in parts) / len(parts) if parts else 0.0,
        )
        for parts in chosen
    ]
    return [translations[start : start + n_best] for start in range(0, len(translations), n_best)]


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


def groups_by_length(lengths: Sequence[int], group_tokens: int) -> Iterator[list[int]]:
    """Group sentences, the longest first, that lie end to end and so need no like lengths."""
    group: list[int] = []
    tokens = 0
    for index in sorted(range(len(lengths)), key=lambda index: -lengths[index]):
        is_full = len(group) == most_sentences(group_tokens)
        if group and (is_full or tokens + lengths[index] > group_tokens):
            yield group
            group, tokens = [], 0
        group.append(index)
        tokens += lengths[index]
    if group:
        yield group


def most_sentences(group_tokens: int) -> int:
    """Sentences that a group may have: what is kept of each has a price of its own."""
    return max(1, group_tokens // 16)
