"""Why local steps learn more slowly: workers of one run in one process, with an Adam by hand.

    python benchmarks/simulated_workers.py CONFIG [NAME=VALUE,...] ...

Every variant trains as CONFIG says (a prepared corpus and a small model; a CPU will do) with other
ways to synchronize: `workers`, `local_steps`, `fragments`, `delay`, `rate` (a multiple of the
schedule's), and `squares`, Adam's second moments: `own` of each worker, or `whole`, those of the
mean of all workers' gradients, which real workers do not know. The outer steps are those of a run;
the loss is that of the workers' mean on the first validation set.
"""

import math
import sys
from dataclasses import dataclass, replace
from pathlib import Path
from typing import get_type_hints

import torch
from torch import Tensor

from dragoman.cluster.local_steps import OuterSteps, flat_weights
from dragoman.config import Config, DistributedSettings
from dragoman.config_file import load_config
from dragoman.corpus.order import keyed_seed
from dragoman.corpus.rows import Position, Rows
from dragoman.corpus.store import PreparedCorpus
from dragoman.inference.evaluate import evaluation_rows
from dragoman.model.transformer import RowTensors, Transformer
from dragoman.schedule import learning_rate
from dragoman.training.parts import make_stream

CPU = torch.device("cpu")


@dataclass(frozen=True)
class Variant:
    """How the workers of one run synchronize."""

    workers: int = 1
    local_steps: int = 16
    fragments: int = 4
    delay: int = 4
    rate: float = 1.0
    squares: str = "own"

    @classmethod
    def read(cls, words: str) -> "Variant":
        """From NAME=VALUE,NAME=VALUE."""
        kinds = get_type_hints(cls)
        given = dict(word.split("=") for word in words.split(",") if word)
        return cls(**{name: kinds[name](value) for name, value in given.items()})


@dataclass
class Moments:
    """What Adam remembers of one worker's gradients."""

    mean: Tensor
    square: Tensor


class Table:
    """Takes the place of a network: what each worker has set out with, one after the other."""

    def __init__(self, workers: int) -> None:
        self.vectors: list[list[Tensor]] = [[] for _ in range(workers)]

    def mean(self, turn: int) -> Tensor:
        return torch.stack([vectors[turn] for vectors in self.vectors]).mean(dim=0)


@dataclass(frozen=True)
class Sent:
    """A vector on the table; the others' lie there by the time that it is waited for."""

    table: Table
    turn: int

    def wait(self) -> tuple[Tensor, None]:
        return self.table.mean(self.turn), None


@dataclass(frozen=True)
class Place:
    """A worker's side of the table."""

    table: Table
    worker: int

    def start(self, vector: Tensor, error: Tensor | None) -> Sent:
        own = self.table.vectors[self.worker]
        own.append(vector.clone())
        return Sent(self.table, len(own) - 1)


def train(config: Config, corpus: PreparedCorpus, variant: Variant) -> float:
    """Train so, and give the loss of the workers' mean."""
    assert variant.delay > 0, "nobody waits here"
    steps, optimizer = config.training.steps, config.optimizer
    assert steps is not None
    models = [make_model(config, corpus) for _ in range(variant.workers)]
    table = Table(variant.workers)
    settings = DistributedSettings(
        sync="local",
        local_steps=variant.local_steps,
        local_fragments=variant.fragments,
        local_delay=variant.delay,
    )
    outer = [
        OuterSteps(model, settings, Place(table, worker))  # type: ignore[arg-type]
        for worker, model in enumerate(models)
    ]
    weights = [flat_weights(model) for model in models]
    moments = [Moments(torch.zeros_like(one), torch.zeros_like(one)) for one in weights]
    whole = torch.zeros_like(weights[0])
    stream = make_stream(config, corpus).steps(Position())
    for step in range(1, steps + 1):
        batch, rate = next(stream), variant.rate * scheduled(config, step)
        gradients = []
        for worker, model in enumerate(models):
            torch.manual_seed(keyed_seed(config.training.seed, step, worker))  # Of the dropout.
            share = batch.share(worker, variant.workers).rows
            gradients.append(gradient_of(model, share, config))
        mean_gradient = torch.stack(gradients).mean(dim=0)
        whole.lerp_(mean_gradient**2, 1 - optimizer.beta2)
        for own, memory, gradient in zip(weights, moments, gradients, strict=True):
            memory.mean.lerp_(gradient, 1 - optimizer.beta1)
            memory.square.lerp_(gradient**2, 1 - optimizer.beta2)
            square = whole if variant.squares == "whole" else memory.square
            root = (square / (1 - optimizer.beta2**step)).sqrt_().add_(optimizer.epsilon)
            own.addcdiv_(memory.mean, root, value=-rate / (1 - optimizer.beta1**step))
        for one in outer:
            one.after_step(step)
    weights[0].copy_(torch.stack(weights).mean(dim=0))
    return validation_loss(models[0], config, corpus)


def make_model(config: Config, corpus: PreparedCorpus) -> Transformer:
    torch.manual_seed(config.training.seed)
    source, target = corpus.subwords()
    return Transformer(config.model, source.size, target.size, config.vocabulary.joint)


def scheduled(config: Config, step: int) -> float:
    assert config.model.d_model is not None
    return learning_rate(step, config.schedule, config.model.d_model, config.training.steps)


def gradient_of(model: Transformer, rows: Rows, config: Config) -> Tensor:
    """The clipped gradient of the mean loss, all weights end to end."""
    model.zero_grad()
    sums = model(RowTensors.copy_to(CPU, rows.arrays()), config.training.label_smoothing)
    (sums.loss / max(1, rows.target_tokens)).backward()
    gradient = torch.cat([one.grad.flatten() for one in model.parameters() if one.grad is not None])
    limit = config.optimizer.clip_norm or math.inf
    return gradient / max(1.0, float(gradient.norm()) / limit)


@torch.no_grad()
def validation_loss(model: Transformer, config: Config, corpus: PreparedCorpus) -> float:
    one = corpus.evaluation_sets("validation")[0]
    begin = corpus.subwords()[1].begin
    rows = evaluation_rows(one.name, one.tokens, config.batches.row_tokens, begin)
    model.eval()
    parts = [rows[start : start + 16] for start in range(0, len(rows), 16)]
    losses = [
        float(model(RowTensors.copy_to(CPU, part.arrays()), config.training.label_smoothing).loss)
        for part in parts
    ]
    return sum(losses) / rows.target_tokens


def main() -> None:
    config = load_config(Path(sys.argv[1]))
    torch.set_num_threads(1)
    corpus = PreparedCorpus(Path(config.corpus.folder))
    print("| variant | loss, two seeds |\n|---|---|")
    for words in sys.argv[2:]:
        losses = [
            train(
                replace(config, training=replace(config.training, seed=seed)),
                corpus,
                Variant.read(words),
            )
            for seed in (1, 2)
        ]
        print(f"| {words} | {', '.join(f'{loss:.3f}' for loss in losses)} |", flush=True)


if __name__ == "__main__":
    main()
