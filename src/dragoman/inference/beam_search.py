"""Beam search with cached keys and values; a beam of 1 is greedy search.

Shapes: B sentences, K beam, V words. A live hypothesis is a row b * K + k.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from dragoman.model.transformer import Transformer


@dataclass(frozen=True)
class Hypothesis:
    """A finished translation: token ids without marks, and its length-normalised score."""

    tokens: tuple[int, ...]
    score: float


@dataclass(frozen=True)
class SearchOptions:
    """How to search."""

    beam: int
    length_penalty: float
    begin: int
    end: int


@torch.inference_mode()
def beam_search(
    model: Transformer,
    source: Tensor,
    segments: Tensor,
    longest: list[int],
    options: SearchOptions,
) -> list[list[Hypothesis]]:
    """Translate source [B, S], one sentence a row; best hypotheses first, at most K each.

    A sentence is done when K hypotheses have ended or when it reaches its own longest length,
    where the live ones are taken as they are.
    """
    beam, device = options.beam, source.device
    positions = torch.arange(source.shape[1], device=device).expand_as(source)
    encoded = model.encode(source, positions, segments)
    decoding = model.start_decoding(
        encoded.repeat_interleave(beam, dim=0),
        segments.repeat_interleave(beam, dim=0),
        max(longest),
    )
    finished: list[list[Hypothesis]] = [[] for _ in longest]
    active = list(range(len(longest)))  # The sentence of each group of K rows.
    tokens = torch.full((len(active) * beam, 1), options.begin, device=device)
    # At first all K rows are the same: only one of them may grow.
    scores = torch.full((len(active), beam), float("-inf"), device=device)
    scores[:, 0] = 0.0
    for length in range(1, max(longest) + 1):
        log_probabilities = model.decode_step(decoding, tokens[:, -1], length - 1)
        words = log_probabilities.shape[1]
        totals = (scores[:, :, None] + log_probabilities.view(len(active), beam, words)).flatten(1)
        # At most K of the best 2K can end, so K are left to live on.
        best, flat = totals.topk(2 * beam, dim=1)
        parents, chosen = flat // words, flat % words
        ends = chosen == options.end
        _collect_ended(finished, active, tokens, best, parents, ends, length, options)
        # Stable sort: the live candidates first, in the order of their scores.
        order = ends.to(torch.int8).argsort(dim=1, stable=True)[:, :beam]
        scores = best.gather(1, order).masked_fill(ends.gather(1, order), float("-inf"))
        parents, chosen = parents.gather(1, order), chosen.gather(1, order)
        rows = (parents + torch.arange(len(active), device=device)[:, None] * beam).flatten()
        tokens = torch.cat((tokens[rows], chosen.flatten()[:, None]), dim=1)
        keep = []
        for group, sentence in enumerate(active):
            if length >= longest[sentence]:
                _collect_live(finished[sentence], tokens, scores, group, length, options)
            elif len(finished[sentence]) < beam:
                keep.append(group)
        if not keep:
            break
        if len(keep) < len(active):
            groups = torch.tensor(keep, device=device)
            kept_rows = (groups[:, None] * beam + torch.arange(beam, device=device)).flatten()
            scores, tokens, rows = scores[groups], tokens[kept_rows], rows[kept_rows]
            active = [active[group] for group in keep]
            decoding = decoding.select(rows, length)
        elif beam > 1:
            decoding.reorder(rows, length)
    return [sorted(ended, key=lambda one: -one.score)[:beam] for ended in finished]


def _collect_ended(
    finished: list[list[Hypothesis]],
    active: list[int],
    tokens: Tensor,
    best: Tensor,
    parents: Tensor,
    ends: Tensor,
    length: int,
    options: SearchOptions,
) -> None:
    """Take over the hypotheses among the best K that end with this step."""
    beam = options.beam
    is_taken = ends[:, :beam] & (best[:, :beam] > float("-inf"))
    for group, rank in is_taken.nonzero().tolist():
        row = group * beam + int(parents[group, rank])
        score = float(best[group, rank]) / length**options.length_penalty
        finished[active[group]].append(Hypothesis(tuple(tokens[row, 1:].tolist()), score))


def _collect_live(
    finished: list[Hypothesis],
    tokens: Tensor,
    scores: Tensor,
    group: int,
    length: int,
    options: SearchOptions,
) -> None:
    """Take the live hypotheses of a sentence that may not grow any longer."""
    for rank in range(options.beam):
        if scores[group, rank] > float("-inf"):
            row = group * options.beam + rank
            score = float(scores[group, rank]) / length**options.length_penalty
            finished.append(Hypothesis(tuple(tokens[row, 1:].tolist()), score))
