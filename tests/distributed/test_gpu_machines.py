"""Two machines on one GPU: NCCL and Gloo through the link between two namespaces."""

import os
import shutil
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import pytest
import torch

from dragoman.config_file import load_config
from dragoman.corpus.prepare import prepare
from shared_gpu import machines, start, wait_for
from support import PATIENCE, SMALL, has_step, metrics, wait_until

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.slow,
    pytest.mark.network,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device"),
    pytest.mark.skipif(bool(os.getuid()) or not shutil.which("ip"), reason="needs root and ip"),
]

# Heads and rows as wide as the fused kernels need them.
WIDE = ["model.d_model=64", "model.heads=4", "batches.row_tokens=64", "batches.rows_per_device=8"]
NO_DROPOUT = [f"model.{kind}=0.0" for kind in ("dropout", "attention_dropout", "relu_dropout")]
SETTINGS = [*SMALL, *WIDE, *NO_DROPOUT, "training.precision=bfloat16"]
SETTINGS += ["evaluation.every_steps=1_000", "distributed.timeout_seconds=20"]
LOCAL = ["distributed.sync=local", "distributed.local_steps=4", "distributed.local_fragments=2"]


@pytest.fixture(scope="module")
def config(tmp_path_factory: pytest.TempPathFactory, prepared_once: Path) -> Path:
    folder = Path(shutil.copytree(prepared_once, tmp_path_factory.mktemp("gpu") / "text"))
    prepare(load_config(folder / "config.toml", SETTINGS), processes=1)
    return folder / "config.toml"


@contextmanager
def training(
    config: Path, run: Path, settings: Sequence[str], count: int = 2
) -> Iterator[list[subprocess.Popen[bytes]]]:
    """A worker on each of so many machines, each with a run folder of its own."""
    run.parent.mkdir(exist_ok=True)
    with machines(count, "") as names:
        commands = [
            [sys.executable, "-m", "dragoman", "train", str(config)]
            + ["--run", f"{run}-{name}", *SETTINGS, *settings]
            for name in names
        ]
        processes = start(names, commands, run)
        try:
            yield processes
        finally:
            for process in processes:
                process.kill()
                process.wait()


def losses(config: Path, run: Path, *settings: str, steps: int = 40, count: int = 2) -> list[float]:
    """Train, and tell the loss of every step."""
    with training(config, run, [*settings, f"training.steps={steps}"], count) as processes:
        is_well = wait_for(processes, PATIENCE)
    assert is_well, Path(f"{run}-0.log").read_text()
    return [line["loss"] for line in metrics(Path(f"{run}-gm0"), "train")]


@pytest.fixture(scope="module")
def alone(config: Path) -> list[float]:
    return losses(config, config.parent / "runs" / "alone", count=1)


@pytest.mark.parametrize(("compression", "tolerance"), [("none", 5e-3), ("bf16", 2e-2)])
def test_losses_of_two_machines_are_those_of_one_worker(
    config: Path, alone: list[float], tmp_path: Path, compression: str, tolerance: float
) -> None:
    both = losses(config, tmp_path / "run", f"distributed.compression={compression}")
    # What bfloat16 rounds differently in other shapes grows from step to step.
    assert both[:20] == pytest.approx(alone[:20], rel=tolerance)
    assert both == pytest.approx(alone, rel=4 * tolerance)


def test_balanced_machines_learn_what_one_worker_learns(
    config: Path, alone: list[float], tmp_path: Path
) -> None:
    few = ["distributed.balance=true", "batches.rows_per_device=2"]
    both = losses(config, tmp_path / "run", *few)
    assert "fused kernels" in Path(f"{tmp_path / 'run'}-0.log").read_text()
    assert both[:20] == pytest.approx(alone[:20], rel=5e-3)


@pytest.mark.parametrize("compression", ["int8", "int4", "int2"])
def test_local_steps_in_few_bits_learn_and_go_on_where_they_were_stopped(
    config: Path, alone: list[float], tmp_path: Path, compression: str
) -> None:
    way = [*LOCAL, f"distributed.compression={compression}", "checkpoints.every_steps=10"]
    whole = losses(config, tmp_path / "whole", *way)
    assert whole[-1] == pytest.approx(alone[-1], rel=0.15)
    # Killed after a checkpoint that has a fragment on its way.
    with training(config, tmp_path / "run", [*way, "training.steps=40"]) as processes:
        wait_until(lambda: has_step(tmp_path / "run-gm0", 12))
        for process in processes:
            process.kill()
    assert losses(config, tmp_path / "run", *way)[-1] == pytest.approx(whole[-1], rel=2e-2)


@pytest.mark.parametrize(
    "way", [[], [*LOCAL, "distributed.compression=int4"]], ids=["all", "local"]
)
def test_a_machine_that_is_killed_ends_the_other_and_both_go_on(
    config: Path, tmp_path: Path, way: list[str]
) -> None:
    steps = ["checkpoints.every_steps=10", "training.steps=100_000"]
    with training(config, tmp_path / "run", [*way, *steps]) as (first, second):
        wait_until(lambda: has_step(tmp_path / "run-gm0", 25))
        second.kill()
        assert first.wait(PATIENCE) != 0
    begun = metrics(tmp_path / "run-gm0", "train")[-1]["step"]
    lines = losses(config, tmp_path / "run", *way, "checkpoints.every_steps=10", steps=begun + 20)
    assert len(lines) > begun
