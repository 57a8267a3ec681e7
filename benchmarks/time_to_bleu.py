"""How soon one, two and four machines with a GPU each reach a BLEU, from runs that share one GPU.

    python benchmarks/time_to_bleu.py PICTURE.svg "NAME=RUN,ALONE" ... [--bleu 20]

RUN is what one of the machines left that trained together (`local_quality.py`); it tells the steps
to that BLEU on newstest2013, and how long a step waited for others. ALONE is a short run of one
worker that has the GPU to itself, with a machine's part of the slots; it tells how long such a
machine's step takes. The minutes are steps x (step alone + waiting), and nothing else: machines
with a GPU each have not been measured. The first curve is what the others are compared with.
"""

import argparse
import statistics
from itertools import pairwise
from pathlib import Path

from europarl import SET, Curve, draw
from run_lines import lines_of

WARM_UP_STEPS = 60


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("picture", type=Path)
    parser.add_argument("curves", nargs="+", metavar="NAME=RUN,ALONE")
    parser.add_argument("--bleu", type=float, default=20.0)
    arguments = parser.parse_args()
    curves, first = {}, 0.0
    rows = [
        f"| | step alone, ms | waiting, ms | steps to {arguments.bleu} | minutes | times as fast |",
        "|---|---|---|---|---|---|",
    ]
    for name, _, paths in (one.partition("=") for one in arguments.curves):
        together, alone = map(Path, paths.split(","))
        waiting = statistics.fmean(phase(together, "seconds_exposed_communication"))
        seconds = statistics.median(phase(alone, "seconds"))
        by_step = [
            (line["step"], line["bleu"])
            for line in lines_of(together, "eval")
            if line["set"] == SET
        ]
        curves[name] = [(step * (seconds + waiting) / 60, bleu) for step, bleu in by_step]
        steps, minutes = (reached(one, arguments.bleu) for one in (by_step, curves[name]))
        first = first or minutes
        rows.append(
            f"| {name} | {1e3 * seconds:.1f} | {1e3 * waiting:.2f} | {steps:,.0f} "
            f"| {minutes:.2f} | {first / minutes:.2f} |"
        )
    draw(arguments.picture, curves, "so many GPUs")
    print("\n".join(rows))


def phase(run: Path, name: str) -> list[float]:
    """One of the times of each steady step."""
    return [line[name] for line in lines_of(run, "train")[WARM_UP_STEPS:]]


def reached(curve: Curve, bleu: float) -> float:
    """Where a curve first reaches it, between two evaluations."""
    for (before, low), (after, high) in pairwise(curve):
        if low < bleu <= high:
            return before + (after - before) * (bleu - low) / (high - low)
    raise SystemExit(f"no two evaluations lie below and above {bleu} BLEU")


if __name__ == "__main__":
    main()
