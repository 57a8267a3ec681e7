"""What is left when a preparation is killed or interrupted."""

import os
import signal
import subprocess
from pathlib import Path

import psutil
import pytest

from support import PATIENCE, dragoman_command, wait_until, write_numbers

pytestmark = pytest.mark.slow

# Worker processes that come to life slowly, so that what happens meanwhile is certain to happen.
SLOW_WORKERS = """\
import os, pathlib, sys, time
if any("spawn_main" in word for word in sys.orig_argv):
    pathlib.Path(__file__).with_name(f"{os.getpid()}.worker").touch()
    time.sleep(2)
"""


def start_preparing(folder: Path) -> subprocess.Popen[str]:
    """Begin to prepare enough text for two worker processes, which start slowly."""
    write_numbers(folder, "train", 10_000, 8_000)
    (folder / "sitecustomize.py").write_text(SLOW_WORKERS)
    return subprocess.Popen(
        dragoman_command("prepare", folder / "config.toml", "--processes", "2"),
        env={**os.environ, "PYTHONPATH": str(folder)},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )


def starting_workers(folder: Path) -> list[psutil.Process]:
    wait_until(lambda: len(list(folder.glob("*.worker"))) == 2)
    return [psutil.Process(int(path.stem)) for path in folder.glob("*.worker")]


def test_workers_end_with_a_preparation_that_was_killed_while_they_started(
    small_text: Path,
) -> None:
    with start_preparing(small_text) as process:
        workers = starting_workers(small_text)
        process.send_signal(signal.SIGKILL)
    _, left = psutil.wait_procs(workers, timeout=PATIENCE)
    for worker in left:
        worker.kill()
    assert not left


@pytest.mark.parametrize(
    ("number", "code", "words"),
    [(signal.SIGINT, 130, "dragoman: interrupted\n"), (signal.SIGTERM, 143, "")],
)
def test_an_interruption_is_one_line_whatever_workers_are_at(
    small_text: Path, number: signal.Signals, code: int, words: str
) -> None:
    with start_preparing(small_text) as process:
        starting_workers(small_text)
        if number is signal.SIGINT:
            os.killpg(process.pid, number)  # As Ctrl-C in a terminal does.
        else:
            process.send_signal(number)
        _, errors = process.communicate()
    assert errors == words
    assert process.returncode == code
    assert [path.name for path in (small_text / "prepared").iterdir()] == [".lock"]
