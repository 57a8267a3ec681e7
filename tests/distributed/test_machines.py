"""Runs over several machines: launched from one place, and faults of machines and links."""

import re
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from dragoman.config_file import load_config
from dragoman.corpus.prepare import prepare
from launched import LONG
from machines import (
    Network,
    end_of,
    network,
    run_on,
    start_all,
    training,
    wait_for_all,
    wait_for_ssh,
)
from support import (
    PATIENCE,
    SMALL,
    final_tensors,
    has_step,
    metrics,
    number_pairs,
    wait_until,
    write_lines,
)

pytestmark = [pytest.mark.slow, pytest.mark.network]


def test_launched_from_a_machine_that_takes_part(tmp_path: Path, prepared: Path) -> None:
    """Here every process starts as a user's does: `env` is nothing that would be forked."""
    with network(tmp_path, ["hostA", "hostB"]) as net:
        start_all(net)
        first, second = net.machines
        run = net.folder / "private" / "run"
        options = ["--run", str(run), "--hosts", "hostA,hostB", *SMALL]
        command = ["env", sys.executable, "-m", "dragoman", "train", str(prepared / "config.toml")]
        result = subprocess.run(
            first.command(*command, *options),
            env=net.environment(),
            capture_output=True,
            text=True,
            timeout=PATIENCE,
        )
        assert result.returncode == 0, result.stderr
        assert "2 CPU workers on hostA, hostB" in result.stderr
        assert has_step(run_on(net, second), 24)
        # What ends is not forked either, and is taken apart in peace.
        for sign in ("Traceback", "Fatal", "terminate called", "Aborted", "Exception ignored"):
            assert sign not in result.stderr, result.stderr


def test_lost_machine_is_gone_on_without_and_joins_again(net: Network, prepared: Path) -> None:
    first, second = net.machines
    settings = [*SMALL, *LONG, "distributed.min_workers=1", "distributed.timeout_seconds=10"]
    with training(net, prepared / "config.toml", *settings) as process:
        survivor, victim = second, first  # hostA, worker 0's machine, will be lost.
        run = run_on(net, survivor)
        wait_for_all(net, run, 30)
        earlier = metrics(run, "restart")
        before = (metrics(run, "start") + earlier)[-1]["hosts"]
        if before[0] == "hostB":
            survivor, victim = first, second
            run = run_on(net, survivor)
        victim.kill()
        wait_until(lambda: len(metrics(run, "restart")) > len(earlier))
        (restart,) = metrics(run, "restart")[len(earlier) :]
        assert restart["hosts"] == [survivor.name]
        assert (restart["lost"], restart["joined"]) == ([victim.name], [])
        assert f"{victim.name} was lost" in restart["reason"]
        assert restart["step"] > 0, "it went on from the survivor's own checkpoint"
        wait_until(lambda: bool(metrics(run, "lost")))
        (lost,) = metrics(run, "lost")
        assert lost["host"] == victim.name
        wait_until(lambda: metrics(run, "train")[-1]["step"] > restart["step"] + 20)
        slots = {line["slots"] for line in metrics(run, "train")}
        assert slots == {512}, "the same global batch"
        victim.start()
        wait_until(lambda: metrics(run, "restart")[-1]["joined"] == [victim.name])
        assert metrics(run, "joined")[-1]["host"] == victim.name
        last = metrics(run, "restart")[-1]
        assert (last["lost"], last["joined"]) == ([], [victim.name])
        assert last["reason"] == f"{victim.name} joined"
        assert sorted(last["hosts"]) == ["hostA", "hostB"]
        earlier = [line for line in metrics(run, "train") if line["time"] < last["time"]]
        assert last["step"] >= earlier[-1]["step"] - 200, "it was saved before the join"
        # The machine that came back has the whole history again.
        wait_until(lambda: has_step(run_on(net, victim), last["step"] + 5))
        steps = {line["step"] for line in metrics(run_on(net, victim), "train")}
        assert steps >= set(range(1, last["step"]))
        assert process.poll() is None


