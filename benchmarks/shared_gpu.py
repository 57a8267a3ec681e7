"""Machines that share one GPU: namespaces with a shaped link, and processes inside them.

Each machine is a network namespace with its own host name; NCCL and Gloo talk through a shaped link
as between real machines. Where CUDA's multi-process service is installed it runs meanwhile, so that
the machines' kernels run side by side; else the GPU switches between them every few milliseconds,
which costs a tenth of its speed.
"""

import os
import shutil
import subprocess
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

FIRST_PORT = 29_600
MPS = "nvidia-cuda-mps-control"
BURST = {"10gbit": "1250kb"}
QUEUES = 64  # That the service has for all processes; an H200 refused 128.


@contextmanager
def side_by_side(processes: int) -> Iterator[None]:
    """Let processes share the GPU's multiprocessors for the time of a block, where that works."""
    if shutil.which(MPS) is None:
        yield
        return
    with tempfile.TemporaryDirectory() as folder:
        # With two queues, its default, the exchange's kernels stand in line behind whole steps.
        settings = {
            "CUDA_MPS_PIPE_DIRECTORY": folder,
            "CUDA_MPS_LOG_DIRECTORY": folder,
            "CUDA_DEVICE_MAX_CONNECTIONS": str(min(32, QUEUES // processes)),
        }
        os.environ.update(settings)
        subprocess.run([MPS, "-d"], check=True)
        try:
            yield
        finally:
            subprocess.run([MPS], input=b"quit\n", check=False)
            for name in settings:
                del os.environ[name]


@contextmanager
def machines(count: int, rate: str) -> Iterator[list[str]]:
    """Namespaces on one bridge, each with a shaped link, for the time of a block."""
    names = [f"gm{place}" for place in range(count)]
    shell("ip link add gmbridge type bridge", "ip link set gmbridge up")
    try:
        for place, name in enumerate(names):
            shell(
                f"ip netns add {name}",
                f"ip link add v{name} type veth peer name {name}b",
                f"ip link set v{name} netns {name}",
                f"ip link set {name}b master gmbridge",
                f"ip link set {name}b up",
                f"ip -n {name} addr add 10.77.0.{place + 1}/24 dev v{name}",
                f"ip -n {name} link set v{name} up",
                f"ip -n {name} link set lo up",
            )
            if rate:
                # At 10 Gb/s that much leaves in a millisecond, after which its timer is due again.
                shaped = f"tbf rate {rate} burst {BURST.get(rate, '256kb')} latency 50ms"
                shell(f"ip netns exec {name} tc qdisc replace dev v{name} root {shaped}")
        yield names
    finally:
        for name in names:
            # A namespace whose processes have yet to end keeps its link for a while.
            subprocess.run(["ip", "link", "del", f"{name}b"], check=False)
            subprocess.run(["ip", "netns", "del", name], check=False)
        shell("ip link del gmbridge")


def shell(*commands: str) -> None:
    """Run commands, each of which must succeed."""
    for command in commands:
        subprocess.run(command.split(), check=True)


def start(
    names: Sequence[str], commands: Sequence[Sequence[str]], logs: Path, port: int = FIRST_PORT
) -> list[subprocess.Popen[bytes]]:
    """Start each machine's command as one worker of a job; `logs` begins their logs' names."""
    return [
        _start_one(names, place, command, Path(f"{logs}-{place}.log"), port)
        for place, command in enumerate(commands)
    ]


def _start_one(
    names: Sequence[str], place: int, command: Sequence[str], log: Path, port: int
) -> subprocess.Popen[bytes]:
    name, count = names[place], len(names)
    environment = {
        **os.environ,
        "NCCL_HOSTID": name,
        "NCCL_SOCKET_IFNAME": f"v{name}",
        "GLOO_SOCKET_IFNAME": f"v{name}",
        "NCCL_IB_DISABLE": "1",
        "RANK": str(place),
        "WORLD_SIZE": str(count),
        "LOCAL_RANK": "0",
        "LOCAL_WORLD_SIZE": "1",
        "GROUP_RANK": str(place),
        "GROUP_WORLD_SIZE": str(count),
        "MASTER_ADDR": "10.77.0.1",
        "MASTER_PORT": str(port),
    }
    inside = f"ip netns exec {name} unshare --uts sh -c"
    with log.open("w") as file:
        return subprocess.Popen(
            [*inside.split(), f"hostname {name}; exec {' '.join(command)}"],
            env=environment,
            stdout=file,
            stderr=file,
        )


def wait_for(processes: Sequence[subprocess.Popen[bytes]], seconds: float) -> bool:
    """Wait for all to end, and end those that do not; whether all ended well."""
    deadline = time.monotonic() + seconds
    try:
        codes = [one.wait(max(1.0, deadline - time.monotonic())) for one in processes]
    finally:
        for one in processes:
            one.kill()
    return not any(codes)
