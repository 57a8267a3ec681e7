"""Hypotheses of a beam search, on the device until all sentences are done.

Shapes: N sentences and one more, that of slots which have none; B slots, K beam, L the longest
translation. What a hypothesis says is kept as a tree: each node names a word and the one before.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from dragoman.inference.sampling import Sampling


@dataclass(frozen=True)
class Hypothesis:
    """A finished translation: token ids without marks, and its length-normalised score."""

    tokens: tuple[int, ...]
    score: float


@dataclass(frozen=True)
class SearchOptions:
    """How to search, or to draw: then with a beam of 1, and so many of each sentence as wanted."""

    beam: int
    patience: int
    length_penalty: float
    begin: int
    end: int
    n_best: int | None = None  # So many are wanted of each sentence; None is as many as the beam.
    sampling: Sampling | None = None

    @property
    def hypotheses(self) -> int:
        """So many have to end before a sentence is done."""
        return self.beam * self.patience if self.beam > 1 else 1

    @property
    def copies(self) -> int:
        """So often each sentence is translated on its own."""
        return self.n_best or 1 if self.sampling else 1


class Hypotheses:
    """Those of all sentences of a search."""

    def __init__(
        self, options: SearchOptions, sentences: int, longest: int, device: torch.device
    ) -> None:
        self._options = options
        # Fewer than wanted before a sentence's last step; then K may end, and K more be cut. One
        # more place takes what is not wanted, so that no shape depends on how many end.
        self._nowhere = options.hypotheses + 2 * options.beam
        self.counts = torch.zeros(sentences + 1, dtype=torch.int64, device=device)
        # Total, node and length (with the end mark, if any); all of them exact in float32.
        self._ended = torch.zeros(sentences + 1, self._nowhere + 1, 3, device=device)
        # Parent and word of node length * K + k.
        nodes = sentences + 1, (longest + 1) * options.beam, 2
        self._nodes = torch.zeros(nodes, dtype=torch.int32, device=device)
        self._each = torch.arange(options.beam, device=device)

    def grow(self, sentences: Tensor, length: Tensor, parents: Tensor, words: Tensor) -> None:
        """Note the live ones' newest words and parents, both [B, K]; they have length [B] now."""
        nodes = length[:, None] * self._options.beam + self._each
        self._nodes[sentences[:, None], nodes] = torch.stack((parents, words), dim=2).int()

    def take(
        self,
        sentences: Tensor,
        length: Tensor,
        is_wanted: tuple[Tensor, Tensor],
        totals: tuple[Tensor, Tensor],
        parents: Tensor,
    ) -> None:
        """Note which candidates have ended, by their parents, and which live ones are cut."""
        beam = self._options.beam
        wanted = torch.cat(is_wanted, dim=1)
        now = length[:, None] * beam
        last = torch.cat((now - beam + parents, now + self._each), dim=1)
        scores = torch.cat((totals[0][:, :beam], totals[1]), dim=1)
        lengths = length[:, None].expand_as(last)
        nth = self.counts[sentences, None] + wanted.cumsum(dim=1) - 1
        places = nth.masked_fill(~wanted, self._nowhere)
        ended = torch.stack((scores, last.float(), lengths.float()), dim=2)
        self._ended[sentences[:, None], places] = ended
        self.counts[sentences] = self.counts[sentences] + wanted.sum(dim=1)

    def best(self, sentences: int) -> list[list[Hypothesis]]:
        """Bring those of the first sentences to the host, best first."""
        options, counts = self._options, self.counts[:sentences]
        totals, nodes, lengths = self._ended[:sentences, : self._nowhere].unbind(dim=2)
        is_there = torch.arange(self._nowhere, device=counts.device) < counts[:, None]
        scores = totals.double() / lengths.clamp(min=1).double() ** options.length_penalty
        scores = scores.masked_fill(~is_there, float("-inf"))
        wanted = min(options.n_best or options.beam, options.beam)
        scores, places = scores.sort(dim=1, descending=True, stable=True)
        scores, places = scores[:, :wanted], places[:, :wanted]
        words, sizes = self._read_back(nodes.gather(1, places).long())
        found = zip(
            scores.tolist(),
            sizes.tolist(),
            words.cpu().numpy(),
            counts.clamp(max=wanted).tolist(),
            strict=True,
        )
        return [
            [
                Hypothesis(tuple(lines[place, : own_sizes[place]].tolist()), own_scores[place])
                for place in range(count)
            ]
            for own_scores, own_sizes, lines, count in found
        ]

    def _read_back(self, nodes: Tensor) -> tuple[Tensor, Tensor]:
        """The words [sentences, wanted, longest of them] up to nodes, from their last to first."""
        beam = self._options.beam
        sizes, at = nodes // beam, nodes % beam
        longest = int(sizes.max()) if sizes.numel() else 0
        words = torch.zeros(*nodes.shape, longest, dtype=torch.int32, device=nodes.device)
        sentence = torch.arange(len(nodes), device=nodes.device)[:, None]
        for length in range(longest, 0, -1):
            is_on = sizes >= length
            parents, found = self._nodes[sentence, length * beam + at].unbind(dim=2)
            words[:, :, length - 1] = found
            at = torch.where(is_on, parents, at).long()
        return words, sizes