def test_what_is_complete_is_copied_to_a_machine_that_lacks_it(
    net: Network, prepared: Path
) -> None:
    runs = [run_on(net, one) for one in net.machines]
    for _ in range(2):
        with training(net, prepared / "config.toml", *SMALL) as process:
            output = end_of(net, process)
        assert process.returncode == 0, output
        first, second = (
            [path.read_bytes() for path in sorted(run.glob("checkpoints/step-00000024/*.saf*"))]
            for run in runs
        )
        assert first == second
        assert len(first) == 2
        shutil.rmtree(runs[1] / "checkpoints")
    assert "hostB: copied step-00000024, which was missing there" in output
    # And if there still is no room:
    place = str(net.folder / "private" / "run" / "checkpoints")
    small = f"mkdir {place} && mount -t tmpfs -o size=16k none {place}"
    subprocess.run(net.machines[1].command("sh", "-c", small), check=True)
    with training(net, prepared / "config.toml", *SMALL) as process:
        output = end_of(net, process)
    assert process.returncode == 1, output
    line = r"^dragoman: hostB: .*/step-00000024 could not be copied: .*No space left on device; fix"
    assert re.search(line, output, re.MULTILINE), output


def test_two_runs_of_one_name_are_not_made_one(net: Network, prepared: Path) -> None:
    config = prepared / "config.toml"
    for hosts, steps, code in (("hostA", 4, 0), ("hostB", 8, 0), ("hostA,hostB", 12, 2)):
        with training(net, config, *SMALL, f"training.steps={steps}", hosts=hosts) as process:
            output = end_of(net, process)
        assert process.returncode == code, output
    assert "on hostA and on hostB are different runs of one name: choose another" in output
    assert [metrics(run_on(net, one), "train")[-1]["step"] for one in net.machines] == [4, 8]


def test_used_up_restarts_end_the_run_on_all_machines(net: Network, prepared: Path) -> None:
    first, second = net.machines
    settings = [*SMALL, *LONG, "distributed.max_restarts=0", "distributed.timeout_seconds=10"]
    with training(net, prepared / "config.toml", *settings) as process:
        wait_until(lambda: has_step(run_on(net, first), 10))
        (worker,) = second.workers()
        worker.kill()
        output = end_of(net, process)
    assert process.returncode == 1, output
    assert re.search(r"dragoman: worker \d on hostB at step \d+: killed by SIGKILL", output), output
    assert "bring it back" not in output


def test_machine_that_all_wait_for_joins_in_time(net: Network, prepared: Path) -> None:
    """Nobody can save while all wait, so the launcher does not wait for that."""
    first, second = net.machines
    # However long a busy machine takes to come back.
    settings = [*SMALL, *LONG, "distributed.wait_seconds=600", "distributed.timeout_seconds=6"]
    with training(net, prepared / "config.toml", *settings) as process:
        run = run_on(net, first)
        wait_until(lambda: has_step(run, 10))
        second.kill()
        second.start()
        wait_until(lambda: bool(metrics(run, "restart")) or process.poll() is not None)
        assert process.poll() is None, end_of(net, process)
        assert sorted(metrics(run, "restart")[0]["hosts"]) == ["hostA", "hostB"]
        assert "checkpoint did not reach" not in (net.folder / "output").read_text()


def test_who_asks_for_a_stop_does_not_wait_for_a_lost_machine(net: Network, prepared: Path) -> None:
    first, second = net.machines
    settings = [*SMALL, *LONG, "distributed.timeout_seconds=6"]
    with training(net, prepared / "config.toml", *settings) as process:
        wait_until(lambda: has_step(run_on(net, first), 10))
        second.kill()
        wait_until(lambda: "trying to bring it back" in (net.folder / "output").read_text())
        process.send_signal(signal.SIGINT)
        output = end_of(net, process)
    assert process.returncode == 1, output
    assert "dragoman: hostB: the machine was lost" in output
    assert "resume the run with: dragoman train" in output


