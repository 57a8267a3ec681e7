"""Several workers on one machine, and what happens when one of them fails."""

import os
import pickle
import re
import signal
import subprocess
import sys
import time
from base64 import b64encode
from pathlib import Path
from typing import Any

import psutil
import pytest

import forked
from dragoman.cluster.control_store import STORE_VARIABLE, connect
from launched import LONG, has_restarted, train, training, worker_processes
from support import (
    PATIENCE,
    SMALL,
    dragoman_command,
    has_step,
    metrics,
    refusal,
    run_dragoman,
    wait_until,
    without_privilege,
)

pytestmark = pytest.mark.slow


class Trap:
    """Touches a file when it is unpickled."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> tuple[Any, ...]:
        return Path.touch, (self.path,)


def test_stopped_worker_is_named_and_replaced(prepared: Path) -> None:
    run = prepared / "run"
    with training(prepared, *LONG, "distributed.timeout_seconds=8") as process:
        wait_until(lambda: has_step(run, 10))
        # The user's own files do not take the place of Python's.
        assert worker_processes(process)[1].environ()["PYTHONSAFEPATH"] == "1"
        worker_processes(process)[1].suspend()
        wait_until(lambda: bool(metrics(run, "restart")))
        (restart,) = metrics(run, "restart")
        assert restart["reason"].startswith(f"worker 1 on {os.uname().nodename} at step ")
        assert "no heartbeat for" in restart["reason"]
        step = restart["step"]
        wait_until(lambda: metrics(run, "train")[-1]["step"] > step + 5)


def test_a_launcher_that_stood_still_takes_nobody_for_dead(prepared: Path) -> None:
    run = prepared / "run"
    with training(prepared, *LONG, "distributed.timeout_seconds=5") as process:
        wait_until(lambda: has_step(run, 10))
        process.send_signal(signal.SIGSTOP)
        time.sleep(8)
        process.send_signal(signal.SIGCONT)
        step = metrics(run, "train")[-1]["step"]
        wait_until(lambda: has_step(run, step + 30))
        process.send_signal(signal.SIGINT)
        _, errors = process.communicate(timeout=PATIENCE)
    assert process.returncode == 4, errors
    assert not metrics(run, "restart")


def test_ctrl_c_ends_a_check_which_has_nothing_to_save(prepared: Path) -> None:
    command = dragoman_command("check", prepared / "config.toml", "--workers", "2", *SMALL)
    process = subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True
    )
    try:
        wait_until(lambda: len(worker_processes(process, "check")) == 2)
        worker_processes(process, "check")[1].suspend()  # So that it cannot be over by itself.
        process.send_signal(signal.SIGINT)
        output, errors = process.communicate(timeout=PATIENCE)
    finally:
        process.kill()
    assert process.returncode == 130, errors
    assert output == ""
    assert errors.splitlines()[-1] == "dragoman: interrupted"
    assert "saving" not in errors


def test_others_do_not_wait_for_ever_for_a_stuck_worker(prepared: Path) -> None:
    fault = {"FAULT": "1,9,stuck"}
    run = prepared / "run"
    with training(prepared, *LONG, "distributed.timeout_seconds=5", environment=fault) as process:
        wait_until(lambda: has_step(run, 8))
        wait_until(lambda: has_restarted(run, 1))
        assert process.poll() is None
    (restart,) = metrics(run, "restart")
    assert restart["reason"].endswith("connection to another worker lost")
    assert restart["step"] == 8


def test_no_worker_outlives_its_agent_or_its_launcher(prepared: Path) -> None:
    for victim in ("agent", "launcher"):
        with training(prepared, *LONG) as process:
            wait_until(lambda: has_step(prepared / "run", 5))
            workers = worker_processes(process)
            assert len(workers) == 2
            (workers[0].parent() if victim == "agent" else process).kill()
            psutil.wait_procs(workers, timeout=PATIENCE)
            assert not any(worker.is_running() for worker in workers)
            if victim == "agent":
                _, errors = process.communicate(timeout=PATIENCE)
                assert process.returncode == 1
                assert "resume the run with: dragoman train" in errors
        subprocess.run(["rm", "-r", prepared / "run"], check=True)


def test_workers_that_have_hardly_begun_end_with_the_launcher(prepared: Path) -> None:
    with training(prepared, *LONG) as process:
        wait_until(lambda: len(worker_processes(process)) == 2)
        workers = worker_processes(process)
        process.kill()
        _, left = psutil.wait_procs(workers, timeout=PATIENCE)
        assert not left
        _, errors = process.communicate(timeout=PATIENCE)
        assert "Traceback" not in errors


@pytest.mark.parametrize("victim", ["agent", "launcher"])
def test_a_single_worker_does_not_outlive_them_either(prepared: Path, victim: str) -> None:
    """As of `--hosts hostA:1`, or when all machines but one are lost."""
    code = """
