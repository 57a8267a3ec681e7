"""Several workers on one machine: lockstep, and what happens when one of them fails."""

import os
import pickle
import re
import signal
import subprocess
import sys
import time
from base64 import b64encode
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import psutil
import pytest

from dragoman.cluster.board import STORE_VARIABLE, connect
from support import (
    SMALL,
    assert_same_end,
    dragoman_command,
    has_step,
    metrics,
    refusal,
    run_dragoman,
    wait_until,
    without_privilege,
)

pytestmark = pytest.mark.slow

NO_DROPOUT = ["model.dropout=0.0", "model.attention_dropout=0.0", "model.relu_dropout=0.0"]
LONG = ["training.steps=100_000", "evaluation.every_steps=100_000"]


def train(
    folder: Path, name: str, workers: int, *overrides: str
) -> subprocess.CompletedProcess[str]:
    target = ("--run", folder / name, "--workers", str(workers))
    return run_dragoman("train", folder / "config.toml", *target, *SMALL, *overrides)


@contextmanager
def training(
    folder: Path, *overrides: str, environment: dict[str, str] | None = None
) -> Iterator[subprocess.Popen[str]]:
    """A run in the background; none of its processes outlives the block."""
    process = subprocess.Popen(
        dragoman_command("train", folder / "config.toml", "--run", folder / "run")
        + ["--workers", "2", *SMALL, *overrides],
        stderr=subprocess.PIPE,
        text=True,
        env=os.environ | (environment or {}),
    )
    try:
        yield process
    finally:
        process.kill()
        process.communicate()


def worker_processes(launcher: subprocess.Popen[Any]) -> list[psutil.Process]:
    """The workers, by rank on this machine."""
    found = [
        process
        for process in psutil.Process(launcher.pid).children(recursive=True)
        if "train" in process.cmdline() and "LOCAL_RANK" in process.environ()
    ]
    return sorted(found, key=lambda process: int(process.environ()["LOCAL_RANK"]))


@pytest.fixture(scope="module")
def fault_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A sitecustomize that makes one worker fail at a step, as the variable FAULT says."""
    folder = tmp_path_factory.mktemp("fault")
    (folder / "sitecustomize.py").write_text(
        """
import os, signal, time
if "FAULT" in os.environ and "RANK" in os.environ:
    rank, step, kind = os.environ["FAULT"].split(",")
    if os.environ["RANK"] == rank:
        from dragoman.training.step import PlainStep
        original = PlainStep.queue
        def queue(self, batch, number, *rest):
            if number == int(step) and kind == "exception":
                raise ValueError("the disk of this worker is on fire")
            if number == int(step) and kind == "memory":
                raise MemoryError("cannot allocate 1 TB")
            if number == int(step) and kind == "signal":
                os.kill(os.getpid(), signal.SIGSEGV)
            if number == int(step) and kind == "stuck":
                time.sleep(1_000)
            if number == int(step) and kind == "nan":
                for parameter in self._model.parameters():
                    parameter.data.fill_(float("nan"))
            return original(self, batch, number, *rest)
        PlainStep.queue = queue
"""
    )
    return folder


class Trap:
    """Touches a file when it is unpickled."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> tuple[Any, ...]:
        return Path.touch, (self.path,)


