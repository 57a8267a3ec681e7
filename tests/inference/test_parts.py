"""Large texts in parts: real processes, killed and started again, and several at a time."""

import gzip
import json
import signal
import socket
import subprocess
import threading
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

import psutil
import pytest
import torch

from dragoman.cli import main
from dragoman.config import TranslationSettings
from dragoman.errors import UserError
from dragoman.inference.load import load_trained
from dragoman.inference.parts import (
    PartsDone,
    PartsJob,
    PartsRequest,
    _agree_on_job,
    _claim,
    part_path,
    translate_parts,
)
from dragoman.inference.sampling import Sampling
from dragoman.records import SavedFile
from dragoman.runs.folder import RunFolder
from launched import held_back, worker_processes
from support import PATIENCE, dragoman_command, number_pairs, refusal, wait_until, write_lines

LINES = number_pairs(20_000, 3_000)[0]
SAMPLING = ["--sample", "--seed", "3", "--temperature", "0.8"]
JOB = PartsJob(
    SavedFile(7, "0" * 64),
    100,
    ("1" * 64,),
    "float32",
    TranslationSettings(),
    1,
    False,
    None,
    "",
    None,
)


@pytest.fixture(scope="module")
def text(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("text") / "text.en.gz"
    path.write_bytes(gzip.compress("".join(f"{line}\n" for line in LINES).encode()))
    return path


def words(run: Path, text: Path, output: Path, *more: str) -> list[str]:
    options = ["--input", str(text), "--output", str(output), "--part-lines", "100", *more]
    return ["translate", str(run), *options]


def joined(folder: Path) -> list[str]:
    parts = sorted(folder.glob("part-*.txt"))
    return [line for part in parts for line in part.read_text().split("\n")[:-1]]


@pytest.mark.slow
def test_killed_and_started_again_twice_at_once(
    spelling_run: Path, text: Path, tmp_path: Path
) -> None:
    folder = tmp_path / "out"
    command = dragoman_command(*words(spelling_run, text, folder, *SAMPLING))
    quiet = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
    first = subprocess.Popen(command, **quiet)  # type: ignore[call-overload]
    wait_until(lambda: len(list(folder.glob("part-*.txt"))) >= 2)
    first.send_signal(signal.SIGKILL)
    first.wait()
    before = {path: path.stat() for path in folder.glob("part-*.txt")}
    both = [subprocess.Popen(command, **quiet) for _ in range(2)]  # type: ignore[call-overload]
    assert [process.wait(600) for process in both] == [0, 0]
    for path, earlier in before.items():
        now = path.stat()
        assert (now.st_ino, now.st_mtime_ns) == (earlier.st_ino, earlier.st_mtime_ns)
    assert len(list(folder.glob("part-*.txt"))) == 30
    trained = load_trained(RunFolder(spelling_run), "best", 1, torch.device("cpu"))
    drawn = trained.translator.sample(
        LINES, trained.config.translation, 1, Sampling(top_k=0, temperature=0.8, seed=3)
    )
    # In other batches the last bits differ, and rarely a word that is drawn by a hair.
    same = sum(one[0].text == other for one, other in zip(drawn, joined(folder), strict=True))
    assert same >= 0.99 * len(LINES)


@pytest.mark.slow
def test_workers_share_the_parts_and_survive_each_other(
    spelling_run: Path, text: Path, tmp_path: Path
) -> None:
    folder = tmp_path / "out"
    command = dragoman_command(*words(spelling_run, text, folder, *SAMPLING, "--workers", "2"))
    launcher = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
    wait_until(lambda: len(list(folder.glob("part-*.txt"))) >= 2)
    worker_processes(launcher, "translate")[1].kill()
    wait_until(lambda: len(list(folder.glob("part-*.txt"))) >= 4)
    workers = worker_processes(launcher, "translate")
    launcher.kill()
    launcher.communicate()
    wait_until(lambda: not any(process.is_running() for process in workers))
    before = {path: path.stat() for path in folder.glob("part-*.txt")}
    assert 4 <= len(before) < 30
    # What a kill leaves that comes while a part is written, or just after.
    (folder / ".part-00007.txt.1547").write_text("half")
    (folder / f".{min(before).name}.lock").touch()
    again = subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE)
    assert again.returncode == 0, again.stderr
    missing = 30 - len(before)
    assert f"30 parts, {missing} translated now, {len(before)} already done" in again.stdout
    for path, earlier in before.items():
        now = path.stat()
        assert (now.st_ino, now.st_mtime_ns) == (earlier.st_ino, earlier.st_mtime_ns)
    assert len(joined(folder)) == len(LINES)
    names = {path.name for path in folder.iterdir()}
    assert names == {"job.json", *(f"part-{number:05}.txt" for number in range(30))}


