"""Raw text lines in, raw text lines out."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import pairwise

import torch

from dragoman.config import TranslationSettings
from dragoman.corpus.subwords import Subwords
from dragoman.corpus.text import normalize
from dragoman.inference.beam_search import (
    BeamSearch,
    arithmetic_type,
    beam_search,
    can_record,
)
from dragoman.inference.hypotheses import Hypothesis, SearchOptions
from dragoman.inference.room import (
    FEW_SENTENCES,
    SizeOfSearch,
    free_bytes,
    room_for_few,
    room_for_many,
)
from dragoman.inference.sampling import Sampling
from dragoman.model.transformer import Transformer


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
# The same, told the longest translation of each.
Find = Callable[[Sequence[Sequence[int]], Sequence[int]], list[list[Hypothesis]]]
# Places of sentences, by their lengths, in batches.
InBatches = Callable[[Sequence[int]], Iterator[list[int]]]


@dataclass(frozen=True)
class Translator:
    """A model with its vocabularies."""

    model: Transformer
    text: TextSides
    device: torch.device
    # What was recorded on a GPU, for few sentences and for many: its purpose, and the search.
    _recorded: dict[bool, tuple[object, BeamSearch]] = field(
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
        target, penalty = self.text.target, settings.length_penalty
        beam = max(settings.beam, n_best)
        options = SearchOptions(beam, settings.patience, penalty, target.begin, target.end, n_best)
        return self._find(lines, options, settings.batch_tokens, n_best, on_progress)

    def sample(
        self, lines: Sequence[str], settings: TranslationSettings, count: int, sampling: Sampling
    ) -> list[list[Translation]]:
        """Draw `count` translations of each line; the same line gets the same ones anywhere."""
        target, penalty = self.text.target, settings.length_penalty
        options = SearchOptions(1, 1, penalty, target.begin, target.end, count, sampling)
        return self._find(lines, options, settings.batch_tokens, count, lambda _: None)

    def _find(
        self,
        lines: Sequence[str],
        options: SearchOptions,
        batch_tokens: int,
        n_best: int,
        on_progress: Callable[[int], None],
    ) -> list[list[Translation]]:
        find: Find = partial(beam_search, self.model, options=options)
        in_batches: InBatches = partial(batches_by_length, batch_tokens=batch_tokens)
        if can_record(self.device):
            is_few = len(lines) * options.copies <= FEW_SENTENCES
            recorded = self._recorded_search(options, batch_tokens, is_few=is_few)
            find, room = recorded.search, recorded.room
            most = room.sentences // options.copies
            in_batches = partial(groups_by_length, most_tokens=room.source_tokens, most=most)

        def search(sentences: Sequence[Sequence[int]]) -> list[list[Hypothesis]]:
            return find(sentences, [longest_output(len(sentence)) for sentence in sentences])

        return translate_text(
            lines, self.text, search, batch_tokens, n_best, on_progress, in_batches
        )

    def _recorded_search(
        self, options: SearchOptions, batch_tokens: int, *, is_few: bool
    ) -> BeamSearch:
        """A search that has been recorded for this before, or a new one in its place."""
        kind, most = arithmetic_type(self.device), self.text.max_tokens
        purpose = options, batch_tokens, kind
        known = self._recorded.pop(is_few, None)
        if known is None or known[0] != purpose:
            known = None  # Before anything new is made: its memory is needed.
            longest = longest_output(most)
            words = len(self.model.target_embedding.weight)
            size = SizeOfSearch(self.model.shape, words, kind, options.beam)
            room = (
                room_for_few(most, longest)
                if is_few
                else room_for_many(size, batch_tokens, most, longest, free_bytes(self.device))
            )
            room = replace(room, sentences=max(room.sentences, options.copies))
            known = purpose, BeamSearch(self.model, options, room, is_recorded=True)
        self._recorded[is_few] = known
        return known[1]


def translate_text(
    lines: Sequence[str],
    text: TextSides,
    search: Search,
    batch_tokens: int,
    n_best: int,
    on_progress: Callable[[int], None],
    in_batches: InBatches | None = None,
) -> list[list[Translation]]:
    """Cut lines into pieces that the search can take, search batch by batch, and join.

    The batches are of like lengths with so many tokens, unless told otherwise.
    """
    in_batches = in_batches or partial(batches_by_length, batch_tokens=batch_tokens)
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
    for batch in in_batches([len(piece) for _, piece in pieces]):
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


def groups_by_length(lengths: Sequence[int], most_tokens: int, most: int) -> Iterator[list[int]]:
    """Group sentences, the longest first, that lie end to end and so need no like lengths."""
    group: list[int] = []
    tokens = 0
    for index in sorted(range(len(lengths)), key=lambda index: -lengths[index]):
        if group and (len(group) == most or tokens + lengths[index] > most_tokens):
            yield group
            group, tokens = [], 0
        group.append(index)
        tokens += lengths[index]
    if group:
        yield group
