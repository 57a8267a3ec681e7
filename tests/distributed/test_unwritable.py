"""Places and consoles that cannot be written: the former end a run at once, the latter never."""

import os
import shutil
import signal
import subprocess
from pathlib import Path

import pytest

from forked import ENTER
from launched import LONG
from support import PATIENCE, SMALL, dragoman_command, has_step, metrics, wait_until

pytestmark = pytest.mark.slow

READ_ONLY = "mount --bind {run} {run} && mount -o remount,bind,ro {run}"
NO_INODES = "mount -t tmpfs -o nr_inodes=1 none {run}"  # One, for the folder itself.


@pytest.mark.parametrize(
    ("mount", "workers", "code", "line"),
    [
        (READ_ONLY, 2, 2, "dragoman: worker 0 on {host}: {run}: Read-only file system"),
        (NO_INODES, 2, 1, "dragoman: worker 0 on {host}: {run}: No space left on device"),
        (READ_ONLY, 1, 2, "dragoman: {run}/.lock: Read-only file system"),
    ],
)
def test_a_run_folder_that_cannot_be_written_ends_the_run_at_once(
    prepared: Path, mount: str, workers: int, code: int, line: str
) -> None:
    run = prepared / "run"
    run.mkdir()
    where = "--run", run, "--workers", str(workers)
    command = dragoman_command("train", prepared / "config.toml", *where, *SMALL)
    unshare = subprocess.run(["unshare", "--mount", "true"], capture_output=True)
    if os.getuid() or unshare.returncode:
        pytest.skip("needs root and mount namespaces")
    steps = f"{mount.format(run=run)} && echo ready && exec cat"
    words = ["unshare", "--mount", "sh", "-c", steps]
    with subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as place:
        assert place.stdin
        assert place.stdout
        assert place.stdout.readline() == b"ready\n"
        ended = subprocess.run(
            [*ENTER, f"--target={place.pid}", *command],
            capture_output=True,
            text=True,
            timeout=PATIENCE,
        )
        place.stdin.close()
    assert ended.returncode == code, ended.stderr
    told = [one for one in ended.stderr.splitlines() if one.startswith("dragoman: ")]
    assert told[0].startswith(line.format(host=os.uname().nodename, run=run))
    if mount == READ_ONLY:
        assert told[0].endswith("; name a path on a disk that can be written to")
    assert not [one for one in told[1:] if "resume the run with: " not in one]
    assert "Traceback" not in ended.stderr


def train_words(folder: Path, workers: int, *overrides: str) -> list[str]:
    target = "--run", folder / "run", "--workers", str(workers)
    return dragoman_command("train", folder / "config.toml", *target, *SMALL, *overrides)


@pytest.mark.parametrize("workers", [1, 2])
@pytest.mark.parametrize("kind", ["full disk", "closed pipe"])
def test_a_console_that_cannot_be_written_does_not_end_training(
    prepared: Path, kind: str, workers: int
) -> None:
    if kind == "full disk":
        console = os.open("/dev/full", os.O_WRONLY)
    else:
        other, console = os.pipe()
        os.close(other)
    try:
        command = train_words(prepared, workers)
        ended = subprocess.run(command, stdout=console, stderr=console, timeout=PATIENCE)
    finally:
        os.close(console)
    assert ended.returncode == 0
    assert metrics(prepared / "run", "stop")[-1]["reason"] == "steps"
    assert "the run is complete" in (prepared / "run/train.log").read_text()


@pytest.mark.parametrize("what", ["deleted", "moved"])
def test_a_run_whose_folder_is_gone_ends_and_never_counts_as_complete(
    prepared: Path, what: str
) -> None:
    run, elsewhere = prepared / "run", prepared / "elsewhere"
    command = train_words(prepared, 1, *LONG)
    process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True)
    try:
        wait_until(lambda: has_step(run, 5))
        run.rename(elsewhere)
        if what == "deleted":
            shutil.rmtree(elsewhere)
        errors = process.communicate(timeout=PATIENCE)[1]
    finally:
        process.kill()
        process.wait()
    assert process.returncode == 1
    assert f"dragoman: {run} was deleted or moved while the run was written to it" in errors
    assert "complete" not in errors
    assert not run.exists()
    if what == "moved":
        assert metrics(elsewhere, "stop")[-1]["reason"] == "error"


def test_a_terminal_that_is_gone_does_not_end_training(prepared: Path) -> None:
    run = prepared / "run"
    own, terminal = os.openpty()
    command = train_words(prepared, 1, *LONG)
    process = subprocess.Popen(command, stderr=terminal, start_new_session=True)
    os.close(terminal)
    try:
        wait_until(lambda: has_step(run, 5))
        os.close(own)  # From here on, writing to it is an input/output error.
        step = metrics(run, "train")[-1]["step"]
        wait_until(lambda: has_step(run, step + 100))
        process.send_signal(signal.SIGHUP)
        assert process.wait(timeout=PATIENCE) == 4
    finally:
        process.kill()
        process.wait()
    assert metrics(run, "stop")[-1]["reason"] == "signal"
    assert metrics(run, "stop")[-1]["detail"] == "SIGHUP"
