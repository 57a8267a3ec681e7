"""What the reference runs would have taken at 1 Gb/s: gradients, bf16 gradients, local steps.

    python benchmarks/reference_runs.py

60,880,896 parameters, 2 machines, 50,000 steps. Nothing is measured here: this is the model behind
`dragoman whatif` (held against measurements by benchmarks/whatif.py), for a range of computing
times, because nobody reported how long a step computes on a V100. Nothing is hidden behind the
backward pass, as in most runs of that time.
"""

import argparse

from dragoman.prediction.step_model import MeasuredRun, Scenario, predict

PARAMETERS, STEPS = 60_880_896, 50_000
GOODPUT = 0.94 * 1e9 / 8  # What TCP leaves of a gigabit.
WAYS = {
    "gradients": Scenario(compression="none"),
    "bf16 gradients": Scenario(compression="bf16"),
    "32 local steps, bf16": Scenario(compression="bf16", local_steps=32),
}


def main() -> None:
    argparse.ArgumentParser(description=__doc__).parse_args()
    print("| compute per step | setting | s per step | hours for 50,000 | network share |")
    print("|---|---|---|---|---|")
    for compute in (0.2, 0.4):
        calibration = MeasuredRun(
            machines=2,
            workers=2,
            gradient_bytes=4 * PARAMETERS,
            tokens_per_step=0,
            seconds_compute=compute,
            seconds_optimizer=0.0,
            seconds_fixed=0.0,
            bytes_per_second=GOODPUT,
            latency_seconds=1e-4,
        )
        for name, scenario in WAYS.items():
            predicted = predict(calibration, scenario, steps=STEPS)
            print(
                f"| {compute} s | {name} | {predicted.seconds_step:.2f} | {predicted.hours:.1f} "
                f"| {predicted.seconds_exposed / predicted.seconds_step:.0%} |"
            )


if __name__ == "__main__":
    main()
