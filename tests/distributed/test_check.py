"""`check` among several workers."""

from pathlib import Path

import pytest
import torch

from dragoman.check.measure import measure
from dragoman.cluster.processes import Workers
from dragoman.config import Config
from dragoman.config_file import load_config
from dragoman.training import trial
from dragoman.training.parts import Parts, make_parts
from support import SMALL

LOCAL = ["distributed.sync=local", "distributed.compression=bf16"]


def test_trial_steps_meet_as_the_predictions_suppose(
    prepared: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tried: list[Config] = []

    def make(config: Config, workers: Workers) -> Parts:
        tried.append(config)
        return make_parts(config, workers)

    monkeypatch.setattr(trial, "make_parts", make)
    config = load_config(prepared / "config.toml", [*SMALL, *LOCAL])
    measure(config, Workers(0, 1, torch.device("cpu")))
    (one,) = tried
    assert (one.distributed.sync, one.distributed.compression) == ("gradients", "none")
