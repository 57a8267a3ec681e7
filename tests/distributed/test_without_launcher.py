"""Workers that torchrun or Slurm starts."""

import os
import random
import re
import socket
import subprocess
import sys
from contextlib import suppress
from pathlib import Path

import pytest

from launched import LONG
from support import (
    PATIENCE,
    SMALL,
    assert_same_end,
    dragoman_command,
    has_step,
    run_dragoman,
    wait_until,
)

pytestmark = pytest.mark.slow


def free_port() -> int:
    """A port that nobody listens at, and that the kernel gives to no connection meanwhile."""
    while True:
        port = random.SystemRandom().randrange(20_000, 32_000)
        with suppress(OSError), socket.create_server(("127.0.0.1", port)):
            return port


def slurm_task(
    folder: Path, name: str, rank: int, port: int, *overrides: str
) -> subprocess.Popen[str]:
    """One of two tasks that train, as srun would start it."""
    return start_task(
        rank, port, "train", folder / "config.toml", "--run", folder / name, *SMALL, *overrides
    )


def start_task(rank: int, port: int, *words: str | Path) -> subprocess.Popen[str]:
    variables = {"SLURM_PROCID": str(rank), "SLURM_NTASKS": "2", "SLURM_LOCALID": str(rank)}
    variables |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
    return subprocess.Popen(
        dragoman_command(*words),
        env=os.environ | variables,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def test_in_a_check_one_worker_speaks(prepared: Path) -> None:
    port = free_port()
    words: list[str | Path] = [prepared / "config.toml", *SMALL]
    words += ["distributed.sync=local", "distributed.compression=bf16"]
    tasks = [start_task(rank, port, "check", *words) for rank in range(2)]
    said = [task.communicate(timeout=PATIENCE) for task in tasks]
    output = "".join(out for out, _ in said)
    assert output.count("machines") == 1, said
    assert output.count("all, 32 bf16 local steps (configured)") == 1


def test_a_start_that_is_refused_does_not_stand_in_the_way_of_the_next(prepared: Path) -> None:
    port = free_port()
    refused = [
        slurm_task(prepared, "run", rank, port, f"model.dropout=0.{rank + 1}") for rank in range(2)
    ]
    errors = "".join(task.communicate(timeout=PATIENCE)[1] for task in refused)
    assert {task.returncode for task in refused} == {2}, errors
    assert re.search(r"\(worker 1\) has model.dropout 0.2, .* \(worker 0\) has 0.1", errors), errors
    result = run_dragoman(
        "train", prepared / "config.toml", "--run", prepared / "run", *SMALL, "model.dropout=0.2"
    )
    assert result.returncode == 0, result.stderr


@pytest.mark.parametrize(
    ("mistakes", "line"),
    [
        (["distributed.port=29517"] * 2, "distributed.port only works with --workers and --hosts"),
        (["corpus.folder=nowhere"] * 2, "nowhere holds no prepared corpus"),
        (["corpus.folder=prepared", "corpus.folder=nowhere"], "nowhere holds no prepared corpus"),
        (["training.steps=9"] * 2, "is not empty and is not a run"),  # Only the writer looks.
        (["training.steps=x"] * 2, "training.steps"),
    ],
)
def test_a_mistake_is_told_once_without_a_launcher_too(
    prepared: Path, mistakes: list[str], line: str
) -> None:
    (prepared / "run").mkdir()
    (prepared / "run" / "diary").touch()
    port = free_port()
    tasks = [
        slurm_task(prepared, "run", rank, port, mistake) for rank, mistake in enumerate(mistakes)
    ]
    errors = "".join(task.communicate(timeout=PATIENCE)[1] for task in tasks)
    assert errors.count(line) == 1, errors
    assert "Traceback" not in errors
    assert 2 in {task.returncode for task in tasks} <= {1, 2}


def test_the_echo_of_a_killed_worker_is_one_line_without_a_launcher(prepared: Path) -> None:
    port = free_port()
    first, second = (slurm_task(prepared, "run", rank, port, *LONG) for rank in range(2))
    with first, second:
        try:
            wait_until(lambda: has_step(prepared / "run", 3))
            second.kill()
            _, errors = first.communicate(timeout=PATIENCE)
        finally:
            first.kill()
            second.kill()
    assert first.returncode == 1
    assert "dragoman: connection to another worker lost; see its log" in errors
    assert "Traceback" not in errors


def test_torchrun_and_slurm_variables_join_as_they_are(prepared: Path) -> None:
    command = ["-m", "dragoman", "train", str(prepared / "config.toml"), "--name"]
    result = subprocess.run(
        [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node=2", "--rdzv-backend=c10d"]
        + ["--rdzv-endpoint=127.0.0.1:0", *command, str(prepared / "torchrun"), *SMALL],
        capture_output=True,
        text=True,
    )
    assert result.returncode == 0, result.stderr
    port = free_port()
    tasks = [slurm_task(prepared, "slurm", rank, port) for rank in range(2)]
    for task in tasks:
        _, errors = task.communicate(timeout=PATIENCE)
        assert task.returncode == 0, errors
    assert_same_end(prepared / "torchrun", prepared / "slurm")


@pytest.mark.parametrize(
    ("setting", "line"),
    [
        ("interface=eth77", "eth77': .* has no such interface"),
        ("port=29512", "distributed.port only works with --workers and --hosts"),
        ("min_workers=1", "distributed.min_workers only works with --workers and --hosts"),
        ("wait_seconds=60", "distributed.wait_seconds only works with --workers and --hosts"),
        ("max_restarts=3", "distributed.max_restarts only works with --workers and --hosts"),
    ],
)
def test_no_setting_is_ignored_without_a_launcher(prepared: Path, setting: str, line: str) -> None:
    variables = {"SLURM_PROCID": "0", "SLURM_NTASKS": "2", "MASTER_ADDR": "127.0.0.1"}
    settings = [*SMALL, f"distributed.{setting}", "distributed.timeout_seconds=5"]
    result = run_dragoman(
        "train",
        prepared / "config.toml",
        *settings,
        env=os.environ | variables | {"MASTER_PORT": str(free_port())},
    )
    assert result.returncode == 2, result.stderr
    assert re.search(line, result.stderr), result.stderr


def test_a_machine_that_never_comes_is_told_in_one_line(prepared: Path) -> None:
    variables = {"SLURM_PROCID": "0", "SLURM_NTASKS": "2", "MASTER_ADDR": "127.0.0.1"}
    result = run_dragoman(
        "train",
        prepared / "config.toml",
        *SMALL,
        "distributed.timeout_seconds=5",
        env=os.environ | variables | {"MASTER_PORT": str(free_port())},
    )
    assert result.returncode == 2, result.stderr
    assert "1/2 clients joined" in result.stderr
    assert "start all of them" in result.stderr
    assert "Traceback" not in result.stderr


@pytest.mark.parametrize(
    ("name", "value", "line"),
    [
        ("GLOO_SOCKET_IFNAME", "lo,eth77", "GLOO_SOCKET_IFNAME=lo,eth77: .* has no such interface"),
        ("MASTER_ADDR", "", "MASTER_ADDR is not set"),
    ],
)
def test_wrong_variables_are_told_in_one_line(
    prepared: Path, name: str, value: str, line: str
) -> None:
    variables = {"SLURM_PROCID": "0", "SLURM_NTASKS": "2", "MASTER_ADDR": "127.0.0.1"}
    variables |= {"MASTER_PORT": str(free_port()), name: value}
    result = run_dragoman(
        "train", prepared / "config.toml", *SMALL, env=os.environ | variables, cwd=prepared
    )
    assert result.returncode == 2, result.stderr
    assert re.search(line, result.stderr), result.stderr
    assert "Traceback" not in result.stderr


def test_a_port_in_use_is_told_in_one_line(prepared: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        with slurm_task(prepared, "run", 0, port) as task:
            _, errors = task.communicate(timeout=PATIENCE)
    assert task.returncode == 2, errors
    assert f"MASTER_PORT={port} (The server socket has failed to listen" in errors
    assert "Traceback" not in errors
