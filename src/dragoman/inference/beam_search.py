"""Beam search with cached keys and values; a beam of 1 is greedy search.

Shapes: B sentences still held, K beam, V words, L the longest translation allowed. A live
hypothesis is a row b * K + k. All bookkeeping stays on the device, and on a GPU a step is recorded
once and replayed: starting its hundreds of kernels one by one would take longer than they do.
"""

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from dragoman.model.transformer import Transformer

# How often the host looks who is done, and how many may be left before the others are dropped:
# a look makes a GPU wait, and dropping copies all caches and records the step anew.
STEPS_BETWEEN_LOOKS = {"cpu": 1, "cuda": 8}
SHARE_HELD_UNTIL = {"cpu": 7 / 8, "cuda": 1 / 4}


@dataclass(frozen=True)
class Hypothesis:
    """A finished translation: token ids without marks, and its length-normalised score."""

    tokens: tuple[int, ...]
    score: float


@dataclass(frozen=True)
class SearchOptions:
    """How to search."""

    beam: int
    patience: int
    length_penalty: float
    begin: int
    end: int

    @property
    def hypotheses(self) -> int:
        """So many have to end before a sentence is done."""
        return self.beam * self.patience if self.beam > 1 else 1


@torch.inference_mode()
def beam_search(
    model: Transformer,
    source: Tensor,
    segments: Tensor,
    longest: list[int],
    options: SearchOptions,
) -> list[list[Hypothesis]]:
    """Translate source [B, S], one sentence a row; best hypotheses first, at most K each.

    A sentence is done when K times the patience have ended: with no more than K, poor short ones
    would often end it before the best. Or it is done when it reaches its own longest length, where
    the live ones are taken as they are.
    """
    search = _Search(model, source, segments, longest, options)
    device = source.device.type
    recorded = _Recorded(search.step) if device == "cuda" else None
    for length in range(1, max(longest) + 1):
        recorded.step() if recorded else search.step()
        if length % STEPS_BETWEEN_LOOKS[device]:
            continue
        is_done = search.is_done()
        if all(is_done):
            break
        if is_done.count(False) <= SHARE_HELD_UNTIL[device] * len(is_done):
            search.hold([place for place, done in enumerate(is_done) if not done])
            if recorded:
                recorded.is_current = False
    return search.finished.hypotheses(options)


class _Search:
    """The state of a search; a step changes it in place and never asks the host."""

    def __init__(
        self,
        model: Transformer,
        source: Tensor,
        segments: Tensor,
        longest: list[int],
        options: SearchOptions,
    ) -> None:
        self._model, self._options, device = model, options, source.device
        positions = torch.arange(source.shape[1], device=device).expand_as(source)
        encoded = model.encode(source, positions, segments)
        self._decoding = model.start_decoding(encoded, segments, max(longest), options.beam)
        shape = len(longest), options.beam
        # Fewer than wanted before a sentence's last step; then K may end, and K more be cut.
        most = options.hypotheses + 2 * options.beam
        self.finished = _Finished(len(longest), most, max(longest), device)
        self._sentences = torch.arange(len(longest), device=device)  # Those held, by their number.
        self._limits = torch.tensor(longest, device=device)
        self._tokens = torch.full((*shape, max(longest) + 1), options.begin, device=device)
        # At first all K rows are the same: only one of them may grow.
        self._scores = torch.full(shape, float("-inf"), device=device)
        self._scores[:, 0] = 0.0

    def step(self) -> None:
        """Let all live hypotheses grow by one word, and note those that end with it."""
        beam, sentences, finished = self._options.beam, self._sentences, self.finished
        last = self._tokens.index_select(2, self._decoding.position).flatten()
        following = self._model.decode_step(self._decoding, last)
        length = self._decoding.position  # Of the hypotheses with the new word.
        totals, parents, chosen = _best_candidates(self._scores, following)
        ends = chosen == self._options.end
        is_open = ~finished.is_done[sentences, None]
        is_ended = (ends & (totals > float("-inf")))[:, :beam] & is_open
        ended = _rows(self._tokens, parents[:, :beam])[:, :, 1:]
        finished.take(sentences, is_ended, ended, totals[:, :beam], length - 1, length)
        # Stable sort: the live candidates first, in the order of their scores.
        order = ends.to(torch.int8).argsort(dim=1, stable=True)[:, :beam]
        scores = totals.gather(1, order).masked_fill(ends.gather(1, order), float("-inf"))
        parents = parents.gather(1, order)
        tokens = _rows(self._tokens, parents)
        tokens.index_copy_(2, length, chosen.gather(1, order)[:, :, None])
        is_full = (length >= self._limits)[:, None] & is_open
        is_cut = is_full & (scores > float("-inf"))
        finished.take(sentences, is_cut, tokens[:, :, 1:], scores, length, length)
        is_enough = finished.counts[sentences] >= self._options.hypotheses
        finished.is_done[sentences] |= is_enough | is_full[:, 0]
        self._scores.copy_(scores)
        self._tokens.copy_(tokens)
        if beam > 1:
            first_rows = torch.arange(0, parents.numel(), beam, device=parents.device)
            self._decoding.reorder((parents + first_rows[:, None]).flatten())

    def is_done(self) -> list[bool]:
        """Whether each sentence held is done; waits for the device."""
        found: list[bool] = self.finished.is_done[self._sentences].tolist()
        return found

    def hold(self, places: list[int]) -> None:
        """Go on with these sentences of those held only."""
        beam, device = self._options.beam, self._scores.device
        held = torch.tensor(places, device=device)
        rows = (held[:, None] * beam + torch.arange(beam, device=device)).flatten()
        self._decoding = self._decoding.select(held, rows)
        self._sentences, self._limits = self._sentences[held], self._limits[held]
        self._scores, self._tokens = self._scores[held], self._tokens[held]


