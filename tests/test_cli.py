import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from dragoman.arguments import DESCRIPTIONS, EXIT_CODES
from dragoman.cli import VERBS, main
from support import refusal


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


def test_processes_that_would_take_all_memory_are_refused(
    small_text: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    code, errors = refusal(capsys, "prepare", small_text / "config.toml", "--processes", "100000")
    assert code == 2
    most = 4 * len(os.sched_getaffinity(0))
    assert errors == f"dragoman: --processes 100000: must be at most {most}, 4 for each core\n"


def test_the_demo_leaves_text_of_others_alone(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "text").mkdir()
    (tmp_path / "text" / "train.en").write_text("mine\n")
    code, errors = refusal(capsys, "demo", "--folder", tmp_path)
    assert code == 2
    assert "text already exists: choose another --folder" in errors
    assert (tmp_path / "text" / "train.en").read_text() == "mine\n"


@pytest.mark.parametrize(
    ("words", "problem"),
    [
        (["trian"], "unknown command 'trian'; did you mean train?"),
        (["train"], "dragoman: the following arguments are required: CONFIG; see dragoman train"),
        (["train", "a.toml", "--hosts", ""], "argument --hosts: it is empty"),
        (["train", "a.toml", "--run", " "], "argument --run/--name: it is empty"),
        (["report", ""], "argument RUN: it is empty"),
    ],
)
def test_mistyped_commands_are_refused(
    words: list[str], problem: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as caught:
        main(words)
    assert caught.value.code == 2
    assert problem in capsys.readouterr().err


def test_more_workers_than_rows_are_not_even_started(
    small_text: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    config = str(small_text / "config.toml")
    overrides = ["batches.tokens_per_step=1024"]
    code, message = refusal(capsys, "train", config, "--workers", "60", *overrides)
    assert code == 2
    assert "1024 is 8 rows, fewer than the 60 workers" in message


@pytest.mark.slow
def test_a_reader_who_has_had_enough_is_not_told(tmp_path: Path) -> None:
    command = f"{sys.executable} -m dragoman settings | true; echo ${{PIPESTATUS[0]}}"
    result = subprocess.run(
        ["bash", "-c", f"for i in 1 2 3; do {command}; done"], capture_output=True, text=True
    )
    assert result.stderr == ""


@pytest.mark.slow
def test_a_full_disk_is_named() -> None:
    command = [sys.executable, "-m", "dragoman", "settings"]
    with open("/dev/full", "w") as full:
        result = subprocess.run(command, stdout=full, stderr=subprocess.PIPE, text=True)
    assert result.returncode == 1
    assert result.stderr == "dragoman: No space left on device\n"


@pytest.mark.slow
@pytest.mark.parametrize("closed", ["<&-", ">&-", "2>&-", "<&- >&- 2>&-"])
def test_what_is_said_to_a_closed_stream_goes_nowhere(closed: str, tmp_path: Path) -> None:
    check = (
        "import os, sys; sys.argv[1:] = ['settings']; from dragoman.cli import main; main();"
        "from dragoman.console import say; say('status'); sys.stdin.read();"
        "sys.exit(os.open(sys.argv[0], os.O_RDONLY) < 3)"
    )
    script = tmp_path / "script.py"
    script.write_text(check)
    command = f"{sys.executable} {script} {closed}"
    result = subprocess.run(
        ["bash", "-c", command], stdin=subprocess.DEVNULL, capture_output=True, text=True
    )
    assert result.returncode == 0
    assert "status" not in result.stdout
    assert "Traceback" not in result.stderr


@pytest.mark.parametrize("word", ["odd", os.fsdecode(b"od\xff")])
def test_names_that_are_no_text_are_refused_before_any_work(
    small_text: Path,
    tmp_path: Path,
    word: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    folder = tmp_path / os.fsdecode(b"od\xff")
    folder.mkdir()
    monkeypatch.chdir(folder if word == "odd" else tmp_path)
    code, errors = refusal(capsys, "train", small_text / "config.toml", "--run", word)
    assert code == 2
    assert errors.startswith("dragoman: '")
    assert errors.endswith("od\\udcff': not valid utf-8: rename it\n")
    assert errors.count("\n") == 1


def test_want_of_memory_is_told_in_one_line(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(VERBS, "settings", lambda _: torch.empty(1 << 55))
    code, errors = refusal(capsys, "settings")
    assert code == 1
    assert errors.startswith("dragoman: not enough memory: can't allocate memory: you tried to ")
    assert errors.endswith("; use a smaller model, batch or beam\n")
    assert errors.count("\n") == 1
