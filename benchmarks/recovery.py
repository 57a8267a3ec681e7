"""Seconds from a fault to the first new step, for the table in docs/distributed.md.

    python benchmarks/recovery.py

Two machines as network namespaces (needs root, iproute2, openssh-server), a small model.
"""

import argparse
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))

from dragoman.config_file import load_config
from dragoman.corpus.prepare import prepare
from launched import LONG
from machines import Machine, Network, network, shell, wait_for_ssh
from support import SMALL, has_step, metrics, wait_until, write_numbers

TIMEOUT_SECONDS = 10
WORKER, AGENT = b"train", b"dragoman.cluster.agent"
SETTINGS = [*SMALL, *LONG, "distributed.min_workers=1"]
SETTINGS += [f"distributed.timeout_seconds={TIMEOUT_SECONDS}"]
CONFIG = """
[corpus]
folder = "prepared"
train = [{ source = "train.en", target = "train.de" }]
validation.valid = { source = "valid.en", target = "valid.de" }
[vocabulary]
size = 320
[model]
preset = "tiny"
"""


def main() -> None:
    argparse.ArgumentParser(description=__doc__).parse_args()
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place)
        for name, first, count in (("train", 10_000, 600), ("valid", 20_000, 8)):
            write_numbers(folder, name, first, count)
        (folder / "config.toml").write_text(CONFIG)
        prepare(load_config(folder / "config.toml", SETTINGS))
        with network(folder, ["hostA", "hostB"]) as net:
            for machine in net.machines:
                machine.start()
            wait_for_ssh(net)
            print("| fault | seconds to the first new step |")
            print("|---|---|")
            measure(net, folder / "config.toml")


def measure(net: Network, config: Path) -> None:
    path = net.folder / "private" / "run"
    words = ["train", str(config), "--run", str(path), "--hosts", "hostA:1,hostB:1", *SETTINGS]
    process = subprocess.Popen(
        net.dragoman(*words),
        env=net.environment() | {"OMP_NUM_THREADS": "1"},
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    first, second = net.machines
    run = first.see(path)
    try:
        wait_until(lambda: has_step(run, 30), seconds=120)
        # With the workers that the run has afterwards.
        faults: list[tuple[str, Callable[[], None], int]] = [
            ("worker killed (kill -9)", lambda: kill(second, WORKER), 2),
            (
                f"worker stopped (SIGSTOP), timeout_seconds = {TIMEOUT_SECONDS}",
                lambda: kill(second, WORKER, signal.SIGSTOP),
                2,
            ),
            ("machine lost (all its processes killed)", second.kill, 1),
            ("machine back: saved, joined, going on", second.start, 2),
            ("agent killed, its machine brought back", lambda: kill(second, AGENT), 2),
            ("link cut: gone on without the machine", second.cut, 1),
            ("link mended: saved, joined, going on", second.mend, 2),
        ]
        for name, cause, workers in faults:
            print(f"| {name} | {seconds_to_recover(run, cause, workers):.1f} |", flush=True)
    finally:
        process.send_signal(signal.SIGTERM)
        process.wait(timeout=60)


def seconds_to_recover(run: Path, cause: Callable[[], None], workers: int) -> float:
    start = time.time()
    cause()
    restart = wait_for(run, "restart", start, workers)
    step = wait_for(run, "train", restart, workers)
    time.sleep(3)  # Some steps of the new life, so that the next fault meets a running one.
    return step - start


def wait_for(run: Path, kind: str, since: float, workers: int) -> float:
    """When the run, with so many workers, writes its first line of a kind after a time."""
    times: list[float] = []

    def look() -> bool:
        times[:] = (
            line["time"]
            for line in metrics(run, kind)
            if line["time"] > since and line.get("workers", workers) == workers
        )
        return bool(times)

    wait_until(look, seconds=180)
    return times[0]


def kill(machine: Machine, what: bytes, number: signal.Signals = signal.SIGKILL) -> None:
    """Send a signal to the machine's process with that word in its command."""
    for pid in shell(f"ip netns pids {machine.namespace}").split():
        words = Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")
        if what in words:
            os.kill(int(pid), number)
            return
    raise AssertionError(f"no {what.decode()} there")


if __name__ == "__main__":
    main()
