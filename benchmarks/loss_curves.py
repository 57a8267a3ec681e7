"""Draw the training losses of two runs in one picture, as of the fused and the plain kernels.

    python benchmarks/train_gpu.py PREPARED --parts ours plain --keep RUNS
    python benchmarks/loss_curves.py RUNS/base-8192-bfloat16-{fused,plain} PICTURE

The runs differ in their dropout masks, so that their losses differ by that much noise.
"""

import argparse
from pathlib import Path

import matplotlib
import numpy as np
from numpy.typing import NDArray

from run_lines import lines_of

MEAN_OF = 20


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("run", type=Path)
    parser.add_argument("other", type=Path)
    parser.add_argument("picture", type=Path)
    arguments = parser.parse_args()
    curves = {run.name: losses(run) for run in (arguments.run, arguments.other)}
    draw(curves, arguments.picture)
    last = min(map(len, curves.values()))
    for name, curve in curves.items():
        print(
            f"{name}: mean loss of the {MEAN_OF} steps up to {last}: {smooth(curve[:last])[-1]:.4f}"
        )
    one, other = (smooth(curve[:last]) for curve in curves.values())
    print(f"largest difference of means of {MEAN_OF} steps: {np.abs(one - other).max():.4f}")


def losses(run: Path) -> NDArray[np.float64]:
    return np.array([line["loss"] for line in lines_of(run, "train")])


def smooth(curve: NDArray[np.float64]) -> NDArray[np.float64]:
    return np.convolve(curve, np.full(MEAN_OF, 1 / MEAN_OF), mode="valid")


def draw(curves: dict[str, NDArray[np.float64]], picture: Path) -> None:
    from matplotlib.figure import Figure

    last = min(map(len, curves.values()))
    matplotlib.rcParams["svg.hashsalt"] = "dragoman"  # The same picture for the same numbers.
    figure = Figure(figsize=(7, 3.6), layout="constrained")
    axes = figure.add_subplot()
    for (name, curve), style in zip(curves.items(), ("-", "--"), strict=True):
        steps = np.arange(MEAN_OF, last + 1)
        axes.plot(steps, smooth(curve[:last]), style, label=name, linewidth=1.4)
    axes.set_xlabel("step")
    axes.set_ylabel(f"training loss, mean of {MEAN_OF} steps")
    axes.grid(alpha=0.3)
    axes.legend()
    picture.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(picture, metadata={"Date": None})


if __name__ == "__main__":
    main()
