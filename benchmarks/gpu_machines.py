"""Several GPU machines on one GPU: what they keep of one worker's speed over a slow link.

How the machines are made is in `shared_gpu.py`. They share the GPU, so that each computes like a
GPU of a half (a quarter) of the speed: 100% means that nothing is lost to the network, to the outer
step or to sharing. What sharing alone costs is told by machines that never synchronize.

    python benchmarks/gpu_machines.py CONFIG FOLDER [ROW ...] [SETTING=VALUE ...]

Needs root, iproute2 and one GPU; CONFIG is a prepared corpus with a model for bfloat16. Settings
are for all rows but PyTorch's own.
"""

import json
import statistics
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from dragoman.config_file import load_config, load_saved_config
from dragoman.prediction.step_model import OF_SYNC, Scenario
from dragoman.prediction.sync_choice import in_words
from dragoman.runs.folder import RunFolder
from run_lines import lines_of
from shared_gpu import machines, side_by_side, start, wait_for

STEPS, WARM_UP = 256, 64
LOCAL = ["distributed.sync=local"]
# So few steps have no room for the config's own schedule.
SHORT = ["schedule.kind=warmup_stable_decay", "schedule.warmup_steps=8", "schedule.decay_steps=8"]


@dataclass(frozen=True)
class Row:
    """One way to train, and over which link."""

    label: str
    machines: int
    rate: str  # As tc spells it; "" for no limit.
    settings: Sequence[str]
    steps: int = STEPS
    peer: str = ""  # A way of `peer_machine.py`, which then takes our place.


def local(steps: int, fragments: int, compression: str, delay: int | None = None) -> list[str]:
    """Settings of local steps."""
    return [
        *LOCAL,
        *([] if delay is None else [f"distributed.local_delay={delay}"]),
        f"distributed.local_steps={steps}",
        f"distributed.local_fragments={fragments}",
        f"distributed.compression={compression}",
    ]


NEVER = local(1_000_000, 1, "none")
AUTO = ["distributed.sync=auto"]
ROWS = {
    "one": Row("one worker, the whole GPU", 1, "", []),
    "half": Row("one worker, half of the slots", 1, "", ["batches.tokens_per_step=16_384"]),
    "quarter": Row("one worker, a quarter of the slots", 1, "", ["batches.tokens_per_step=8_192"]),
    "never": Row("two that never synchronize", 2, "", NEVER),
    "four-never": Row("four that never synchronize", 4, "", NEVER),
    "gradients": Row("gradients", 2, "1gbit", [], 20),
    "bf16": Row("bf16 gradients", 2, "1gbit", ["distributed.compression=bf16"], 30),
    "local32-1-bf16": Row("32 local steps, bf16, 1 fragment", 2, "1gbit", local(32, 1, "bf16")),
    "local32-4-bf16": Row("32 local steps, bf16, 4 fragments", 2, "1gbit", local(32, 4, "bf16")),
    "local32-4-int8": Row("32 local steps, int8, 4 fragments", 2, "1gbit", local(32, 4, "int8")),
    "local32-4-int4": Row("32 local steps, int4, 4 fragments", 2, "1gbit", local(32, 4, "int4")),
    "local16-4-int4": Row("16 local steps, int4, 4 fragments", 2, "1gbit", local(16, 4, "int4")),
    "local96-8-int4": Row(
        "96 local steps, int4, 8 fragments", 2, "100mbit", local(96, 8, "int4", delay=48), 480
    ),
    "four-32-4-int4": Row("32 local steps, int4, 4 fragments", 4, "1gbit", local(32, 4, "int4")),
    "gradients-10g": Row("gradients", 2, "10gbit", [], 60),
    "bf16-10g": Row("bf16 gradients", 2, "10gbit", ["distributed.compression=bf16"], 60),
    "auto-10g": Row("auto", 2, "10gbit", AUTO),
    "auto-1g": Row("auto", 2, "1gbit", AUTO),
    "auto-100m": Row("auto", 2, "100mbit", AUTO, 480),
    "auto-10m": Row("auto", 2, "10mbit", AUTO, 640),
    "four-auto-1g": Row("auto", 4, "1gbit", AUTO),
    "four-auto-100m": Row("auto", 4, "100mbit", AUTO, 480),
    "peer-ddp": Row("PyTorch's DDP", 2, "1gbit", [], peer="ddp"),
    "peer-bf16": Row("PyTorch's DDP, bf16 hook", 2, "1gbit", [], peer="bf16"),
    "peer-powersgd": Row("PyTorch's DDP, PowerSGD rank 4", 2, "1gbit", [], peer="powersgd"),
    "peer-local": Row("PyTorch's post-local SGD, 32 steps", 2, "1gbit", [], peer="post-local"),
}
PEER = Path(__file__).with_name("peer_machine.py")


