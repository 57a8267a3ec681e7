import threading
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from dragoman.cluster.processes import Workers
from dragoman.config_file import load_config
from dragoman.corpus.store import PairTokens, pack_lines
from dragoman.errors import UserError
from dragoman.inference.evaluate import evaluation_rows, mean_loss, share_translation
from dragoman.training import evaluator as evaluator_module
from dragoman.training.evaluator import Evaluator, sample_sentences
from dragoman.training.parts import make_parts
from support import SMALL


def test_all_seconds_of_an_evaluation_are_counted(
    prepared: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = load_config(prepared / "config.toml", [*SMALL, "evaluation.bleu_pairs=1"])
    workers = Workers(0, 1, torch.device("cpu"))
    parts = make_parts(config, workers)
    evaluator = Evaluator(config, parts.corpus, workers, nullcontext)
    now = 0.0

    def slow_mean_loss(*arguments: Any) -> Any:
        nonlocal now
        now += 10.0
        return mean_loss(*arguments)

    monkeypatch.setattr(evaluator_module, "mean_loss", slow_mean_loss)
    monkeypatch.setattr(evaluator_module, "time", SimpleNamespace(perf_counter=lambda: now))
    (evaluation,) = evaluator.evaluate(parts.model)
    assert evaluation.scores.seconds == 20.0, "the training sample and the set"


@dataclass
class Thread:
    """A worker of three that meet in one process."""

    rank: int
    told: list[Any]
    barrier: threading.Barrier
    count = 3
    device = torch.device("cpu")

    def gather(self, value: Any) -> list[Any]:
        self.told[self.rank] = value
        self.barrier.wait(10)
        everyone = list(self.told)
        self.barrier.wait(10)
        return everyone

    gather_json = gather


def by_three(work: Callable[[Any], Any]) -> list[Any]:
    """What each of three workers gets."""
    told, barrier = [None] * 3, threading.Barrier(3)
    with ThreadPoolExecutor(3) as pool:
        return list(pool.map(work, [Thread(rank, told, barrier) for rank in range(3)]))


def test_every_line_is_translated_by_exactly_one_worker() -> None:
    lines, translated = [f"line {number}" for number in range(7)], list[str]()

    def translate(part: Sequence[str]) -> list[str]:
        translated.extend(part)
        return [line.upper() for line in part]

    found = by_three(lambda workers: share_translation(lines, translate, workers))
    assert sorted(translated) == lines
    assert found == [[line.upper() for line in lines]] * 3


def test_every_token_counts_once_however_many_workers(prepared: Path) -> None:
    config = load_config(prepared / "config.toml", SMALL)
    alone = Workers(0, 1, torch.device("cpu"))
    parts = make_parts(config, alone)
    parts.model.eval()  # The threads share it.
    (one,) = parts.corpus.evaluation_sets("validation")
    rows = evaluation_rows(one.name, one.tokens, config.batches.row_tokens, 1)
    expected = mean_loss(parts.model, rows, 0.1, alone)
    assert expected.target_tokens == len(one.tokens.target.tokens)
    for found in by_three(lambda workers: mean_loss(parts.model, rows, 0.1, workers)):
        assert found.target_tokens == expected.target_tokens
        assert found.loss == pytest.approx(expected.loss, rel=1e-6)


def test_a_line_that_no_memory_can_hold_is_named() -> None:
    sides = [pack_lines([[5, 2], [5] * length, [5, 2]], "uint16") for length in (8_192, 8_193)]
    evaluation_rows("news", PairTokens(sides[0], sides[0]), 64, 1)
    with pytest.raises(UserError, match="news: pair 2 has 8,193 subwords on one side"):
        evaluation_rows("news", PairTokens(*sides), 64, 1)


def test_no_sentence_is_shown_twice() -> None:
    assert sample_sentences(["one", "two", "three"], 5) == [0, 1, 2]
    assert sample_sentences([str(number) for number in range(10)], 5) == [0, 2, 4, 6, 8]
    assert sample_sentences(["one"], 0) == []
