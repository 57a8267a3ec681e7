"""Small corpora and commands that many tests share."""

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from dragoman.cli import main

PATIENCE = 600.0  # Seconds. Nothing but a hang takes so long, on however busy a machine.


def dragoman_command(*words: str | Path) -> list[str]:
    """The command line in a process of its own, as a user would start it."""
    return [sys.executable, "-m", "dragoman", *map(str, words)]


def run_dragoman(*arguments: str | Path, **options: object) -> subprocess.CompletedProcess[str]:
    """Run the command line and collect what it says."""
    command = dragoman_command(*arguments)
    return subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE, **options)  # type: ignore[call-overload,no-any-return]


def without_privilege(command: Sequence[str]) -> list[str]:
    """The command as one whom file permissions bind, which they do not bind root."""
    if os.geteuid():
        return list(command)
    return ["setpriv", "--bounding-set=-dac_override,-dac_read_search", "--", *command]


def refusal(capsys: pytest.CaptureFixture[str], *words: str | Path) -> tuple[int, str]:
    """Exit code and words of a command that is refused, run in this process to save its start."""
    with pytest.raises(SystemExit) as caught:
        main([str(word) for word in words])
    errors = capsys.readouterr().err
    assert "Traceback" not in errors
    return int(caught.value.code or 0), errors


def write_lines(path: Path, lines: Sequence[str]) -> None:
    path.write_text("".join(line + "\n" for line in lines), encoding="utf-8")


NUMBERS = ["zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine"]
ZAHLEN = ["null", "eins", "zwei", "drei", "vier", "fünf", "sechs", "sieben", "acht", "neun"]


def number_pairs(first: int, count: int) -> tuple[list[str], list[str]]:
    """Digits spelled out in English and German: a language anyone can check."""
    digits = [str(number) for number in range(first, first + count)]
    source = [" ".join(NUMBERS[int(digit)] for digit in number) for number in digits]
    target = [" ".join(ZAHLEN[int(digit)] for digit in number) for number in digits]
    return source, target


def write_numbers(folder: Path, name: str, first: int, count: int) -> None:
    """Write them as parallel text, NAME.en and NAME.de."""
    for side, lines in zip(("en", "de"), number_pairs(first, count), strict=True):
        write_lines(folder / f"{name}.{side}", lines)


def write_small_text(folder: Path) -> Path:
    """Make a folder with train, validation and test text and a config for it."""
    folder.mkdir()
    for name, first, count in (("train", 10_000, 600), ("valid", 20_000, 20), ("test", 30_000, 20)):
        write_numbers(folder, name, first, count)
    (folder / "config.toml").write_text(
        """\
[corpus]
folder = "prepared"
train = [{ source = "train.en", target = "train.de" }]
validation.valid = { source = "valid.en", target = "valid.de" }
test.test = { source = "test.en", target = "test.de" }

[vocabulary]
size = 320

[model]
preset = "tiny"

[training]
steps = 20
"""
    )
    return folder


# A model and steps so small that starting the process takes longest.
SMALL = [
    "model.encoder_layers=1",
    "model.decoder_layers=1",
    "model.d_model=16",
    "model.heads=2",
    "model.feed_forward=32",
    "cleaning.max_tokens=32",
    "batches.row_tokens=32",
    "batches.tokens_per_step=512",
    "batches.rows_per_device=8",
    "schedule.scale=0.3",
    "schedule.warmup_steps=10",
    "training.steps=24",
    "evaluation.every_steps=8",
    "evaluation.train_sample_pairs=20",
    "checkpoints.every_steps=4",
]


def metrics(run: Path, kind: str) -> list[dict[str, Any]]:
    """All lines of one kind in a run's metrics."""
    whole = (run / "metrics.jsonl").read_text().split("\n")[:-1]  # The last may be half written.
    possible = [json.loads(line) for line in whole if f'"kind": "{kind}"' in line]
    return [line for line in possible if line["kind"] == kind]


def final_tensors(run: Path) -> dict[str, torch.Tensor]:
    """Weights and moments of a run's latest checkpoint."""
    index = json.loads((run / "checkpoints/checkpoints.json").read_text())
    latest = run / "checkpoints" / index["latest"]
    return load_file(latest / "weights.safetensors") | load_file(latest / "optimizer.safetensors")


def assert_same_end(one: Path, other: Path) -> None:
    """Two runs have the same final tensors and the same history of losses, bit for bit."""
    first, second = final_tensors(one), final_tensors(other)
    assert first.keys() == second.keys()
    for name in first:
        assert torch.equal(first[name], second[name]), name
    losses = [
        {line["step"]: (line["loss"], line["gradient_norm"]) for line in metrics(folder, "train")}
        for folder in (one, other)
    ]
    assert losses[0] == losses[1]


def wait_until(condition: Callable[[], bool], seconds: float = PATIENCE) -> None:
    """Wait for something to become true."""
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "it never came"
        time.sleep(0.05)


def has_step(run: Path, step: int) -> bool:
    """Whether a run has written a step down."""
    # Tests ask often, of runs of thousands of steps.
    return (run / "metrics.jsonl").exists() and any(
        line["step"] >= step for line in metrics(run, "train")[-1:]
    )
