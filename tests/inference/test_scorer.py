import math
import os
import random
import signal

import pytest
from sacrebleu.metrics.bleu import BLEU
from sacrebleu.metrics.chrf import CHRF

from dragoman.errors import SystemFault
from dragoman.inference.evaluate import MeanLoss, score_text
from dragoman.inference.scorer import TextScorer
from support import number_pairs


@pytest.mark.slow
def test_processes_score_as_one_does_time_and_again() -> None:
    references = number_pairs(1_000, 50)[1]
    draw = random.Random(1)
    scorer = TextScorer(references, "13a", processes=3)
    for _ in range(2):
        translations = [
            " ".join(word for word in line.split() if draw.random() > 0.2) for line in references
        ]
        assert scorer.score(translations) == score_text(translations, references, "13a")
    scorer.close()


def test_intervals_are_those_of_sacrebleu() -> None:
    references = number_pairs(1_000, 50)[1]
    translations = [line if place % 3 else line[5:] for place, line in enumerate(references)]
    found = score_text(translations, references, "13a", bootstrap=200)
    for metric, score, interval, signature in (
        (BLEU(), found.bleu, found.bleu_interval, found.signature),
        (CHRF(), found.chrf, found.chrf_interval, found.chrf_signature),
    ):
        expected = metric.corpus_score(translations, [references], n_bootstrap=200)
        assert score == expected.score
        low, high = expected._mean - expected._ci, expected._mean + expected._ci
        assert interval == pytest.approx((low, high), abs=1e-3)
        assert signature == str(metric.get_signature())


def test_a_model_that_has_learnt_next_to_nothing_has_intervals() -> None:
    """Most samples of its lines have no word right: they score exactly nothing."""
    references = number_pairs(1_000, 4)[1]
    found = score_text([references[0], "x", "x", ""], references, "13a", bootstrap=100)
    assert found.bleu_interval
    assert found.chrf_interval
    low, high = found.bleu_interval
    assert low <= found.bleu <= high
    nothing = score_text(["", "", "", ""], references, "13a", bootstrap=100)
    assert nothing.bleu_interval == (0.0, 0.0)


@pytest.mark.slow
def test_a_process_that_is_gone_is_no_endless_wait() -> None:
    references = number_pairs(1_000, 8)[1]
    scorer = TextScorer(references, "13a", processes=2)
    os.kill(scorer._processes[1].pid, signal.SIGKILL)
    with pytest.raises(SystemFault, match="exited with status -9"):
        scorer.score(references)
    scorer.close()


@pytest.mark.parametrize(("nll", "perplexity"), [(2.0, 7.389), (800.0, math.inf)])
def test_a_perplexity_beyond_all_numbers_is_infinite(nll: float, perplexity: float) -> None:
    assert MeanLoss(nll, nll, 1).perplexity == pytest.approx(perplexity, rel=1e-3)
