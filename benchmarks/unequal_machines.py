"""Two machines of which one has half the other's processor: with equal shares, and balanced.

    python benchmarks/unequal_machines.py [--ways gradients local] [--rounds 3]

Prints what each does alone, and what both do together of the sum of that; links have no limit. All
take turns, to share the noise of the host, and medians count.
"""

import argparse
import statistics
from itertools import chain
from pathlib import Path

from demo_machines import demo_machines, shared_cores, train
from machines import Network
from run_lines import lines_of

CORES = {"hostA": 0.4, "hostB": 0.2}
STEPS, FIRST_COUNTED = 20, 4  # Two whole rounds of local steps are counted.
SETTINGS = [f"training.steps={STEPS}", "schedule.decay_steps=4", "schedule.warmup_steps=12"]
SETTINGS += ["evaluation.every_steps=1_000", "batches.tokens_per_step=4096"]
BALANCED = ["distributed.balance=true"]
LOCAL = ["distributed.sync=local", "distributed.local_steps=8"]
WAYS = {
    "gradients": {"gradients, equal shares": [], "gradients, balanced": BALANCED},
    "local": {
        "8 local steps, equal shares": LOCAL,
        "8 local steps, balanced": [*LOCAL, *BALANCED],
    },
}


def speed(net: Network, config: Path, hosts: str, settings: list[str]) -> tuple[float, str]:
    """Target tokens a second of the steady steps, and how rows were shared out."""
    run = train(net, config, hosts, [*SETTINGS, *settings])
    steps = lines_of(run, "train")[FIRST_COUNTED:]
    tokens = sum(step["target_tokens"] for step in steps)
    rows = lines_of(run, "calibration")[-1].get("balanced_rows") or []
    return tokens / sum(step["seconds"] for step in steps), ":".join(map(str, rows))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--ways", nargs="+", choices=WAYS, default=list(WAYS))
    parser.add_argument("--rounds", type=int, default=3)
    arguments = parser.parse_args()
    together = dict(chain(*(WAYS[way].items() for way in arguments.ways)))
    speeds: dict[str, list[float]] = {}
    shares: dict[str, str] = {}
    with demo_machines(list(CORES)) as (net, config), shared_cores(net, *CORES.values()):
        for _ in range(arguments.rounds):
            for machine in list(net.machines):
                # The first machine's folder is read, so each takes its turn in being the first.
                net.machines.sort(key=lambda one: one is not machine)
                found = speed(net, config, f"{machine.name}:1", [])[0]
                speeds.setdefault(machine.name, []).append(found)
            net.machines.sort(key=lambda one: one.name)
            for name, settings in together.items():
                found, shares[name] = speed(net, config, "hostA:1,hostB:1", settings)
                speeds.setdefault(name, []).append(found)
            print({name: [round(one) for one in found] for name, found in speeds.items()})
    alone = sum(statistics.median(speeds[name]) for name in CORES)
    print("| setting | target tokens/s, each round | median | of the sum | rows |")
    print("|---|---|---|---|---|")
    for name, each in speeds.items():
        shown, median = ", ".join(f"{one:,.0f}" for one in each), statistics.median(each)
        print(
            f"| {name} | {shown} | {median:,.0f} | {median / alone:.0%} | {shares.get(name, '')} |"
        )


if __name__ == "__main__":
    main()
