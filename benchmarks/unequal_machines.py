"""Two machines of which one has half the other's processor: with equal shares, and balanced.

    python benchmarks/unequal_machines.py [--ways gradients local]

Prints what each does alone, and what both do together of the sum of that; links have no limit.
"""

import argparse
from itertools import chain
from pathlib import Path

from demo_machines import demo_machines, lines_of, shared_cores, train
from machines import Network

CORES = {"hostA": 0.4, "hostB": 0.2}
STEPS, FIRST_COUNTED = 20, 4
SETTINGS = [f"training.steps={STEPS}", "schedule.decay_steps=4", "schedule.warmup_steps=12"]
SETTINGS += ["evaluation.every_steps=1_000", "batches.tokens_per_step=2048"]
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
    ways = parser.parse_args().ways
    with demo_machines(list(CORES)) as (net, config), shared_cores(net, *CORES.values()):
        # The first machine's folder is read, so each takes its turn in being the first.
        alone = []
        for machine in list(net.machines):
            others = [one for one in net.machines if one is not machine]
            net.machines[:] = [machine, *others]
            alone.append(speed(net, config, f"{machine.name}:1", [])[0])
            print(f"{machine.name} alone: {alone[-1]:,.0f} target tokens/s", flush=True)
        net.machines.sort(key=lambda one: one.name)
        print("| setting | target tokens/s | of the sum | rows |\n|---|---|---|---|")
        for name, settings in chain(*(WAYS[way].items() for way in ways)):
            found, rows = speed(net, config, "hostA:1,hostB:1", settings)
            print(f"| {name} | {found:,.0f} | {found / sum(alone):.0%} | {rows} |", flush=True)


if __name__ == "__main__":
    main()
