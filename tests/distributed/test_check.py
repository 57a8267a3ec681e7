"""`check` among several workers."""

import subprocess
import sys
from pathlib import Path

import pytest
import torch

from dragoman.check import measure as measure_module
from dragoman.cluster.processes import Workers
from dragoman.config import Config
from dragoman.config_file import load_config
from dragoman.training.parts import Parts, make_parts
from support import SMALL

LOCAL = ["distributed.sync=local", "distributed.compression=bf16"]


@pytest.mark.slow
def test_under_torchrun_one_worker_speaks(prepared: Path) -> None:
    command = ["-m", "dragoman", "check", str(prepared / "config.toml"), *SMALL, *LOCAL]
    result = subprocess.run(
        [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node=2", "--rdzv-backend=c10d"]
        + ["--rdzv-endpoint=127.0.0.1:0", *command],
        capture_output=True,
        text=True,
    )
    assert result.stdout.count("machines") == 1, result.stderr
    assert result.stdout.count("all, 32 bf16 local steps (configured)") == 1


def test_trial_steps_meet_as_the_predictions_suppose(
    prepared: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tried: list[Config] = []

    def make(config: Config, workers: Workers) -> Parts:
        tried.append(config)
        return make_parts(config, workers)

    monkeypatch.setattr(measure_module, "make_parts", make)
    config = load_config(prepared / "config.toml", [*SMALL, *LOCAL])
    measure_module.measure(config, Workers(0, 1, torch.device("cpu")))
    (one,) = tried
    assert (one.distributed.sync, one.distributed.compression) == ("gradients", "none")
