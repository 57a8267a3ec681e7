"""The demo model on machines that are network namespaces of this one, for several benchmarks.

Needs root, iproute2 and openssh-server; each worker has at most one thread.
"""

import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))

from dragoman.config_file import load_config
from dragoman.corpus.demo import write_demo
from dragoman.corpus.prepare import prepare
from machines import Network, network, wait_for_ssh

CPU_GROUPS = Path("/sys/fs/cgroup/cpu")
PERIOD_MICROSECONDS = 10_000


@contextmanager
def demo_machines(names: Sequence[str]) -> Iterator[tuple[Network, Path]]:
    """Machines of these names, and the config of the demo, prepared."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        write_demo(folder / "text")
        shutil.copy(Path(__file__).parents[1] / "src/dragoman/corpus/demo.toml", folder)
        prepare(load_config(folder / "demo.toml"))
        with network(folder, names) as net:
            for machine in net.machines:
                machine.start()
            wait_for_ssh(net)
            yield net, folder / "demo.toml"


def set_links(net: Network, rate: str | None) -> None:
    """Limit what every machine sends, as in 100mbit; None is as fast as it goes."""
    for machine in net.machines:
        machine.limit(rate) if rate else machine.unlimit()


@contextmanager
def shared_cores(net: Network, *cores: float) -> Iterator[None]:
    """Give every machine a part of one processor, all the same if only one is given.

    Two processors of a host often share what computes, so that one is faster while the other idles.
    """
    parts = cores * len(net.machines) if len(cores) == 1 else cores
    assert sum(parts) < 1
    groups = []
    for machine, part in zip(net.machines, parts, strict=True):
        group = CPU_GROUPS / machine.namespace
        group.mkdir(exist_ok=True)
        (group / "cpu.cfs_period_us").write_text(str(PERIOD_MICROSECONDS))
        (group / "cpu.cfs_quota_us").write_text(str(round(part * PERIOD_MICROSECONDS)))
        assert machine.server
        (group / "cgroup.procs").write_text(str(machine.server.pid))
        os.sched_setaffinity(machine.server.pid, {0})
        groups.append(group)
    yield
    for machine, group in zip(net.machines, groups, strict=True):
        machine.kill()
        group.rmdir()


def train(net: Network, config: Path, hosts: str, settings: Sequence[str]) -> Path:
    """Train from the desk; return the run folder as the first host sees it."""
    path = net.folder / "private" / "run"
    for machine in net.machines:
        shutil.rmtree(machine.see(path), ignore_errors=True)
    result = subprocess.run(
        net.dragoman("train", config, "--run", path, "--hosts", hosts, *settings),
        env=net.environment() | {"OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
    )
    if result.returncode:
        raise SystemExit(result.stdout + result.stderr)
    return net.machines[0].see(path)