def test_losses_agree_for_any_number_of_workers_and_compression(prepared: Path) -> None:
    histories = []
    for workers in (1, 2, 3):
        result = train(prepared, f"run{workers}", workers, *NO_DROPOUT, "training.steps=50")
        assert result.returncode == 0, result.stderr
        histories.append(metrics(prepared / f"run{workers}", "train"))
    assert [len(history) for history in histories] == [50] * 3
    for alone, *shared in zip(*histories, strict=True):
        for other in shared:
            assert other["loss"] == pytest.approx(alone["loss"], rel=2e-5)
            assert other["gradient_norm"] == pytest.approx(alone["gradient_norm"], rel=1e-3)
            assert other["target_tokens"] == alone["target_tokens"]
    evaluations = [metrics(prepared / f"run{workers}", "eval") for workers in (1, 2, 3)]
    for alone, *shared in zip(*evaluations, strict=True):
        for other in shared:
            assert other["loss"] == pytest.approx(alone["loss"], rel=1e-4)
            assert other["pairs"] == alone["pairs"] == 20
            assert other["bleu"] == pytest.approx(alone["bleu"], abs=5.0)
    for history, workers in zip(histories[1:], (2, 3), strict=True):
        assert {line["slowest"]["worker"] for line in history} <= set(range(workers))
    for compression in ("bf16", "fp16", "powersgd"):
        settings = [*NO_DROPOUT, "training.steps=50", f"distributed.compression={compression}"]
        result = train(prepared, compression, 2, *settings)
        assert result.returncode == 0, result.stderr
        packed = metrics(prepared / compression, "train")
        tolerance = 0.15 if compression == "powersgd" else 0.02
        assert packed[-1]["loss"] == pytest.approx(histories[0][-1]["loss"], rel=tolerance)
        assert packed[-1]["loss"] != histories[1][-1]["loss"], "nothing was compressed"


def has_restarted(run: Path, count: int) -> bool:
    return len(metrics(run, "restart")) >= count


def test_three_kills_end_like_the_undisturbed_run(prepared: Path) -> None:
    steps = "training.steps=120"
    assert train(prepared, "whole", 2, steps).returncode == 0
    run = prepared / "run"
    with training(prepared, steps) as process:
        for count, (victim, step) in enumerate(((1, 20), (0, 50), (1, 80)), start=1):
            wait_until(partial(has_step, run, step))
            worker_processes(process)[victim].kill()
            wait_until(partial(has_restarted, run, count))
        _, errors = process.communicate(timeout=120)
        assert process.returncode == 0, errors
    assert_same_end(prepared / "whole", run)
    restarts = metrics(run, "restart")
    assert [line["reason"].split(":")[-1] for line in restarts] == [" killed by SIGKILL"] * 3
    assert [line["reason"].split(" ")[1] for line in restarts] == ["1", "0", "1"]
    counted = {}
    for line in metrics(run, "train"):
        assert line.get("repeated", False) == (line["step"] in counted)
        counted[line["step"]] = line
    assert sorted(counted) == list(range(1, 121))


def test_stopped_worker_is_named_and_replaced(prepared: Path) -> None:
    run = prepared / "run"
    with training(prepared, *LONG, "distributed.timeout_seconds=8") as process:
        wait_until(lambda: has_step(run, 10))
        worker_processes(process)[1].suspend()
        wait_until(lambda: bool(metrics(run, "restart")), seconds=60)
        (restart,) = metrics(run, "restart")
        assert restart["reason"].startswith(f"worker 1 on {os.uname().nodename} at step ")
        assert "did not move for" in restart["reason"]
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
        wait_until(lambda: has_step(run, step + 100))
        process.send_signal(signal.SIGINT)
        _, errors = process.communicate(timeout=60)
    assert process.returncode == 4, errors
    assert not metrics(run, "restart")


def test_others_do_not_wait_for_ever_for_a_stuck_worker(prepared: Path, fault_folder: Path) -> None:
    fault = {"FAULT": "1,9,stuck", "PYTHONPATH": str(fault_folder)}
    run = prepared / "run"
    with training(prepared, *LONG, "distributed.timeout_seconds=5", environment=fault) as process:
        wait_until(lambda: has_step(run, 8))
        wait_until(lambda: has_restarted(run, 1))
        assert process.poll() is None
    (restart,) = metrics(run, "restart")
    assert restart["reason"].endswith("lost touch with another worker")
    assert restart["step"] == 8


