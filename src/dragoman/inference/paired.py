"""How much better one translation is than another, in BLEU, with a confidence interval."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from sacrebleu.metrics.bleu import BLEU, MAX_NGRAM_ORDER

SAMPLES = 1_000
_SEED = 12_345  # The same sets give the same interval.


@dataclass(frozen=True)
class Gain:
    """A difference of BLEU with its 95% interval, by paired bootstrap over sentences."""

    bleu: float
    low: float
    high: float


def bleu_gain(
    before: Sequence[str], after: Sequence[str], references: Sequence[str], tokenize: str
) -> Gain:
    """BLEU of `after` less that of `before`; resampling both alike cancels what they share."""
    metric = BLEU(tokenize=tokenize, force=True, effective_order=True)
    counts = [_counts(metric, lines, references) for lines in (before, after)]
    actual = _bleu(counts[1].sum(axis=0)) - _bleu(counts[0].sum(axis=0))
    generator = np.random.default_rng(_SEED)
    sentences = len(references)
    differences = []
    for _ in range(SAMPLES):
        times = np.bincount(generator.integers(sentences, size=sentences), minlength=sentences)
        one, other = (times @ count for count in counts)
        differences.append(_bleu(other) - _bleu(one))
    low, high = np.percentile(differences, [2.5, 97.5])
    return Gain(actual, float(low), float(high))


def _counts(metric: BLEU, lines: Sequence[str], references: Sequence[str]) -> NDArray[np.int64]:
    """Of each sentence: its length, its reference's, and n-grams that are right and there."""
    scores = (
        metric.sentence_score(line, [reference])
        for line, reference in zip(lines, references, strict=True)
    )
    rows = [[one.sys_len, one.ref_len, *one.counts, *one.totals] for one in scores]
    return np.array(rows, dtype=np.int64)


def _bleu(sums: NDArray[np.int64]) -> float:
    lengths, counts = sums[:2].tolist(), sums[2:].tolist()
    score = BLEU.compute_bleu(
        correct=counts[:MAX_NGRAM_ORDER],
        total=counts[MAX_NGRAM_ORDER:],
        sys_len=lengths[0],
        ref_len=lengths[1],
        smooth_method="exp",  # That of a whole corpus.
    )
    return float(score.score)
