"""Loss, BLEU and chrF of an evaluation set."""

import math
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext, suppress
from dataclasses import dataclass

import numpy as np
import torch
from sacrebleu.metrics.base import Metric
from sacrebleu.significance import _bootstrap_resample, estimate_ci

from dragoman.cluster.processes import Workers
from dragoman.corpus.rows import Rows, pack
from dragoman.corpus.store import PairTokens
from dragoman.errors import UserError
from dragoman.inference.line_statistics import make_metrics
from dragoman.model.attention import kernels_for_any_shape
from dragoman.model.transformer import RowTensors, Transformer

WIDTH_STEP = 64
SLOTS_AT_ONCE = {"cpu": 8_192, "cuda": 32_768}
LONGEST_LINE = 8_192  # In tokens; the memory for its attention grows with the square.
HIGHEST_EXPONENT = 709.0  # Of e, for a float.
BOOTSTRAP_SAMPLES = 1_000  # For intervals.


@dataclass(frozen=True)
class MeanLoss:
    """Means per target token."""

    loss: float
    nll: float
    target_tokens: int

    @property
    def perplexity(self) -> float:
        """How many equally likely words the model was torn between."""
        return math.exp(self.nll) if self.nll < HIGHEST_EXPONENT else math.inf


@dataclass(frozen=True)
class TextScores:
    """Scores of detokenised text, with the signatures that make them comparable."""

    bleu: float
    chrf: float
    signature: str
    chrf_signature: str
    bleu_interval: tuple[float, float] | None = None  # 95%, by bootstrap.
    chrf_interval: tuple[float, float] | None = None


def evaluation_rows(name: str, pairs: PairTokens, row_tokens: int, begin: int) -> Rows:
    """Pack a whole set; the rows are as wide as its longest pair needs, so none is left out."""
    lengths = np.maximum(*(np.diff(side.offsets) for side in (pairs.source, pairs.target)))
    longest, most = int(lengths.max()), max(row_tokens, LONGEST_LINE)
    if longest > most:
        raise UserError(
            f"{name}: pair {lengths.argmax() + 1:,} has {longest:,} subwords on one side, but "
            f"evaluation allows at most {most:,}: shorten or remove it"
        )
    width = max(row_tokens, -(-longest // WIDTH_STEP) * WIDTH_STEP)
    return pack(pairs, width, begin)


@torch.inference_mode()
def mean_loss(
    model: Transformer,
    rows: Rows,
    label_smoothing: float,
    workers: Workers,
    arithmetic: Callable[[], AbstractContextManager[object]] = nullcontext,
) -> MeanLoss:
    """Mean loss in evaluation mode; every worker takes its share, every token counts once."""
    was_training = model.training
    model.eval()
    mine = rows[slice(*(len(rows) * (workers.rank + end) // workers.count for end in (0, 1)))]
    sums = torch.zeros(2, dtype=torch.float64, device=workers.device)
    step = max(1, SLOTS_AT_ONCE[workers.device.type] // rows.target.shape[1])
    for start in range(0, len(mine), step):
        part = RowTensors.copy_to(workers.device, mine[start : start + step].arrays())
        with arithmetic(), kernels_for_any_shape():
            sums += torch.stack(model(part, label_smoothing))
    model.train(was_training)
    everyone = workers.gather([*sums.tolist(), mine.target_tokens])
    loss, nll, tokens = (sum(values) for values in zip(*everyone, strict=True))
    return MeanLoss(loss / tokens, nll / tokens, int(tokens))


class Interrupted(Exception):
    """Somebody does not want to wait for an evaluation any longer."""


def share_translation(
    lines: Sequence[str], translate: Callable[[Sequence[str]], list[str]], workers: Workers
) -> list[str]:
    """Translate lines, each by exactly one worker; everyone gets all of them, in order.

    If one is interrupted, so are all.
    """
    mine = None
    with suppress(Interrupted):
        mine = translate(lines[workers.rank :: workers.count])
    parts = workers.gather_json(mine)
    if None in parts:
        raise Interrupted
    translations = [""] * len(lines)
    for rank, part in enumerate(parts):
        translations[rank :: workers.count] = part
    return translations


def score_text(
    translations: Sequence[str], references: Sequence[str], tokenize: str, bootstrap: int = 0
) -> TextScores:
    """Score by sacreBLEU; with `bootstrap` samples, also 95% confidence intervals."""
    assert len(translations) == len(references)
    scored = []
    for metric in make_metrics(tokenize):
        lines = metric._extract_corpus_statistics(list(translations), [list(references)])
        score = float(metric._aggregate_and_compute(lines).score)
        interval = _interval(metric, lines, bootstrap) if bootstrap else None
        scored.append((score, str(metric.get_signature()), interval))
    (bleu, signature, bleu_interval), (chrf, chrf_signature, chrf_interval) = scored
    return TextScores(bleu, chrf, signature, chrf_signature, bleu_interval, chrf_interval)


def _interval(metric: Metric, lines: list[list[int | float]], samples: int) -> tuple[float, float]:
    """95% by sacreBLEU's own resampling, which its signature then tells of.

    Not by its corpus_score, which cannot take the mean where some samples score nothing at all:
    these are numbers of another kind.
    """
    metric.n_bootstrap = samples
    metric.seed, resampled = _bootstrap_resample(lines, metric, samples)
    mean, half = estimate_ci(np.array([float(one.score) for one in resampled]))
    return float(mean - half), float(mean + half)