def measure(
    config: Path, folder: Path, key: str, row: Row, settings: Sequence[str] = ()
) -> dict[str, float]:
    """Train one way and tell speed and phases, of worker 0's steps after the first ones."""
    if row.peer:
        return measure_peer(config, folder, key, row)
    run = folder / key
    command = [sys.executable, "-m", "dragoman", "train", str(config), "--run", str(run)]
    command.append(f"training.steps={row.steps}")
    command += ["checkpoints.every_steps=1_000_000", *SHORT, *settings, *row.settings]
    if row.machines == 1:
        subprocess.run(command, check=True, stderr=subprocess.DEVNULL)
        return read(run, row)
    with machines(row.machines, row.rate) as names:
        # Every machine has a run folder of its own.
        own = [str(run) + ("" if place == 0 else name) for place, name in enumerate(names)]
        commands = [[word.replace(str(run), path) for word in command] for path in own]
        if not wait_for(start(names, commands, folder / key), 240):
            print((folder / f"{key}-0.log").read_text()[-2000:], file=sys.stderr)
            raise ValueError(f"not all machines ended well: see {folder / key}-0.log")
    return read(run, row)


def measure_peer(config: Path, folder: Path, key: str, row: Row) -> dict[str, float]:
    """Let PyTorch's own ways train a model of the same size on the same text."""
    settings = load_config(config)
    command = [sys.executable, str(PEER), settings.corpus.folder]
    command += [str(settings.batches.tokens_per_step), row.peer]
    with machines(row.machines, row.rate) as names:
        is_well = wait_for(start(names, [command] * row.machines, folder / key), 240)
    told = (folder / f"{key}-0.log").read_text().splitlines()
    if not is_well:
        raise ValueError(told[-1] if told else "no word")
    found: dict[str, float] = json.loads(next(line for line in told if line.startswith("{")))
    return found


def read(run: Path, row: Row) -> dict[str, float]:
    """Mean phases of the steady steps, and target tokens a second."""
    steps = lines_of(run, "train")
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


def chosen(run: Path) -> str:
    """What "auto" came to in a run."""
    settings = load_saved_config(RunFolder(run).config).distributed
    way = Scenario(**{name: getattr(settings, name) for name in OF_SYNC})
    if settings.sync == "gradients":
        way = replace(way, local_steps=1)
    return f"auto: {in_words(way)}"


def main() -> None:
    config, folder = Path(sys.argv[1]), Path(sys.argv[2])
    settings = [word for word in sys.argv[3:] if "=" in word]
    keys = [word for word in sys.argv[3:] if "=" not in word] or list(ROWS)
    folder.mkdir(parents=True, exist_ok=True)
    print(
        "| setting | machines | link | target tokens/s | of one worker | ms per step: compute + "
        "exposed |"
    )
    print("|---|---|---|---|---|---|")
    alone = None
    for key in keys:
        row = ROWS[key]
        try:
            with side_by_side(row.machines):
                found = measure(config, folder, key, row, settings)
        except (subprocess.SubprocessError, OSError, ValueError, IndexError) as error:
            print(f"| {row.label} | {row.machines} | {row.rate or 'none'} | failed: {error} | | |")
            continue
        alone = alone or found["tokens_per_second"]
        share = found["tokens_per_second"] / alone
        label = chosen(folder / key) if row.settings is AUTO else row.label
        start_of_row = (
            f"| {label} | {row.machines} | {row.rate or 'none'} "
            f"| {found['tokens_per_second']:,.0f} | {share:.1%} "
        )
        if row.peer:
            print(f"{start_of_row}| (step {1e3 * found['seconds']:.1f}) |", flush=True)
            continue
        print(
            f"{start_of_row}| {1e3 * found['seconds_compute']:.1f} + "
            f"{1e3 * found['seconds_exposed']:.1f} "
            f"(optimizer {1e3 * found['seconds_optimizer']:.1f}, "
            f"step {1e3 * found['seconds']:.1f}, wall {1e3 * found['wall_seconds']:.1f}) |",
            flush=True,
        )


if __name__ == "__main__":
    main()
