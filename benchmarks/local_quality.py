"""What local steps cost in quality: short or whole runs of one, two and four machines on one GPU.

All variants given are trained at the same time, on the same text and in as many steps; links have
no limit, as what is asked is where training gets to, not when.

    python benchmarks/local_quality.py CONFIG FOLDER STEPS MACHINES:SETTING,SETTING,... ...

Needs root and iproute2. Settings as on the command line of `train`; MACHINES may be 1.
"""

import json
import sys
from pathlib import Path

from shared_gpu import FIRST_PORT, machines, side_by_side, start, wait_for

LONGEST_SECONDS = 540


def schedule(steps: int) -> list[str]:
    """A fifth of the steps to warm up, the last seven twelfths to cool down."""
    return [
        f"training.steps={steps}",
        f"schedule.warmup_steps={steps // 5}",
        f"schedule.decay_steps={steps * 7 // 12}",
        f"evaluation.every_steps={max(1, steps // 3)}",
        "checkpoints.every_steps=1_000_000",
        "checkpoints.keep_best=false",
    ]


def main() -> None:
    config, folder, steps = Path(sys.argv[1]), Path(sys.argv[2]), int(sys.argv[3])
    folder.mkdir(parents=True, exist_ok=True)
    variants = [variant.partition(":") for variant in sys.argv[4:]]
    counts = [int(count) for count, _, _ in variants]
    with side_by_side(sum(counts)), machines(max(counts), "") as names:
        processes = []
        for place, (count, _, settings) in enumerate(variants):
            own = [*schedule(steps), *settings.split(",")] if settings else schedule(steps)
            commands = [
                [sys.executable, "-m", "dragoman", "train", str(config)]
                + ["--run", str(folder / f"{place}-{name}"), *own]
                for name in names[: int(count)]
            ]
            logs, port = folder / f"{place}", FIRST_PORT + place
            processes += start(names[: int(count)], commands, logs, port)
        is_well = wait_for(processes, LONGEST_SECONDS)
    print("| machines | settings | step: loss / BLEU |\n|---|---|---|")
    for place, (count, _, settings) in enumerate(variants):
        lines = (folder / f"{place}-{names[0]}" / "metrics.jsonl").read_text().splitlines()
        scores = [one for line in lines if (one := json.loads(line))["kind"] == "eval"]
        told = [f"{one['step']}: {one['loss']:.3f} / {one['bleu']:.2f}" for one in scores]
        print(f"| {count} | {settings.replace(',', ' ')} | {'; '.join(told)} |")
    if not is_well:
        raise SystemExit(f"not all ended well: see the logs in {folder}")


if __name__ == "__main__":
    main()
