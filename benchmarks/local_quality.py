"""What local steps cost in quality: short or whole runs of one, two and four machines on one GPU.

All variants given are trained at the same time, on the same text and in as many steps. Speeds mean
something if there is but one variant, and then its link may have a limit: 2@1gbit.

    python benchmarks/local_quality.py CONFIG FOLDER STEPS MACHINES[@RATE]:SETTING,SETTING,... ...

Needs root and iproute2. Settings as on the command line of `train`; MACHINES may be 1.
"""

import sys
from pathlib import Path

from gpu_machines import Row, read
from run_lines import lines_of
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
    variants = [variant(one, steps) for one in sys.argv[4:]]
    rates = {one.rate for one in variants}
    if len(rates) > 1:
        raise SystemExit("all variants of one call share one link: give each rate its own call")
    counts = [one.machines for one in variants]
    with side_by_side(sum(counts)), machines(max(counts), rates.pop()) as names:
        processes = []
        for place, one in enumerate(variants):
            commands = [
                [sys.executable, "-m", "dragoman", "train", str(config)]
                + ["--run", str(folder / f"{place}-{name}"), *schedule(steps), *one.settings]
                for name in names[: one.machines]
            ]
            logs, port = folder / f"{place}", FIRST_PORT + place
            processes += start(names[: one.machines], commands, logs, port)
        is_well = wait_for(processes, LONGEST_SECONDS)
    print("| machines | link | settings | tokens/s | waiting ms | step: loss / BLEU |")
    print("|---|---|---|---|---|---|")
    for place, one in enumerate(variants):
        run = folder / f"{place}-{names[0]}"
        if not lines_of(run, "train"):
            print(f"| {one.machines} | {one.rate or 'none'} | {one.label} | failed | | |")
            continue
        told = [
            f"{line['step']}: {line['loss']:.3f} / {line['bleu']:.2f}"
            for line in lines_of(run, "eval")
        ]
        speed = read(run, one)
        print(
            f"| {one.machines} | {one.rate or 'none'} | {one.label} "
            f"| {speed['tokens_per_second']:,.0f} | {1e3 * speed['seconds_exposed']:.2f} "
            f"| {'; '.join(told)} |"
        )
    if not is_well:
        raise SystemExit(f"not all ended well: see the logs in {folder}")


def variant(told: str, steps: int) -> Row:
    """What one argument asks for."""
    place, _, settings = told.partition(":")
    count, _, rate = place.partition("@")
    own = settings.split(",") if settings else []
    return Row(" ".join(own), int(count), rate, own, steps)


if __name__ == "__main__":
    main()
