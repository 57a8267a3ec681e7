"""Wall time to the same validation BLEU at 100 Mb/s: gradients, bf16 gradients, local steps.

    python benchmarks/local_steps.py [--seeds 3]

Two machines, the demo as it is. Time is that of the training steps up to the first evaluation that
reaches the BLEU, evaluations themselves left out. The unlimited link is the measure of all.
"""

import argparse
import statistics
import sys
from pathlib import Path

from demo_machines import demo_machines, set_links, train
from dragoman.wording import plural
from machines import Network
from run_lines import lines_of

TARGET_BLEU = 90.0
SETTINGS = ["evaluation.bleu_pairs=200"]
LOCAL = ["distributed.sync=local", "distributed.compression=bf16"]
WAYS = {
    "gradients, unlimited link": (None, []),
    "gradients, 100 Mb/s": ("100mbit", []),
    "bf16 gradients, 100 Mb/s": ("100mbit", ["distributed.compression=bf16"]),
} | {
    f"{steps} local steps in {plural(fragments, 'fragment')}, bf16, 100 Mb/s": (
        "100mbit",
        [*LOCAL, f"distributed.local_steps={steps}", f"distributed.local_fragments={fragments}"],
    )
    for steps, fragments in ((32, 1), (24, 4), (12, 3))
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seeds", type=int, default=3)
    seeds = parser.parse_args().seeds
    with demo_machines(("hostA", "hostB")) as (net, config):
        print(
            f"| setting | s per step | s to BLEU {TARGET_BLEU:.0f}, each seed | mean | final BLEU |"
        )
        print("|---|---|---|---|---|")
        for way, (rate, settings) in WAYS.items():
            set_links(net, rate)
            runs = [measure(net, config, settings, seed) for seed in range(1, seeds + 1)]
            step, to_target, final = zip(*runs, strict=True)
            each = ", ".join(f"{seconds:.0f}" for seconds in to_target)
            print(
                f"| {way} | {statistics.mean(step):.3f} | {each} "
                f"| {statistics.mean(to_target):.0f} | {statistics.mean(final):.2f} |",
                flush=True,
            )


def measure(
    net: Network, config: Path, settings: list[str], seed: int
) -> tuple[float, float, float]:
    """Seconds a step, seconds of training until the target, and the BLEU at the end."""
    run = train(net, config, "hostA:1,hostB:1", [*SETTINGS, *settings, f"training.seed={seed}"])
    steps = lines_of(run, "train")
    evaluations = lines_of(run, "eval")
    reached = next((one["step"] for one in evaluations if one["bleu"] >= TARGET_BLEU), None)
    if reached is None:
        sys.exit(f"{run} has not reached BLEU {TARGET_BLEU:.0f}")
    until = sum(line["seconds"] for line in steps if line["step"] <= reached)
    return statistics.mean(line["seconds"] for line in steps), until, evaluations[-1]["bleu"]


if __name__ == "__main__":
    main()