class _Recorded:
    """A step that is recorded when it is made for the first time, and replayed from then on."""

    def __init__(self, step: Callable[[], None]) -> None:
        self._step = step
        self._graph: torch.cuda.CUDAGraph | None = None
        self.is_current = False

    def step(self) -> None:
        """Make a step."""
        if self._graph and self.is_current:
            self._graph.replay()
            return
        self._step()
        graph = torch.cuda.CUDAGraph()
        # Not by torch.cuda.graph, which gives all cached memory back first: that takes longer
        # than many steps. The memory of the recording before this one is used again.
        pool = self._graph.pool() if self._graph else None
        with torch.cuda.stream(torch.cuda.Stream()):  # type: ignore[no-untyped-call]
            graph.capture_begin(pool, capture_error_mode="thread_local")
            self._step()
            graph.capture_end()
        self._graph, self.is_current = graph, True


def _best_candidates(scores: Tensor, log_probabilities: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """The best 2K of each sentence: totals, parents among its K rows, and words.

    At most K of them can end, so that K are left to live on.
    """
    beam, words = scores.shape[1], log_probabilities.shape[1]
    totals = scores[:, :, None] + log_probabilities.view(-1, beam, words)
    best, flat = totals.flatten(1).topk(2 * beam, dim=1)
    return best, flat // words, flat % words


def _rows(tokens: Tensor, parents: Tensor) -> Tensor:
    """The rows of tokens [B, K, L + 1] that parents [B, any] name within each sentence."""
    return tokens.gather(1, parents[:, :, None].expand(-1, -1, tokens.shape[2]))


class _Finished:
    """Hypotheses that have ended, of all sentences, on the device until all are done."""

    def __init__(self, sentences: int, most: int, longest: int, device: torch.device) -> None:
        # One more place takes what is not wanted, so that no shape depends on how many end.
        self._nowhere = most
        places = sentences, most + 1
        self.counts = torch.zeros(sentences, dtype=torch.int64, device=device)
        self.is_done = torch.zeros(sentences, dtype=torch.bool, device=device)
        self._tokens = torch.zeros(*places, longest, dtype=torch.int64, device=device)
        self._totals = torch.zeros(places, device=device)
        self._token_counts = torch.zeros(places, dtype=torch.int64, device=device)
        self._lengths = torch.zeros(places, dtype=torch.int64, device=device)

    def take(
        self,
        sentences: Tensor,
        is_wanted: Tensor,
        tokens: Tensor,
        totals: Tensor,
        token_count: Tensor,
        length: Tensor,
    ) -> None:
        """Note the wanted ones of hypotheses [B, K]; `length` counts the end mark, if any."""
        nth = self.counts[sentences, None] + is_wanted.cumsum(dim=1) - 1
        places = sentences[:, None], nth.masked_fill(~is_wanted, self._nowhere)
        self._tokens[places] = tokens
        self._totals[places] = totals
        self._token_counts[places] = token_count
        self._lengths[places] = length
        self.counts[sentences] += is_wanted.sum(dim=1)

    def hypotheses(self, options: SearchOptions) -> list[list[Hypothesis]]:
        """Bring them to the host, best first, at most K of each sentence."""
        counts, totals, lengths, token_counts = (
            one.tolist() for one in (self.counts, self._totals, self._lengths, self._token_counts)
        )
        every_token = self._tokens.cpu()
        found: list[list[Hypothesis]] = []
        for sentence, count in enumerate(counts):
            scores = [
                totals[sentence][place] / lengths[sentence][place] ** options.length_penalty
                for place in range(count)
            ]
            best = sorted(range(count), key=lambda place: -scores[place])[: options.beam]
            tokens = every_token[sentence, best].tolist()
            found.append(
                [
                    Hypothesis(tuple(line[: token_counts[sentence][place]]), scores[place])
                    for place, line in zip(best, tokens, strict=True)
                ]
            )
        return found
