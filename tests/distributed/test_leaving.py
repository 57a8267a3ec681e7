"""The end of a run: what is done stays done, however its processes leave, and a stop is a stop."""

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from forked import OPTION
from launched import LONG, PACED, worker_processes
from support import PATIENCE, SMALL, has_step, metrics, wait_until

pytestmark = pytest.mark.slow

# The launcher, whose patience a test may shorten.
LAUNCHER = """
import os, sys
from dragoman.cluster import launch
for name in ("SECONDS_TO_LEAVE", "SECONDS_OF_SILENCE"):
    setattr(launch, name, float(os.environ.get(name, getattr(launch, name))))
from dragoman.cli import main
main(sys.argv[1:])
"""


@contextmanager
def launcher(folder: Path, *overrides: str, **variables: str) -> Iterator[subprocess.Popen[str]]:
    """A run of two workers; none of its processes outlives the block."""
    words = ["train", str(folder / "config.toml"), "--run", str(folder / "run"), "--workers", "2"]
    process = subprocess.Popen(
        [sys.executable, *OPTION, "-c", LAUNCHER, *words, *SMALL, *overrides],
        stderr=subprocess.PIPE,
        text=True,
        env=os.environ | PACED | variables,
    )
    try:
        yield process
    finally:
        process.kill()
        process.communicate()


@pytest.mark.parametrize("way", ["slowly", "never", "killed", "with an error"])
def test_a_worker_that_has_done_its_work_is_not_asked_to_do_it_again(
    prepared: Path, way: str
) -> None:
    variables = {"LEAVES": way, "SECONDS_TO_LEAVE": "7"}
    with launcher(prepared, "distributed.timeout_seconds=5", **variables) as process:
        _, errors = process.communicate(timeout=PATIENCE)
    assert process.returncode == 0, errors
    assert errors.count("the run is complete at step 24") == 1, errors
    assert not metrics(prepared / "run", "restart")
    assert "no heartbeat" not in errors


def test_nothing_restarts_after_a_stop_was_asked_for(prepared: Path) -> None:
    run = prepared / "run"
    with launcher(prepared, *LONG) as process:
        wait_until(lambda: has_step(run, 10))
        (agent,) = {worker.parent() for worker in worker_processes(process)}
        victim = worker_processes(process)[1]
        agent.suspend()  # So that the request and the death of a worker come to it together.
        victim.suspend()
        process.send_signal(signal.SIGINT)
        assert process.stderr
        while "press Ctrl-C again" not in process.stderr.readline():
            assert process.poll() is None
        victim.kill()
        agent.resume()
        _, errors = process.communicate(timeout=PATIENCE)
    assert process.returncode == 1, errors
    assert "killed by SIGKILL" in errors
    assert "resume the run with: " in errors
    assert not metrics(run, "restart")


def test_an_agent_that_is_stopped_for_good_is_not_waited_for_for_ever(prepared: Path) -> None:
    with launcher(prepared, *LONG, SECONDS_OF_SILENCE="5") as process:
        wait_until(lambda: has_step(prepared / "run", 5))
        (agent,) = {worker.parent() for worker in worker_processes(process)}
        agent.suspend()
        _, errors = process.communicate(timeout=PATIENCE)
    assert process.returncode == 1, errors
    assert "no heartbeat from its agent for " in errors
    assert "resume the run with: " in errors


def test_a_terminal_that_closes_asks_for_a_stop(prepared: Path) -> None:
    run = prepared / "run"
    with launcher(prepared, *LONG) as process:
        wait_until(lambda: has_step(run, 5))
        for _ in range(2):  # The shell says so, and then the kernel.
            process.send_signal(signal.SIGHUP)
        _, errors = process.communicate(timeout=PATIENCE)
    assert process.returncode == 4, errors
    last = metrics(run, "train")[-1]["step"]
    assert (run / f"checkpoints/step-{last:08d}").is_dir()