def test_no_worker_outlives_its_agent_or_its_launcher(prepared: Path) -> None:
    for victim in ("agent", "launcher"):
        with training(prepared, *LONG) as process:
            wait_until(lambda: has_step(prepared / "run", 5))
            workers = worker_processes(process)
            assert len(workers) == 2
            (workers[0].parent() if victim == "agent" else process).kill()
            psutil.wait_procs(workers, timeout=20)
            assert not any(worker.is_running() for worker in workers)
            if victim == "agent":
                _, errors = process.communicate(timeout=60)
                assert process.returncode == 1
                assert "the run can go on with: dragoman train" in errors
        subprocess.run(["rm", "-r", prepared / "run"], check=True)


def test_workers_that_have_hardly_begun_end_with_the_launcher(prepared: Path) -> None:
    with training(prepared, *LONG) as process:
        wait_until(lambda: len(worker_processes(process)) == 2)
        workers = worker_processes(process)
        process.kill()
        _, left = psutil.wait_procs(workers, timeout=20)
        assert not left
        _, errors = process.communicate(timeout=60)
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
    launcher = subprocess.Popen([sys.executable, "-c", code, *words], stderr=subprocess.DEVNULL)
    left: list[psutil.Process] = []
    try:
        wait_until(lambda: has_step(prepared / "run", 5))
        (worker,) = worker_processes(launcher)
        (worker.parent() if victim == "agent" else launcher).kill()
        _, left = psutil.wait_procs([worker], timeout=20)
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
        _, errors = process.communicate(timeout=60)
    assert process.returncode == 1
    assert "dragoman: the agent ended with -9" in errors


@pytest.mark.parametrize(
    ("kind", "line"),
    [
        ("exception", "worker 1 on .* at step 8: ValueError: the disk of this worker is on fire"),
        ("memory", "worker 1 on .* at step 8: MemoryError: cannot allocate 1 TB"),
    ],
)
def test_first_cause_is_what_the_user_reads(
    prepared: Path, fault_folder: Path, kind: str, line: str
) -> None:
    fault = {"FAULT": f"1,9,{kind}", "PYTHONPATH": str(fault_folder)}
    with training(prepared, *LONG, environment=fault) as process:
        _, errors = process.communicate(timeout=120)
    assert process.returncode == 1
    last = [text for text in errors.splitlines() if text.startswith("dragoman: ")]
    assert re.search(line, last[0]), errors
    assert "the run can go on with" in last[1]
    # Once is bad luck and restarted from step 8; twice at the same step is final.
    assert len(metrics(prepared / "run", "restart")) == 1


def test_the_same_signal_at_the_same_step_does_not_come_back_for_ever(
    prepared: Path, fault_folder: Path
) -> None:
    fault = {"FAULT": "1,10,signal", "PYTHONPATH": str(fault_folder)}
    with training(prepared, *LONG, environment=fault) as process:
        _, errors = process.communicate(timeout=120)
    assert process.returncode == 1
    line = "worker 1 on .* at step 9: killed by SIGSEGV for the third time there"
    assert re.search(line, errors), errors
    assert len(metrics(prepared / "run", "restart")) == 2


def test_nan_in_one_worker_makes_all_skip_together(prepared: Path, fault_folder: Path) -> None:
    fault = {"FAULT": "1,9,nan", "PYTHONPATH": str(fault_folder)}
    settings = [*LONG, "training.max_skipped_steps=3"]
    with training(prepared, *settings, environment=fault) as process:
        _, errors = process.communicate(timeout=120)
    assert process.returncode == 1
    assert "no finite gradient in 3 steps in a row, up to step 11" in errors
    skipped = {line["step"] for line in metrics(prepared / "run", "train") if "skipped" in line}
    assert skipped == {9, 10, 11}


def test_ctrl_c_saves_and_the_same_command_goes_on(prepared: Path) -> None:
    run = prepared / "run"
    with training(prepared, *LONG) as process:
        wait_until(lambda: has_step(run, 5))
        process.send_signal(signal.SIGINT)
        _, errors = process.communicate(timeout=60)
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
        while "Ctrl-C once more" not in process.stderr.readline():
            assert process.poll() is None
        process.send_signal(signal.SIGINT)
        _, errors = process.communicate(timeout=60)
    assert process.returncode == 130
    assert "checkpoints that were saved are whole" in errors


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
        _, errors = process.communicate(timeout=60)
    assert process.returncode == 1
    assert "somebody without the run's secret wrote to its rendezvous" in errors
    assert "Traceback" not in errors
    assert not (tmp_path / "trapped").exists()


