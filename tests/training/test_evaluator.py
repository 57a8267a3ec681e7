from contextlib import nullcontext
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from dragoman.cluster.processes import Workers
from dragoman.config_file import load_config
from dragoman.inference.evaluate import mean_loss
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
    assert evaluation.seconds == 20.0, "the training sample and the set"


def test_no_sentence_is_shown_twice() -> None:
    assert sample_sentences(["one", "two", "three"], 5) == [0, 1, 2]
    assert sample_sentences([str(number) for number in range(10)], 5) == [0, 2, 4, 6, 8]
    assert sample_sentences(["one"], 0) == []
