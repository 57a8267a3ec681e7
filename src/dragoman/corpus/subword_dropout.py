"""BPE dropout: words are split into different subwords every time a pair is read."""

from dataclasses import dataclass
from itertools import pairwise

from dragoman.corpus.order import keyed_seed
from dragoman.corpus.store import PairTokens, SideTokens, pack_lines
from dragoman.corpus.subwords import Subwords


@dataclass(frozen=True)
class SubwordDropout:
    """Cuts the pairs of a window anew; a pure function of them and a seed."""

    subwords: tuple[Subwords, Subwords]
    share: float  # Of merges that are left out.
    row_tokens: int

    def cut(self, pairs: PairTokens, seed: int) -> PairTokens:
        """The same pairs in other subwords; one that would not fit a row stays as it is."""
        sides = [_lines(side) for side in (pairs.source, pairs.target)]
        cut = [
            model.sample(lines, self.share, keyed_seed(seed, number))
            for number, (model, lines) in enumerate(zip(self.subwords, sides, strict=True))
        ]
        fits = [max(map(len, pair)) <= self.row_tokens for pair in zip(*cut, strict=True)]
        chosen = [
            [new if fit else old for new, old, fit in zip(*columns, fits, strict=True)]
            for columns in zip(cut, sides, strict=True)
        ]
        dtype = pairs.source.tokens.dtype.name
        return PairTokens(*(pack_lines(lines, dtype) for lines in chosen))


def _lines(side: SideTokens) -> list[list[int]]:
    tokens = side.tokens.tolist()
    return [tokens[start:stop] for start, stop in pairwise(side.offsets.tolist())]
