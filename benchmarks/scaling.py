"""Step time of one and two machines over links of different speed, predicted and measured.

    python benchmarks/scaling.py

The machines are network namespaces of this one (needs root and iproute2, openssh-server); each
worker has one core. Predicted: compute and optimizer of the unlimited run, plus the bytes of a
ring all-reduce over the link's rate, less what the backward pass hides (what it hid at 1 Gb/s).
"""

import json
import shutil
import statistics
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))

from dragoman.config_file import load_config
from dragoman.corpus.demo import write_demo
from dragoman.corpus.prepare import prepare
from machines import Network, network, wait_for_ssh

STEPS, FIRST_COUNTED = 40, 10
LINKS = {"unlimited": None, "1 Gb/s": 1e9, "100 Mb/s": 100e6}
TC_RATES = {"1 Gb/s": "1gbit", "100 Mb/s": "100mbit"}
BYTES_FACTOR = {"none": 1.0, "bf16": 0.5, "powersgd": None}
SETTINGS = [f"training.steps={STEPS}", "schedule.decay_steps=10", "schedule.warmup_steps=20"]
SETTINGS += [f"evaluation.every_steps={10 * STEPS}", "batches.tokens_per_step=4096"]


@dataclass(frozen=True)
class Measured:
    """Medians over the counted steps."""

    seconds: float
    compute: float
    exposed: float
    rest: float
    parameters: int


def main() -> None:
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        write_demo(folder / "text")
        origin = Path(__file__).parents[1] / "src/dragoman/corpus/demo.toml"
        shutil.copy(origin, folder)
        prepare(load_config(folder / "demo.toml"))
        with network(folder, ["hostA", "hostB"]) as net:
            for machine in net.machines:
                machine.start()
            wait_for_ssh(net)
            print_table(net, folder / "demo.toml")


def print_table(net: Network, config: Path) -> None:
    print("| workers | link | compression | step ms | compute | exposed | predicted ms | error |")
    print("|---|---|---|---|---|---|---|---|")
    alone = run(net, config, "hostA:1", "none")
    print(f"| 1 | | | {alone.seconds * 1e3:.0f} | {alone.compute * 1e3:.0f} | | | |", flush=True)
    unlimited: Measured | None = None
    hidden: float | None = None  # Seconds of traffic that the backward pass hides.
    for link, rate in LINKS.items():
        for machine in net.machines:
            if rate:
                machine.limit(TC_RATES[link])
        for compression, factor in BYTES_FACTOR.items():
            measured = run(net, config, "hostA:1,hostB:1", compression)
            unlimited = unlimited or measured
            row = f"| 2 | {link} | {compression} | {measured.seconds * 1e3:.0f} "
            row += f"| {measured.compute * 1e3:.0f} | {measured.exposed * 1e3:.0f} "
            wire = factor * 4 * unlimited.parameters * 8 / rate if rate and factor else None
            if wire is None:
                row += "| | |"
            elif hidden is None:
                hidden = max(0.0, wire - measured.exposed)
                row += f"| (hides {hidden * 1e3:.0f} of {wire * 1e3:.0f} ms) | |"
            else:
                exposed = max(unlimited.exposed, wire - hidden)
                predicted = unlimited.compute + unlimited.rest + exposed
                row += f"| {predicted * 1e3:.0f} | {predicted / measured.seconds - 1:+.0%} |"
            print(row, flush=True)


def run(net: Network, config: Path, hosts: str, compression: str) -> Measured:
    path = net.folder / "private" / "run"
    words: list[str | Path] = ["train", config, "--run", path, "--hosts", hosts, *SETTINGS]
    result = subprocess.run(
        net.dragoman(*words, f"distributed.compression={compression}"),
        env=net.environment() | {"OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
    )
    if result.returncode:
        raise SystemExit(result.stdout + result.stderr)
    seen = net.machines[0].see(path)
    lines = [json.loads(line) for line in (seen / "metrics.jsonl").read_text().splitlines()]
    steps = [one for one in lines if one["kind"] == "train" and one["step"] > FIRST_COUNTED]
    parameters = json.loads((seen / "provenance.json").read_text())["model"]["parameters"]
    for machine in net.machines:
        shutil.rmtree(machine.see(path), ignore_errors=True)

    def median(*names: str) -> float:
        return statistics.median(sum(values(one, name) for name in names) for one in steps)

    def values(one: dict[str, Any], name: str) -> float:
        return float(one[name])

    return Measured(
        median("seconds"),
        median("seconds_compute"),
        median("seconds_exposed_communication"),
        median("seconds_data", "seconds_optimizer", "seconds_other"),
        parameters,
    )


if __name__ == "__main__":
    main()
