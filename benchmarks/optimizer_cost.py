"""What an update costs on a GPU: Adam and Muon, against the gradients of a step.

    python benchmarks/optimizer_cost.py [base|big]

Times replays of the two graphs of a step on rows without padding, without reading any text.
"""

import statistics
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path

import torch

from dragoman.cluster.processes import Workers
from dragoman.config import Config
from dragoman.config_file import load_config
from dragoman.model.transformer import Transformer
from dragoman.training.capacity import full_rows
from dragoman.training.fused_step import FusedStep

WORDS = 32_768
SLOTS = (8_192, 16_384, 32_768)
REPEATS = 30
CONFIG = """
[corpus]
folder = "none"
train = [{{ source = "none", target = "none" }}]
[model]
preset = "{preset}"
[optimizer]
kind = "{kind}"
clip_norm = 1.0
[training]
precision = "bfloat16"
"""


def main() -> None:
    preset = (sys.argv[1:] or ["base"])[0]
    print(f"{preset} on {torch.cuda.get_device_name()}, torch {torch.__version__}\n")
    updates = {}
    for kind in ("adam", "muon"):
        step = make_step(preset, kind, SLOTS[0])
        updates[kind] = milliseconds(step._update_graph.replay)
        print(f"{kind}: {updates[kind]:.3f} ms an update")
        print_kernels(step)
        del step
    more = updates["muon"] - updates["adam"]
    print("\n| target slots | gradients ms | with Adam | with Muon | Muon costs |")
    print("|---|---|---|---|---|")
    for slots in SLOTS:
        step = make_step(preset, "adam", slots)
        gradients = milliseconds(step._gradient_graph.replay)
        both = [gradients + updates[kind] for kind in ("adam", "muon")]
        print(
            f"| {slots:,} | {gradients:.2f} | {both[0]:.2f} | {both[1]:.2f} "
            f"| {more / both[0]:.1%} |",
            flush=True,
        )
        del step


def make_step(preset: str, kind: str, slots: int) -> FusedStep:
    config, device = configure(preset, kind), torch.device("cuda", 0)
    torch.manual_seed(1)
    model = Transformer(config.model, WORDS, WORDS, joint=True).to(device)
    step = FusedStep(config, model, Workers(0, 1, device))
    rows = slots // config.batches.row_tokens
    step.begin(rows)
    for place, values in zip(step._rows, full_rows(rows, 128, device), strict=True):
        place.copy_(values)
    step._rows.source.random_(3, WORDS)
    step._rows.target_input.random_(3, WORDS)
    step._rows.target.random_(3, WORDS)
    step._flat.gradients.normal_()
    return step


def configure(preset: str, kind: str) -> Config:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "config.toml"
        path.write_text(CONFIG.format(preset=preset, kind=kind))
        return load_config(path, [])


def milliseconds(work: Callable[[], None]) -> float:
    times = []
    for _ in range(REPEATS):
        start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))  # type: ignore[no-untyped-call]
        start.record()
        work()
        end.record()
        end.synchronize()
        times.append(float(start.elapsed_time(end)))
    return statistics.median(times[REPEATS // 3 :])


def print_kernels(step: FusedStep) -> None:
    """The kernels of one update that take longest."""
    activity = torch.profiler.ProfilerActivity.CUDA
    with torch.profiler.profile(activities=[activity]) as profiler:
        step._update_graph.replay()
        torch.cuda.synchronize()
    times: dict[str, list[float]] = {}
    for event in profiler.events():
        times.setdefault(event.name, []).append(event.device_time)
    for name, each in sorted(times.items(), key=lambda item: -sum(item[1]))[:12]:
        print(f"  {sum(each) / 1e3:.3f} ms in {len(each):3} x {name[:90]}")


if __name__ == "__main__":
    main()