def test_fewer_workers_than_allowed_do_not_go_on(net: Network, prepared: Path) -> None:
    """One machine may be enough for two workers, but not the smaller one."""
    first, second = net.machines
    settings = [*SMALL, *LONG, "distributed.min_workers=2", "distributed.wait_seconds=8"]
    settings += ["distributed.timeout_seconds=6"]
    config = prepared / "config.toml"
    with training(net, config, *settings, hosts="hostA:2,hostB:1") as process:
        run = run_on(net, second)
        wait_until(lambda: has_step(run, 10))
        first.kill()
        output = end_of(net, process)
    assert process.returncode == 1, output
    assert "machines were missing for 8 s (distributed.wait_seconds); hostA did not" in output
    assert not [line for line in metrics(run, "restart") if line["hosts"] == ["hostB"]]


def test_cut_link_is_waited_for_then_the_run_stops_whole(net: Network, prepared: Path) -> None:
    first, second = net.machines
    settings = [*SMALL, *LONG, "distributed.wait_seconds=10", "distributed.timeout_seconds=6"]
    with training(net, prepared / "config.toml", *settings) as process:
        run = run_on(net, first)
        wait_until(lambda: has_step(run, 30))
        second.cut()
        output = end_of(net, process)
        second.mend()
    assert process.returncode == 1, output
    assert "machines were missing for 10 s (distributed.wait_seconds); hostB did not" in output
    assert "resume the run with: dragoman train" in output
    assert metrics(run, "checkpoint")
    assert final_tensors(run)


def test_machine_joins_again_when_its_link_is_mended(net: Network, prepared: Path) -> None:
    first, second = net.machines
    settings = [*SMALL, *LONG, "distributed.min_workers=1", "distributed.timeout_seconds=6"]
    # One for the loss of the machine; its return is none.
    settings += ["distributed.max_restarts=1"]
    with training(net, prepared / "config.toml", *settings) as process:
        run = run_on(net, first)
        wait_for_all(net, run, 10)
        earlier = len(metrics(run, "restart"))
        second.cut()
        wait_until(lambda: len(metrics(run, "restart")) > earlier)
        second.mend()
        wait_until(lambda: len(metrics(run, "restart")) > earlier + 1 or process.poll() is not None)
        assert process.poll() is None, end_of(net, process)
        together = metrics(run, "joined")[-1]["step"]
        wait_until(lambda: has_step(run_on(net, second), together + 20))
        reasons = [line["reason"] for line in metrics(run, "restart")[earlier:]]
        process.send_signal(signal.SIGINT)
        output = end_of(net, process)
    assert process.returncode == 4, output
    assert reasons == ["hostB was lost", "hostB joined"]
    assert "Exception ignored" not in output


def test_machines_that_differ_are_refused_by_name(net: Network, prepared: Path) -> None:
    _, second = net.machines
    other = prepared / "other"
    shutil.copytree(prepared, other)
    source, target = number_pairs(40_000, 300)
    write_lines(other / "train.en", source)
    write_lines(other / "train.de", target)
    prepare(load_config(other / "config.toml", SMALL), processes=1)
    second.kill()
    second.mounts = [f"mount --bind {other}/prepared {prepared}/prepared"]
    second.start()
    wait_for_ssh(net)
    with training(net, prepared / "config.toml", *SMALL) as process:
        output = end_of(net, process)
    assert process.returncode == 2, output
    assert "resume the run with" not in output
    assert re.search(r"the machines differ: host[AB] \(worker 1\) has corpus \w+, host[AB]", output)


def test_host_without_ssh_is_named(net: Network, prepared: Path) -> None:
    net.machines[1].kill()
    with training(net, prepared / "config.toml", *SMALL) as process:
        output = end_of(net, process)
    assert process.returncode == 2, output
    assert "hostB did not start (exit 255); try `ssh hostB" in output
