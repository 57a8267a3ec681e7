"""Several GPU machines on one GPU: what they keep of one worker's speed over a slow link.

Each machine is a network namespace with its own host name; NCCL and Gloo talk through a shaped link
as between real machines. The machines share the GPU's time, so that each computes like a GPU of a
half (a quarter) of the speed: 100% means that nothing is lost to the network.

    python benchmarks/gpu_machines.py CONFIG FOLDER [ROW ...]

Needs root, iproute2 and one GPU; CONFIG is a prepared corpus with a model for bfloat16.
"""

import json
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

STEPS, WARM_UP = 320, 64
PORT = 29_600
LOCAL = ["distributed.sync=local"]


@dataclass(frozen=True)
class Row:
    """One way to train, and over which link."""

    label: str
    machines: int
    rate: str  # As tc spells it; "" for no limit.
    settings: Sequence[str]
    steps: int = STEPS


def local(steps: int, fragments: int, compression: str) -> list[str]:
    """Settings of local steps."""
    return [
        *LOCAL,
        f"distributed.local_steps={steps}",
        f"distributed.local_fragments={fragments}",
        f"distributed.compression={compression}",
    ]


ROWS = {
    "one": Row("one worker, the whole GPU", 1, "", []),
    "never": Row("two that never synchronize", 2, "", local(1_000_000, 1, "none")),
    "four-never": Row("four that never synchronize", 4, "", local(1_000_000, 1, "none")),
    "local16-4-int4-free": Row("16 local steps, int4, 4 fragments", 2, "", local(16, 4, "int4")),
    "gradients": Row("gradients", 2, "1gbit", [], 20),
    "bf16": Row("bf16 gradients", 2, "1gbit", ["distributed.compression=bf16"], 30),
    "local32-1-bf16": Row("32 local steps, bf16, 1 fragment", 2, "1gbit", local(32, 1, "bf16")),
    "local32-4-bf16": Row("32 local steps, bf16, 4 fragments", 2, "1gbit", local(32, 4, "bf16")),
    "local32-4-int8": Row("32 local steps, int8, 4 fragments", 2, "1gbit", local(32, 4, "int8")),
    "local16-4-int4": Row("16 local steps, int4, 4 fragments", 2, "1gbit", local(16, 4, "int4")),
    "local96-8-int4": Row("96 local steps, int4, 8 fragments", 2, "100mbit", local(96, 8, "int4")),
    "four-32-4-int4": Row("32 local steps, int4, 4 fragments", 4, "1gbit", local(32, 4, "int4")),
}


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
                shaped = f"tbf rate {rate} burst 256kb latency 50ms"
                shell(f"ip netns exec {name} tc qdisc replace dev v{name} root {shaped}")
        yield names
    finally:
        for name in names:
            subprocess.run(["ip", "netns", "del", name], check=False)
        shell("ip link del gmbridge")


def shell(*commands: str) -> None:
    """Run commands, each of which must succeed."""
    for command in commands:
        subprocess.run(command.split(), check=True)


def measure(config: Path, folder: Path, key: str, row: Row) -> dict[str, float]:
    """Train one way and tell speed and phases, of worker 0's steps after the first ones."""
    run = folder / key
    command = [sys.executable, "-m", "dragoman", "train", str(config), "--run", str(run)]
    command.append(f"training.steps={row.steps}")
    command += ["checkpoints.every_steps=1_000_000", *row.settings]
    if row.machines == 1:
        subprocess.run(command, check=True, stderr=subprocess.DEVNULL)
        return read(run, row)
    with machines(row.machines, row.rate) as names:
        processes = []
        for place, name in enumerate(names):
            words = " ".join(command).replace(str(run), str(run) + ("" if place == 0 else name))
            environment = {
                **os.environ,
                "NCCL_HOSTID": name,
                "NCCL_SOCKET_IFNAME": f"v{name}",
                "GLOO_SOCKET_IFNAME": f"v{name}",
                "NCCL_IB_DISABLE": "1",
                "RANK": str(place),
                "WORLD_SIZE": str(row.machines),
                "LOCAL_RANK": "0",
                "LOCAL_WORLD_SIZE": "1",
                "GROUP_RANK": str(place),
                "GROUP_WORLD_SIZE": str(row.machines),
                "MASTER_ADDR": "10.77.0.1",
                "MASTER_PORT": str(PORT),
            }
            inside = f"ip netns exec {name} unshare --uts sh -c"
            log = open(folder / f"{key}-{place}.log", "w")
            processes.append(
                subprocess.Popen(
                    [*inside.split(), f"hostname {name}; exec {words}"],
                    env=environment,
                    stdout=log,
                    stderr=log,
                )
            )
        deadline = time.monotonic() + 240
        codes = [process.wait(max(1.0, deadline - time.monotonic())) for process in processes]
    if any(codes):
        print((folder / f"{key}-0.log").read_text()[-2000:], file=sys.stderr)
    return read(run, row)


def read(run: Path, row: Row) -> dict[str, float]:
    """Mean phases of the steady steps, and target tokens a second."""
    lines = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    steps = [line for line in lines if line["kind"] == "train"]
    steady = steps[min(WARM_UP, len(steps) // 2) :]
    wall = sum(line["seconds"] for line in steady)
    return {
        "tokens_per_second": sum(line["target_tokens"] for line in steady) / wall,
        "seconds": wall / len(steady),
        "seconds_compute": statistics.fmean(line["seconds_compute"] for line in steady),
        "seconds_exposed": statistics.fmean(
            line["seconds_exposed_communication"] for line in steady
        ),
        "seconds_optimizer": statistics.fmean(line["seconds_optimizer"] for line in steady),
        # The steps' own clock against the one on the wall.
        "wall_seconds": (steady[-1]["time"] - steady[0]["time"]) / max(1, len(steady) - 1),
    }


def main() -> None:
    config, folder = Path(sys.argv[1]), Path(sys.argv[2])
    keys = sys.argv[3:] or list(ROWS)
    folder.mkdir(parents=True, exist_ok=True)
    print(
        "| way | machines | link | target tokens/s | of one worker | ms a step: compute + exposed |"
    )
    print("|---|---|---|---|---|---|")
    alone = None
    for key in keys:
        row = ROWS[key]
        try:
            found = measure(config, folder, key, row)
        except (subprocess.SubprocessError, OSError, ValueError, IndexError) as error:
            print(f"| {row.label} | {row.machines} | {row.rate or 'none'} | failed: {error} | | |")
            continue
        alone = alone or found["tokens_per_second"]
        share = found["tokens_per_second"] / alone
        print(
            f"| {row.label} | {row.machines} | {row.rate or 'none'} "
            f"| {found['tokens_per_second']:,.0f} | {share:.1%} "
            f"| {1e3 * found['seconds_compute']:.1f} + {1e3 * found['seconds_exposed']:.1f} "
            f"(optimizer {1e3 * found['seconds_optimizer']:.1f}, "
            f"step {1e3 * found['seconds']:.1f}, wall {1e3 * found['wall_seconds']:.1f}) |",
            flush=True,
        )


if __name__ == "__main__":
    main()
