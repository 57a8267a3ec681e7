"""Steps on a GPU for the tests; as a program, one of several workers that share it.

python fused_worker.py CONFIG OUT STORE RANK COUNT OVERRIDE...
"""

import sys
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import islice
from pathlib import Path
from typing import Literal

import torch
import torch.distributed as distributed
from torch import Tensor

from dragoman.cluster.processes import Workers
from dragoman.config import Config
from dragoman.config_file import load_config
from dragoman.corpus.rows import Position, StepRows
from dragoman.model.transformer import Transformer
from dragoman.training.parts import make_parts
from dragoman.training.step import StepResult, TrainingStep
from support import SMALL

Kernels = Literal["plain", "fused", "compiled"]
RATE = 3e-3
STEPS = 4
SETTINGS = [
    *SMALL,
    "model.encoder_layers=2",
    "model.decoder_layers=2",
    "model.d_model=64",
    "model.heads=4",
    "model.feed_forward=96",
    "model.dropout=0.0",
    "model.attention_dropout=0.0",
    "model.relu_dropout=0.0",
    "batches.row_tokens=64",
    "batches.tokens_per_step=1024",
    "training.precision='bfloat16'",
]
DROPOUT = ["model.dropout=0.1", "model.attention_dropout=0.1", "model.relu_dropout=0.1"]


@dataclass(frozen=True)
class Training:
    """A model, its steps and its batches, ready to begin."""

    model: Transformer
    step: TrainingStep
    batches: list[StepRows]

    def run(self, first: int, last: int) -> list[StepResult]:
        """Make steps, several of them on their way at a time."""
        results = []
        for number in range(first, last + 1):
            self.step.queue(self.batches[number - 1], number, RATE * number, 0.0)
            if number - first >= self.step.lag:
                results.append(self.step.result())
        while len(results) < last - first + 1:
            results.append(self.step.result())
        return results

    def weights(self) -> dict[str, Tensor]:
        """A copy of the weights."""
        return {name: one.detach().clone() for name, one in self.model.named_parameters()}


def one_worker() -> Workers:
    return Workers(0, 1, torch.device("cuda", 0))


def make_training(config: Config, kernels: Kernels, workers: Workers, rows: int = 16) -> Training:
    """Build everything anew; the first weights depend on the config alone."""
    config = replace(config, training=replace(config.training, kernels=kernels))
    parts = make_parts(config, workers)
    steps = islice(parts.stream.steps(Position()), 2 * STEPS)
    parts.step.begin(rows)
    batches = [whole.share(workers.rank, workers.count) for whole in steps]
    return Training(parts.model, parts.step, batches)


def configure(folder: Path, overrides: Sequence[str] = ()) -> Config:
    return load_config(folder / "config.toml", [*SETTINGS, *overrides])


def main() -> None:
    folder, out, store, rank, count, *overrides = sys.argv[1:]
    distributed.init_process_group(
        "gloo", init_method=f"file://{store}", rank=int(rank), world_size=int(count)
    )
    workers = Workers(int(rank), int(count), torch.device("cuda", 0), ("here",) * int(count))
    training = make_training(configure(Path(folder), overrides), "fused", workers, rows=5)
    results = training.run(1, STEPS)
    torch.save({"results": results, "weights": training.weights()}, out)
    distributed.destroy_process_group()


if __name__ == "__main__":
    main()