import sys
from pathlib import Path
from dragoman.cluster.launch import Host
from dragoman.config_file import load_config
from dragoman.training.start import train_on
train_on([Host("", 1)], load_config(Path(sys.argv[1]), sys.argv[3:]), sys.argv[2])
"""
    words = [str(prepared / "config.toml"), str(prepared / "run"), *SMALL, *LONG]
    command = [sys.executable, *forked.OPTION, "-c", code, *words]
    launcher = subprocess.Popen(command, stderr=subprocess.DEVNULL)
    left: list[psutil.Process] = []
    try:
        wait_until(lambda: has_step(prepared / "run", 5))
        (worker,) = worker_processes(launcher)
        (worker.parent() if victim == "agent" else launcher).kill()
        _, left = psutil.wait_procs([worker], timeout=PATIENCE)
        assert not left
    finally:
        for process in (launcher, *left):
            process.kill()
        launcher.wait()


def test_fault_that_was_survived_is_not_the_cause_of_the_end(prepared: Path) -> None:
    run = prepared / "run"
    with training(prepared, *LONG) as process:
        wait_until(lambda: has_step(run, 5))
        worker_processes(process)[1].kill()
        wait_until(lambda: has_restarted(run, 1))
        worker_processes(process)[0].parent().kill()
        _, errors = process.communicate(timeout=PATIENCE)
    assert process.returncode == 1
    assert "dragoman: the agent exited with code -9" in errors


@pytest.mark.parametrize(
    ("kind", "line"),
    [
        ("exception", "worker 1 on .* at step 8: ValueError: the disk of this worker is on fire"),
        ("memory", "worker 1 on .* at step 8: MemoryError: cannot allocate 1 TB"),
    ],
)
def test_first_cause_is_what_the_user_reads(prepared: Path, kind: str, line: str) -> None:
    fault = {"FAULT": f"1,9,{kind}"}
    with training(prepared, *LONG, environment=fault) as process:
        _, errors = process.communicate(timeout=PATIENCE)
    assert process.returncode == 1
    last = [text for text in errors.splitlines() if text.startswith("dragoman: ")]
    assert re.search(line, last[0]), errors
    assert "resume the run with" in last[1]
    assert ("Traceback" in errors) == (kind == "exception")  # A lack of memory needs none.
    # Once is bad luck and restarted from step 8; twice at the same step is final.
    assert len(metrics(prepared / "run", "restart")) == 1


def test_the_same_signal_at_the_same_step_does_not_come_back_for_ever(prepared: Path) -> None:
    fault = {"FAULT": "1,10,signal"}
    with training(prepared, *LONG, environment=fault) as process:
        _, errors = process.communicate(timeout=PATIENCE)
    assert process.returncode == 1
    line = "worker 1 on .* at step 9: killed by SIGSEGV for the third time without progress"
    assert re.search(line, errors), errors
    assert len(metrics(prepared / "run", "restart")) == 2


def test_ctrl_c_saves_and_the_same_command_goes_on(prepared: Path) -> None:
    run = prepared / "run"
    with training(prepared, *LONG) as process:
        wait_until(lambda: has_step(run, 5))
        process.send_signal(signal.SIGINT)
        _, errors = process.communicate(timeout=PATIENCE)
    assert process.returncode == 4, errors
    assert metrics(run, "stop")[-1]["reason"] == "signal"
    last = metrics(run, "train")[-1]["step"]
    assert (run / f"checkpoints/step-{last:08d}").is_dir()
    result = train(
        prepared, "run", 2, f"training.steps={last + 3}", "evaluation.every_steps=100_000"
    )
    assert result.returncode == 0, result.stderr
    assert metrics(run, "train")[-1]["step"] == last + 3
    assert metrics(run, "resume")[-1]["step"] == last


def test_second_ctrl_c_leaves_at_once(prepared: Path) -> None:
    with training(prepared, *LONG) as process:
        wait_until(lambda: has_step(prepared / "run", 5))
        worker_processes(process)[1].suspend()  # So that the first one cannot be done with.
        process.send_signal(signal.SIGINT)
        assert process.stderr
        while "press Ctrl-C again" not in process.stderr.readline():
            assert process.poll() is None
        process.send_signal(signal.SIGINT)
        _, errors = process.communicate(timeout=PATIENCE)
    assert process.returncode == 130
    assert "the checkpoints already saved are intact" in errors


def test_nothing_listens_beyond_loopback(prepared: Path) -> None:
    with training(prepared, *LONG) as process:
        wait_until(lambda: has_step(prepared / "run", 3))
        processes = [
            psutil.Process(process.pid),
            *psutil.Process(process.pid).children(recursive=True),
        ]
        listening = [
            connection.laddr.ip
            for one in processes
            for connection in one.net_connections("inet")
            if connection.status == psutil.CONN_LISTEN
        ]
    assert listening
    assert set(listening) == {"127.0.0.1"}


def test_what_a_stranger_writes_to_the_rendezvous_is_not_unpacked(
    prepared: Path, tmp_path: Path
) -> None:
    with training(prepared, *LONG) as process:
        wait_until(lambda: has_step(prepared / "run", 3))
        environment = worker_processes(process)[0].environ()
        state = b64encode(pickle.dumps(Trap(tmp_path / "trapped")))
        key = f"torch.rendezvous.{environment['TORCHELASTIC_RUN_ID']}"
        connect(environment[STORE_VARIABLE]).set(key, state)
        _, errors = process.communicate(timeout=PATIENCE)
    assert process.returncode == 1
    assert "someone without the run's secret wrote to its rendezvous" in errors
    assert "Traceback" not in errors
    assert not (tmp_path / "trapped").exists()


@pytest.mark.parametrize(
    ("options", "line"),
    [
        (["--workers", "0"], "--workers 0: must be at least 1"),
        (["--workers", "2", "--hosts", "a"], "give only one of them"),
        (["--hosts", "a:x"], "'a:x' is not HOST or HOST:WORKERS"),
        (["--hosts", "me@a:2"], "write only a, and put `User me` for it into ~/.ssh/config"),
        (["--hosts", "a,a"], "list each host only once"),
        (["--hosts", "no-such-host.invalid"], "cannot resolve this name; add it to /etc/hosts"),
        (["--hosts", "192.0.2.1", "distributed.interface=lo"], "'lo' has no route to 192.0.2.1"),
        (["--workers", "2", "distributed.min_workers=3"], "but there are only 2 workers"),
        (["--workers", "2", "distributed.interface=eth77"], "eth77': .* has no such interface"),
    ],
)
def test_wrong_requests_are_told_at_once(
    prepared: Path, options: list[str], line: str, capsys: pytest.CaptureFixture[str]
) -> None:
    config, run = prepared / "config.toml", prepared / "run"
    code, errors = refusal(capsys, "train", config, "--run", run, *SMALL, *options)
    assert code == 2
    assert re.search(line, errors), errors


def test_mistakes_that_workers_find_are_not_worth_another_try(small_text: Path) -> None:
    result = train(small_text, "run", 2)
    assert result.returncode == 2, result.stderr
    assert "holds no prepared corpus; run `dragoman prepare` first" in result.stderr
    assert "resume the run with" not in result.stderr


def test_where_no_run_can_be_is_told_in_one_line(prepared: Path) -> None:
    taken = prepared / "config.toml"
    words: list[str | Path] = ["train", taken, "--run", taken, "--workers", "2", *SMALL]
    result = run_dragoman(*words)
    assert result.returncode == 2, result.stderr
    (line,) = [line for line in result.stderr.splitlines() if "interface lo" not in line]
    assert re.fullmatch(
        f"dragoman: worker 0 on .*: {taken}: File exists; name another path, .*", line
    )


def test_where_nobody_may_write_is_told_in_one_line(prepared: Path) -> None:
    (prepared / "closed").mkdir(mode=0o500)
    run = prepared / "closed/run"
    command = dragoman_command("train", prepared / "config.toml", "--run", run, *SMALL)
    result = subprocess.run(without_privilege(command), capture_output=True, text=True)
    assert result.returncode == 2, result.stderr
    assert result.stderr == f"dragoman: {run}: Permission denied\n"