def slurm_task(
    folder: Path, name: str, rank: int, port: str, *overrides: str
) -> subprocess.Popen[str]:
    """One of two tasks, as srun would start it."""
    variables = {"SLURM_PROCID": str(rank), "SLURM_NTASKS": "2", "SLURM_LOCALID": str(rank)}
    variables |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port}
    return subprocess.Popen(
        dragoman_command("train", folder / "config.toml", "--run", folder / name)
        + [*SMALL, *overrides],
        env=os.environ | variables,
        stderr=subprocess.PIPE,
        text=True,
    )


def test_a_start_that_is_refused_does_not_stand_in_the_way_of_the_next(prepared: Path) -> None:
    refused = [
        slurm_task(prepared, "run", rank, "29514", f"model.dropout=0.{rank + 1}")
        for rank in range(2)
    ]
    errors = "".join(task.communicate(timeout=120)[1] for task in refused)
    assert {task.returncode for task in refused} == {2}, errors
    assert re.search(r"\(worker 1\) has model.dropout 0.2, .* \(worker 0\) has 0.1", errors), errors
    result = run_dragoman(
        "train", prepared / "config.toml", "--run", prepared / "run", *SMALL, "model.dropout=0.2"
    )
    assert result.returncode == 0, result.stderr


@pytest.mark.parametrize(
    ("mistakes", "line"),
    [
        (["distributed.port=29517"] * 2, "distributed.port is for --workers and --hosts"),
        (["corpus.folder=nowhere"] * 2, "nowhere holds no prepared corpus"),
        (["corpus.folder=prepared", "corpus.folder=nowhere"], "nowhere holds no prepared corpus"),
        (["training.steps=9"] * 2, "is not empty and holds no run"),  # Only the writer looks.
        (["training.steps=x"] * 2, "training.steps"),
    ],
)
def test_a_mistake_is_told_once_without_a_launcher_too(
    prepared: Path, mistakes: list[str], line: str
) -> None:
    (prepared / "run").mkdir()
    (prepared / "run" / "diary").touch()
    tasks = [
        slurm_task(prepared, "run", rank, "29516", mistake) for rank, mistake in enumerate(mistakes)
    ]
    errors = "".join(task.communicate(timeout=120)[1] for task in tasks)
    assert errors.count(line) == 1, errors
    assert "Traceback" not in errors
    assert 2 in {task.returncode for task in tasks} <= {1, 2}


def test_the_echo_of_a_killed_worker_is_one_line_without_a_launcher(prepared: Path) -> None:
    first, second = (slurm_task(prepared, "run", rank, "29518", *LONG) for rank in range(2))
    with first, second:
        try:
            wait_until(lambda: has_step(prepared / "run", 3))
            second.kill()
            _, errors = first.communicate(timeout=120)
        finally:
            first.kill()
            second.kill()
    assert first.returncode == 1
    assert "dragoman: lost touch with another worker; look for what it said" in errors
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
    tasks = [slurm_task(prepared, "slurm", rank, "29511") for rank in range(2)]
    for task in tasks:
        _, errors = task.communicate(timeout=120)
        assert task.returncode == 0, errors
    assert_same_end(prepared / "torchrun", prepared / "slurm")


