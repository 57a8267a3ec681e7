"""Runs of several workers on this machine, started by the launcher."""

import os
import subprocess
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Any

import psutil

from dragoman.inference.parts import _claim
from support import SMALL, dragoman_command, metrics, run_dragoman

# Workers find sitecustomize.py there.
PACED = {"PYTHONPATH": str(Path(__file__).with_name("in_workers"))}
LONG = ["training.steps=1_000_000", "evaluation.every_steps=1_000_000"]


def train(
    folder: Path, name: str, workers: int, *overrides: str
) -> subprocess.CompletedProcess[str]:
    target = ("--run", folder / name, "--workers", str(workers))
    words: list[str | Path] = ["train", folder / "config.toml", *target, *SMALL, *overrides]
    return run_dragoman(*words, env=os.environ | PACED)


@contextmanager
def training(
    folder: Path, *overrides: str, environment: dict[str, str] | None = None
) -> Iterator[subprocess.Popen[str]]:
    """A run in the background; none of its processes outlives the block."""
    process = subprocess.Popen(
        dragoman_command("train", folder / "config.toml", "--run", folder / "run")
        + ["--workers", "2", *SMALL, *overrides],
        stderr=subprocess.PIPE,
        text=True,
        env=os.environ | PACED | (environment or {}),
    )
    try:
        yield process
    finally:
        process.kill()
        process.communicate()


def worker_processes(launcher: subprocess.Popen[Any], verb: str = "train") -> list[psutil.Process]:
    """The workers, by rank on this machine."""
    found = {}
    for process in psutil.Process(launcher.pid).children(recursive=True):
        with suppress(psutil.NoSuchProcess):  # Some end while we look.
            if verb in process.cmdline() and "LOCAL_RANK" in process.environ():
                found[int(process.environ()["LOCAL_RANK"])] = process
    return [found[rank] for rank in sorted(found)]


def has_restarted(run: Path, count: int) -> bool:
    return len(metrics(run, "restart")) >= count


@contextmanager
def held_back(parts: Sequence[Path]) -> Iterator[list[ExitStack]]:
    """Parts of a text that are missing, and that nobody makes before they are let go of."""
    with ExitStack() as at_end:
        held = [at_end.enter_context(ExitStack()) for _ in parts]
        for part, claim in zip(parts, held, strict=True):
            part.unlink()
            assert claim.enter_context(_claim(part))
        yield held
