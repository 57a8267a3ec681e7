"""Predicted against measured: step times over links, worker counts and ways to meet.

    python benchmarks/whatif.py

Runs of two machines over 1 Gb/s are the calibration, one before every few combinations because the
speed of a shared host drifts; `dragoman whatif` predicts the others from the one before them. Every
machine has 0.22 of one core, whether it trains or not.
"""

import argparse
import statistics
import time
from dataclasses import dataclass
from pathlib import Path

from demo_machines import demo_machines, set_links, shared_cores, train
from dragoman.prediction.step_model import MeasuredRun, Scenario, predict
from dragoman.report.evidence import load_evidence
from dragoman.report.findings.analysis import analyse
from dragoman.report.findings.measured_run import demand_calibration
from machines import Network
from run_lines import lines_of

NAMES = ("hostA", "hostB", "hostC", "hostD")
CORES = 0.22  # So that four machines leave some of one core free.
CASES_PER_CALIBRATION = 3
STEPS, FIRST_COUNTED = 20, 4
SETTINGS = [f"training.steps={STEPS}", "schedule.decay_steps=4", "schedule.warmup_steps=12"]
SETTINGS += [f"evaluation.every_steps={10 * STEPS}", "batches.tokens_per_step=2048"]
RATES = {"unlimited": None, "1 Gb/s": 1e9, "100 Mb/s": 100e6}
TC_RATES = {"unlimited": None, "1 Gb/s": "1gbit", "100 Mb/s": "100mbit"}
LOCAL_STEPS = 8
GRADIENTS, BF16, LOCAL = "gradients", "bf16 gradients", f"{LOCAL_STEPS} local steps"
WAYS = {
    GRADIENTS: [],
    BF16: ["distributed.compression=bf16"],
    LOCAL: ["distributed.sync=local", f"distributed.local_steps={LOCAL_STEPS}"],
}


@dataclass(frozen=True)
class Case:
    """One combination."""

    machines: int
    link: str
    way: str


CALIBRATION = Case(2, "1 Gb/s", GRADIENTS)
SLOW, FREE = Case(2, "100 Mb/s", GRADIENTS), Case(2, "unlimited", GRADIENTS)
CASES = [
    Case(1, "unlimited", GRADIENTS),
    FREE,
    Case(2, "unlimited", BF16),
    CALIBRATION,  # Once more, as far as the host's speed lets it be the same.
    Case(2, "1 Gb/s", BF16),
    Case(2, "1 Gb/s", LOCAL),
    SLOW,
    Case(2, "100 Mb/s", BF16),
    Case(2, "100 Mb/s", LOCAL),
    Case(3, "100 Mb/s", GRADIENTS),
    Case(4, "unlimited", GRADIENTS),
    Case(4, "1 Gb/s", GRADIENTS),
    Case(4, "1 Gb/s", BF16),
    Case(4, "100 Mb/s", BF16),
    Case(4, "100 Mb/s", LOCAL),
]


def load_calibration(run: Path) -> MeasuredRun:
    found = analyse(load_evidence(run, time.time())).calibration
    return demand_calibration(run, found)


def main() -> None:
    argparse.ArgumentParser(description=__doc__).parse_args()
    with demo_machines(NAMES) as (net, config), shared_cores(net, CORES):
        print("| machines | link | setting | measured ms | predicted ms | error |")
        print("|---|---|---|---|---|---|")
        errors, seconds = [], {}
        calibrations = []
        for place, case in enumerate(CASES):
            if place % CASES_PER_CALIBRATION == 0:
                measured, run = measure(net, config, CALIBRATION)
                calibration = load_calibration(run)
                calibrations.append(f"{measured * 1e3:.0f}")
            predicted = prediction(calibration, case)
            seconds[case], run = measure(net, config, case)
            measured = seconds[case]
            if case == SLOW:
                without_network = prediction(load_calibration(run), FREE)
            errors.append(predicted / measured - 1)
            print(
                f"| {case.machines} | {case.link} | {case.way} | {measured * 1e3:.0f} "
                f"| {predicted * 1e3:.0f} | {errors[-1]:+.0%} |",
                flush=True,
            )
        print(f"\ncalibrations (2, 1 Gb/s, gradients): {', '.join(calibrations)} ms")
        sizes = sorted(abs(error) for error in errors)
        print(f"median error {statistics.median(sizes):.0%}, worst {sizes[-1]:.0%}")
        free = seconds[FREE]
        print(
            "two machines over 100 Mb/s say of an infinite network: "
            f"{without_network * 1e3:.0f} ms; measured with the limit removed: "
            f"{free * 1e3:.0f} ms, {without_network / free - 1:+.0%}"
        )


def prediction(calibration: MeasuredRun, case: Case) -> float:
    """Seconds of a step, as `dragoman whatif` would say."""
    rate = RATES[case.link]
    scenario = Scenario(
        machines=case.machines,
        workers=case.machines,
        bytes_per_second=rate / 8 if rate else float("inf"),
        compression="bf16" if case.way == BF16 else "none",
        local_steps=LOCAL_STEPS if case.way == LOCAL else 1,
    )
    return predict(calibration, scenario).seconds_step


def measure(net: Network, config: Path, case: Case) -> tuple[float, Path]:
    """Mean seconds of a step without the first few, and the run folder."""
    set_links(net, TC_RATES[case.link])
    hosts = ",".join(f"{name}:1" for name in NAMES[: case.machines])
    run = train(net, config, hosts, [*SETTINGS, *WAYS[case.way]])
    steps = [line for line in lines_of(run, "train") if line["step"] > FIRST_COUNTED]
    return statistics.mean(line["seconds"] for line in steps), run


if __name__ == "__main__":
    main()