@pytest.mark.slow
def test_a_worker_may_be_killed_often_if_parts_are_made_in_between(
    spelling_run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    text, folder = tmp_path / "text", tmp_path / "out"
    write_lines(text, LINES[:600])
    main(words(spelling_run, text, folder))
    missing = [part_path(folder, number) for number in range(2, 6)]
    with held_back(missing) as held, ExitStack() as at_end:
        launcher = subprocess.Popen(
            dragoman_command(*words(spelling_run, text, folder, "--workers", "2")),
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        at_end.callback(launcher.kill)
        workers: list[psutil.Process] = []
        for part, claim in zip(missing, held, strict=True):
            if workers:
                workers[1].kill()
                wait_until(lambda old=workers: _are_others(launcher, old))  # type: ignore[misc]
            claim.close()
            wait_until(part.exists)
            workers = worker_processes(launcher, "translate")
        output, errors = launcher.communicate(timeout=PATIENCE)
    assert launcher.returncode == 0, errors
    assert "6 parts, 4 translated now, 2 already done" in output
    told = [line for line in errors.splitlines() if line.startswith("restarted ")]
    worker = f"worker 1 on {socket.gethostname()}"
    assert told == [
        f"restarted ({worker} after {parts} parts: killed by SIGKILL)" for parts in (2, 3, 4)
    ]


def _are_others(launcher: subprocess.Popen[str], old: Sequence[psutil.Process]) -> bool:
    assert launcher.poll() is None, "it gave up"
    now = worker_processes(launcher, "translate")
    return len(now) == 2 and not set(now) & set(old)


def test_a_part_that_its_process_leaves_is_made_by_who_waits(tmp_path: Path) -> None:
    text, folder = tmp_path / "text", tmp_path / "out"
    text.write_text("one\ntwo\nthree\n")
    folder.mkdir()
    request = PartsRequest(text, folder, lines=1)
    made: list[int] = []

    def render(lines: Sequence[bytes], first: int) -> str:
        if first == 1:  # Here, so that the other process begins and ends while this one works.
            held.enter_context(_claim(folder / "part-00001.txt"))
            threading.Timer(0.5, held.close).start()
        made.append(first)
        return lines[0].decode()

    with ExitStack() as held:
        done = translate_parts(request, JOB, render, waits=True)
    assert (done, made) == (PartsDone(parts=3, made=3, found=0, busy=0), [1, 3, 2])


@pytest.mark.parametrize("look", ["exists", "glob"])
def test_another_worker_may_begin_between_two_looks_at_a_new_folder(
    look: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    looked = getattr(Path, look)

    def and_then_others_begin(path: Path, *pattern: str) -> bool | list[Path]:
        monkeypatch.undo()
        found = looked(path, *pattern) if look == "exists" else list(looked(path, *pattern))
        _agree_on_job(tmp_path, JOB)
        part_path(tmp_path, 0).touch()
        return found

    monkeypatch.setattr(Path, look, and_then_others_begin)
    _agree_on_job(tmp_path, JOB)


def test_only_what_is_missing_is_made(
    spelling_run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    text, folder = tmp_path / "text", tmp_path / "out"
    text.write_text("".join(f"{line}\n" for line in LINES[:250]))
    command = words(spelling_run, text, folder, "--n-best", "2", "--beam", "2")
    main(command)
    assert "3 parts, 3 translated now, 0 already done" in capsys.readouterr().out
    whole = joined(folder)
    assert len(whole) == 500
    assert all(float(line.split("\t")[0]) <= 0 for line in whole)
    (folder / "part-00001.txt").unlink()
    with _claim(folder / "part-00001.txt") as is_ours:
        assert is_ours
        main(command)
        assert "2 already done, 1 in progress in other processes" in capsys.readouterr().out
    main(command)
    assert "3 parts, 1 translated now, 2 already done" in capsys.readouterr().out
    assert joined(folder) == whole
    names = sorted(path.name for path in folder.iterdir())
    assert names == ["job.json", *(f"part-0000{number}.txt" for number in range(3))]


def test_other_options_are_not_mixed(
    spelling_run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    text, folder = tmp_path / "text", tmp_path / "out"
    text.write_text("one two\n")
    main(words(spelling_run, text, folder))
    for more, line in (
        (["--beam", "2"], "(beam: 4 there, 2 here): use the same text, model and options"),
        (SAMPLING, "(with sampling here): "),
        (["--checkpoint", "50"], "(by other weights): "),
        (
            ["--scores", "--n-best", "2"],
            "(n_best: 1 there, 2 here, scores: false there, true here): ",
        ),
    ):
        code, errors = refusal(capsys, *words(spelling_run, text, folder, *more))
        assert (code, line in errors.splitlines()[-1]) == (2, True), errors
    text.write_text("one two three\n")
    _, errors = refusal(capsys, *words(spelling_run, text, folder))
    assert "(from another text)" in errors
    (folder / "job.json").write_text(json.dumps({"lines": 0}))
    _, errors = refusal(capsys, *words(spelling_run, text, folder))
    assert "job.json is damaged" in errors
    (folder / "job.json").unlink()
    _, errors = refusal(capsys, *words(spelling_run, text, folder))
    assert "contains parts but no job.json" in errors


def test_whatever_differs_is_named(tmp_path: Path) -> None:
    """A field that is added must be compared, too."""
    others: dict[str, Any] = {
        "input": SavedFile(8, "0" * 64),
        "lines": 101,
        "weights": ("2" * 64,),
        "arithmetic": "bfloat16",
        "translation": TranslationSettings(beam=7),
        "n_best": 2,
        "scores": True,
        "sampling": Sampling(top_k=0, temperature=1.0, seed=1),
        "tag": "news",
        "blend": 0.5,
    }
    assert others.keys() == {field.name for field in fields(PartsJob)}
    (tmp_path / "letter.txt").touch()
    with pytest.raises(UserError, match=r"contains other things, such as letter.txt: name a new"):
        _agree_on_job(tmp_path, JOB)
    (tmp_path / "letter.txt").unlink()
    _agree_on_job(tmp_path, replace(JOB, lines=7))
    _agree_on_job(tmp_path, JOB)  # Nothing was made the other way.
    part_path(tmp_path, 0).write_text("a\n")
    _agree_on_job(tmp_path, JOB)
    for name, value in others.items():
        told = {"input": "another text", "weights": "other weights", "translation": "beam"}
        with pytest.raises(UserError, match=f"{told.get(name, name)}.*: use the same"):
            _agree_on_job(tmp_path, replace(JOB, **{name: value}))


@pytest.mark.parametrize(
    ("options", "line"),
    [
        (["--input", "text"], "--input and --output must be given together"),
        (["--part-lines", "5"], "--part-lines needs --input and --output"),
        (["--workers", "2"], "--workers needs --input and --output"),
        (["--hosts", "a,b"], "--hosts needs --input and --output"),
        (["--input", "gone", "--output", "out", "--workers", "0"], "--workers 0: must be at least"),
        (["--input", "gone", "--output", "out"], "--input gone: no such file"),
        (["--input", "/", "--output", "out"], "--input / is a folder, not a file"),
        (["--input", __file__, "--output", f"{__file__}/parts"], f"{__file__} is a file; name a"),
        (["--input", "/dev/null", "--output", "parts"], "/dev/null is a pipe or a device, but"),
        (["--input", "gone", "--output", "out", "--part-lines", "0"], "must be at least 1"),
    ],
)
def test_wrong_requests_are_one_line(
    capsys: pytest.CaptureFixture[str], options: list[str], line: str
) -> None:
    code, errors = refusal(capsys, "translate", "RUN", *options)
    assert (code, line in errors) == (2, True), errors
