import shlex
from pathlib import Path

import pytest

from dragoman.cli import main
from dragoman.config_file import load_config
from dragoman.report.evidence import load_evidence
from dragoman.report.page.identity import flat_settings, reproduce_lines
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


@pytest.mark.parametrize(("origin", "is_shown"), [("", True), ("../runs/parent", False)])
def test_a_size_of_the_vocabulary_that_has_no_effect_is_not_shown(
    origin: str, is_shown: bool
) -> None:
    vocabulary = {"size": 32_768, "from_run": origin, "joint": True}
    shown = flat_settings({"vocabulary": vocabulary})
    assert ("vocabulary.size" in shown) == is_shown
    assert shown["vocabulary.joint"]
