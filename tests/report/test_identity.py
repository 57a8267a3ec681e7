import shlex
from pathlib import Path

import pytest

from dragoman.cli import main
from dragoman.config_file import load_config
from dragoman.report.evidence import load_evidence
from dragoman.report.page.identity import reproduce_lines
from dragoman.training.start import train
from report.run_folders import START
from support import SMALL, assert_same_end


def test_the_printed_commands_make_the_run_again(
    prepared: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = load_config(prepared / "config.toml", [*SMALL, "training.steps=3"])
    train(config, str(prepared / "run"))
    monkeypatch.chdir(prepared)
    lines = reproduce_lines(load_evidence(prepared / "run", START))
    commands = [shlex.split(line) for line in lines if line.startswith("dragoman ")]
    assert [verb for _, verb, *_ in commands] == ["prepare", "train"]
    for _, *words in commands:
        main(words)
    assert_same_end(prepared / "run", prepared / "runs" / "run-again")
