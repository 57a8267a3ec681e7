"""Draw what two machines make over links of every speed: as predicted, and where it was measured.

    python benchmarks/slow_links.py docs/pictures/slow-links.svg

The points are those of docs/results.md ("Several GPU machines on one GPU"), measured with
`gpu_machines.py`; the lines are the model of `dragoman whatif`, given the phases of two machines
that never synchronize and nothing else. Printed are how far off they are, and two tables for
docs/distributed.md: what `sync = "auto"` chooses for such a model on two and on four machines, by
the time that a step computes for.
"""

import argparse
import statistics
from dataclasses import replace
from pathlib import Path

import matplotlib
import numpy as np

from dragoman.prediction.step_model import GIGABIT, MeasuredRun, Scenario, predict
from dragoman.prediction.sync_choice import choose_sync

GOODPUT = 0.955  # Of what a link is shaped to.
TOKENS, SECONDS_COMPUTE, SECONDS_OPTIMIZER = 32_650, 0.0302, 0.0013
RUN = MeasuredRun(
    machines=2,
    workers=2,
    gradient_bytes=4 * 60_880_896,
    tokens_per_step=TOKENS,
    seconds_compute=SECONDS_COMPUTE,
    seconds_optimizer=SECONDS_OPTIMIZER,
    seconds_fixed=0.0,
    bytes_per_second=GOODPUT * GIGABIT,
    latency_seconds=5e-5,
)
GRADIENTS = Scenario(compression="none", local_steps=1)
WAYS = {
    "gradients": GRADIENTS,
    "bf16 gradients": Scenario(compression="bf16", local_steps=1),
    "32 local steps, bf16": Scenario(compression="bf16", local_steps=32),
    "16 local steps, int4": Scenario(compression="int4", local_steps=16, local_fragments=4),
    "96 local steps, int4": Scenario(compression="int4", local_steps=96, local_fragments=8),
}
AUTO = 'sync = "auto"'
STEPS, LINKS = (0.016, 0.032, 0.1, 0.4), (0.01, 0.1, 1.0, 10.0, 100.0)
# Gb/s and target tokens a second: what one worker makes, times what was kept of it in the same run,
# as runs of different days differ by a few per cent.
ALONE = 1_073_000
MEASURED = {
    "gradients": [(1.0, 0.0145), (10.0, 0.1324)],
    "bf16 gradients": [(1.0, 0.0285), (10.0, 0.2390)],
    "32 local steps, bf16": [(1.0, 0.9400)],
    "16 local steps, int4": [(1.0, 0.9554)],
    "96 local steps, int4": [(0.1, 0.9597)],
    AUTO: [(0.01, 0.9665), (0.1, 0.9614), (1.0, 0.9539), (10.0, 0.9273)],
}


def tokens_per_second(way: str, gigabits: float) -> float:
    """What a way is predicted to make over such a link."""
    link = Scenario(bytes_per_second=GOODPUT * gigabits * GIGABIT)
    over_it = link.apply_to(RUN)
    scenario = choose_sync(over_it).way if way == AUTO else WAYS[way]
    return predict(over_it, scenario).tokens_per_second


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("picture", type=Path)
    draw(parser.parse_args().picture)
    errors = []
    for way, points in MEASURED.items():
        for gigabits, kept in points:
            measured = kept * ALONE
            # Of a step's seconds, which are the inverse of its tokens a second.
            error = measured / tokens_per_second(way, gigabits) - 1
            errors.append(error)
            print(
                f"{way}, {gigabits:g} Gb/s: {measured:,.0f}, a step's seconds off by {error:+.1%}"
            )
    worst = max(errors, key=abs)
    print(f"median {statistics.median(map(abs, errors)):.1%}, worst {worst:+.1%}")
    for machines in (2, 4):
        print(f"\n{machines} machines")
        print_choices(machines)


def print_choices(machines: int) -> None:
    print("| a step computes for |", *(f"{link:g} Gb/s |" for link in LINKS))
    print("|---|" + len(LINKS) * "---|")
    for seconds in STEPS:
        computing = replace(
            RUN,
            machines=machines,
            workers=machines,
            seconds_compute=seconds,
            seconds_optimizer=0.0,
        )
        cells = (choice(computing, link) for link in LINKS)
        print(f"| {1e3 * seconds:.0f} ms |", *(f"{cell} |" for cell in cells))


def choice(run: MeasuredRun, gigabits: float) -> str:
    """Local steps, fragments, delay and bits, and how long they wait if that is worth telling."""
    over_it = Scenario(bytes_per_second=GOODPUT * gigabits * GIGABIT).apply_to(run)
    way = choose_sync(over_it).way
    if way.local_steps == 1:
        return f"{way.compression} gradients".replace("none ", "")
    share = predict(over_it, way).network_share
    settings = (way.local_steps, way.local_fragments, way.local_delay, way.compression)
    return ", ".join(map(str, settings)) + (f", waits {share:.0%}" if share >= 0.01 else "")


def draw(picture: Path) -> None:
    from matplotlib.figure import Figure

    matplotlib.rcParams["svg.hashsalt"] = "dragoman"  # The same picture for the same numbers.
    figure = Figure(figsize=(7, 4.6), layout="constrained")
    axes = figure.add_subplot()
    speeds = np.geomspace(0.01, 10, 120)
    for way in (AUTO, *WAYS):
        predicted = [tokens_per_second(way, one) for one in speeds]
        (line,) = axes.plot(speeds, predicted, "k:" if way == AUTO else "-", label=way)
        points = [(gigabits, kept * ALONE) for gigabits, kept in MEASURED[way]]
        axes.plot(*zip(*points, strict=True), "o", color=line.get_color())
    limit = TOKENS / (SECONDS_COMPUTE + SECONDS_OPTIMIZER)
    axes.axhline(limit, color="gray", lw=0.8, ls="--", label="never synchronizing (measured)")
    axes.set(xscale="log", yscale="log", xlabel="link, Gb/s", ylabel="target tokens a second")
    axes.set_ylim(1_000, 2_000_000)
    axes.grid(alpha=0.3)
    figure.legend(fontsize="small", loc="outside lower center", ncols=3)
    picture.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(picture, metadata={"Date": None})


if __name__ == "__main__":
    main()
