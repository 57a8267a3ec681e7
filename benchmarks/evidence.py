"""What the always-on evidence costs: seconds spent on it as a part of the steps' seconds.

    python benchmarks/evidence.py

The demo's run in this process, with a clock around everything that only serves the evidence:
writing a step down (metrics.jsonl and TensorBoard), the monitor's samples, collecting them. A
comparison of two runs could not show one per cent on a machine whose steps vary by ten.
"""

import argparse
import functools
import shutil
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from dragoman.config_file import load_config
from dragoman.corpus.demo import write_demo
from dragoman.corpus.prepare import prepare
from dragoman.runs.metrics import MetricsLog
from dragoman.runs.monitor import Monitor
from dragoman.training.start import train
from dragoman.training.watch import MachineWatch

STEPS = 100
SETTINGS = [f"training.steps={STEPS}", "schedule.decay_steps=10", "schedule.warmup_steps=20"]
SETTINGS += [f"evaluation.every_steps={STEPS}"]
spent: dict[str, float] = {}


def main() -> None:
    argparse.ArgumentParser(description=__doc__).parse_args()
    for name, owner, method in (
        ("writing steps down", MetricsLog, "write"),
        ("sampling the machine", Monitor, "sample"),
        ("collecting samples", MachineWatch, "collect"),
    ):
        setattr(owner, method, clocked(name, getattr(owner, method)))
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        write_demo(folder / "text")
        shutil.copy(Path(__file__).parents[1] / "src/dragoman/corpus/demo.toml", folder)
        config = load_config(folder / "demo.toml", SETTINGS)
        prepare(config)
        start = time.perf_counter()
        train(config, str(folder / "run"))
        seconds = time.perf_counter() - start
    print("\n| evidence | CPU ms in total | per step | share of the run |")
    print("|---|---|---|---|")
    for name, one in [*spent.items(), ("together", sum(spent.values()))]:
        print(f"| {name} | {one * 1e3:.0f} | {one / STEPS * 1e3:.2f} ms | {one / seconds:.2%} |")
    print(f"\n{STEPS} steps in {seconds:.1f} s, evaluation included")


def clocked(name: str, function: Callable[..., Any]) -> Callable[..., Any]:
    """Add a function's processor time to the account of that name."""

    @functools.wraps(function)
    def wrapper(*arguments: Any, **named: Any) -> Any:
        start = time.thread_time()
        try:
            return function(*arguments, **named)
        finally:
            spent[name] = spent.get(name, 0.0) + time.thread_time() - start

    return wrapper


if __name__ == "__main__":
    main()
