"""What is left when a preparation is killed or interrupted."""

import os
import signal
import subprocess
from pathlib import Path

import psutil

from support import dragoman_command, number_pairs, wait_until, write_lines

# Worker processes that come to life slowly, so that what happens meanwhile is certain to happen.
SLOW_WORKERS = """\
import sys, time
if any("spawn_main" in word for word in sys.orig_argv):
    time.sleep(2)
"""


def start_preparing(folder: Path) -> subprocess.Popen[str]:
    """Begin to prepare enough text for two worker processes, which start slowly."""
    source, target = number_pairs(10_000, 8_000)
    write_lines(folder / "train.en", source)
    write_lines(folder / "train.de", target)
    (folder / "sitecustomize.py").write_text(SLOW_WORKERS)
    return subprocess.Popen(
        dragoman_command("prepare", folder / "config.toml", "--processes", "2"),
        env={**os.environ, "PYTHONPATH": str(folder)},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )


def workers_of(process: subprocess.Popen[str]) -> list[psutil.Process]:
    children = psutil.Process(process.pid).children()
    return [child for child in children if any("spawn_main" in word for word in child.cmdline())]


def test_workers_end_with_a_preparation_that_was_killed_while_they_started(
    small_text: Path,
) -> None:
    with start_preparing(small_text) as process:
        wait_until(lambda: len(workers_of(process)) == 2)
        workers = workers_of(process)
        process.send_signal(signal.SIGKILL)
    _, left = psutil.wait_procs(workers, timeout=20)
    for worker in left:
        worker.kill()
    assert not left