@pytest.mark.parametrize(
    ("setting", "line"),
    [
        ("interface=eth77", "eth77': .* has no such interface"),
        ("port=29512", "distributed.port is for --workers and --hosts"),
        ("min_workers=1", "distributed.min_workers is for --workers and --hosts"),
        ("wait_seconds=60", "distributed.wait_seconds is for --workers and --hosts"),
        ("max_restarts=3", "distributed.max_restarts is for --workers and --hosts"),
    ],
)
def test_no_setting_is_ignored_without_a_launcher(prepared: Path, setting: str, line: str) -> None:
    variables = {"SLURM_PROCID": "0", "SLURM_NTASKS": "2", "MASTER_ADDR": "127.0.0.1"}
    settings = [*SMALL, f"distributed.{setting}", "distributed.timeout_seconds=5"]
    result = run_dragoman(
        "train",
        prepared / "config.toml",
        *settings,
        env=os.environ | variables | {"MASTER_PORT": "29513"},
    )
    assert result.returncode == 2, result.stderr
    assert re.search(line, result.stderr), result.stderr


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
    variables |= {"MASTER_PORT": "29515", name: value}
    result = run_dragoman(
        "train", prepared / "config.toml", *SMALL, env=os.environ | variables, cwd=prepared
    )
    assert result.returncode == 2, result.stderr
    assert re.search(line, result.stderr), result.stderr
    assert "Traceback" not in result.stderr


@pytest.mark.parametrize(
    ("options", "line"),
    [
        (["--workers", "0"], "--workers 0: must be at least 1"),
        (["--workers", "2", "--hosts", "a"], "give one of them"),
        (["--hosts", "a:x"], "'a:x' is not HOST or HOST:WORKERS"),
        (["--hosts", "me@a:2"], "write a alone, and `User me` for it in ~/.ssh/config"),
        (["--hosts", "a,a"], "every host may be named once"),
        (["--hosts", "no-such-host.invalid"], "no-such-host.invalid: no way to it"),
        (["--hosts", "192.0.2.1", "distributed.interface=lo"], "'lo' does not lead to 192.0.2.1"),
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
    assert "can go on with" not in result.stderr


@pytest.mark.parametrize(
    ("name", "why"), [("closed/run", "Permission denied"), ("config.toml", "File exists")]
)
def test_where_no_run_can_be_is_told_in_one_line(prepared: Path, name: str, why: str) -> None:
    (prepared / "closed").mkdir(mode=0o500)
    command = dragoman_command("train", prepared / "config.toml", "--run", prepared / name)
    result = subprocess.run(
        without_privilege([*command, "--workers", "2", *SMALL]), capture_output=True, text=True
    )
    assert result.returncode == 2, result.stderr
    (line,) = [line for line in result.stderr.splitlines() if "2 workers, lo" not in line]
    assert re.fullmatch(f"dragoman: worker 0 on .*: {prepared / name}: {why}", line)


@pytest.mark.parametrize("fragments", [1, 2])
def test_local_steps_resume_and_restart_exactly(
    prepared: Path, fault_folder: Path, fragments: int
) -> None:
    local = ["distributed.sync=local", "distributed.local_steps=3", "distributed.compression=bf16"]
    local += [f"distributed.local_fragments={fragments}", "evaluation.every_steps=12"]
    result = train(prepared, "whole", 2, *local)
    assert result.returncode == 0, result.stderr
    train(prepared, "run", 2, *local, "training.steps=12")
    fault = {"FAULT": "1,15,exception", "PYTHONPATH": str(fault_folder)}
    with training(prepared, *local, "distributed.max_restarts=0", environment=fault) as process:
        assert process.wait(timeout=120) == 1
    train(prepared, "run", 2, *local)
    assert_same_end(prepared / "run", prepared / "whole")


def test_local_steps_learn_what_steps_together_learn(prepared: Path) -> None:
    ends = {}
    for name, local in (("together", []), ("alone", ["distributed.sync=local"])):
        settings = [*local, "training.steps=60", "evaluation.every_steps=60"]
        settings += ["distributed.local_steps=4"] if local else []
        result = train(prepared, name, 2, *NO_DROPOUT, *settings)
        assert result.returncode == 0, result.stderr
        ends[name] = metrics(prepared / name, "eval")[-1]["loss"]
    assert ends["alone"] == pytest.approx(ends["together"], abs=0.15)
