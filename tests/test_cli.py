from pathlib import Path

import pytest

from dragoman.arguments import DESCRIPTIONS, EXIT_CODES
from dragoman.cli import main
from support import Dragoman, refusal


def help_of(capsys: pytest.CaptureFixture[str], *words: str) -> str:
    """The help without its line breaks."""
    with pytest.raises(SystemExit):
        main([*words, "--help"])
    return " ".join(capsys.readouterr().out.split())


@pytest.mark.parametrize("verb", DESCRIPTIONS)
def test_every_verb_describes_itself(verb: str, capsys: pytest.CaptureFixture[str]) -> None:
    page = help_of(capsys, verb)
    assert DESCRIPTIONS[verb] in page
    assert EXIT_CODES in page


def test_every_verb_is_listed(capsys: pytest.CaptureFixture[str]) -> None:
    page = help_of(capsys)
    assert all(f" {verb} " in page for verb in DESCRIPTIONS)


@pytest.mark.parametrize("processes", ["0", "-1"])
def test_prepare_needs_a_process(
    small_text: Path, processes: str, capsys: pytest.CaptureFixture[str]
) -> None:
    code, errors = refusal(capsys, "prepare", small_text / "config.toml", "--processes", processes)
    assert code == 2
    assert errors == f"dragoman: --processes {processes}: must be at least 1\n"


def test_the_demo_leaves_text_of_others_alone(dragoman: Dragoman, tmp_path: Path) -> None:
    (tmp_path / "text").mkdir()
    (tmp_path / "text" / "train.en").write_text("mine\n")
    result = dragoman("demo", "--folder", tmp_path)
    assert result.returncode == 2
    assert "text is there already: choose another --folder" in result.stderr
    assert (tmp_path / "text" / "train.en").read_text() == "mine\n"
