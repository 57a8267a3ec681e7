"""Why local steps learn more slowly: workers of one run in one process, on a CPU.

    python benchmarks/simulated_workers.py CONFIG [NAME=VALUE,...] ... [SETTING=VALUE ...]

Every variant trains as CONFIG says (a prepared corpus and a small model) with other ways to
synchronize: `workers`, `local_steps`, `fragments`, `delay`, `rate` (a multiple of the schedule's),
`memory` (how many times as long Adam's mean square remembers), `momentum` (of the outer step) and
`form` (how differences travel: none, int8, int4 or int2). Optimizers, outer steps and packing are
those of a run. The losses are those of the workers' mean on the first validation set: of all words,
and of fifths of them, those that training text has least often first.
"""

import sys
from dataclasses import dataclass, replace
from pathlib import Path
from typing import cast, get_type_hints

import numpy as np
import torch
from torch import Tensor

from dragoman.cluster.local_steps import OuterSteps, flat_weights
from dragoman.cluster.wire_format import WireFormat, add_up, pack_parts, unpack_parts
from dragoman.config import Config, DistributedSettings
from dragoman.config_file import load_config
from dragoman.corpus.order import keyed_seed
from dragoman.corpus.rows import Position
from dragoman.corpus.store import PreparedCorpus
from dragoman.inference.evaluate import evaluation_rows
from dragoman.model.loss import cross_entropy
from dragoman.model.transformer import RowTensors, Transformer
from dragoman.schedule import learning_rate
from dragoman.training.local_step import with_longer_memory
from dragoman.training.loss_scale import LossScale
from dragoman.training.optimizer import Optimizer
from dragoman.training.parts import make_stream

CPU = torch.device("cpu")
FIFTHS = 5
SEEDS = (1, 2)


@dataclass(frozen=True)
class Variant:
    """How the workers of one run synchronize."""

    workers: int = 1
    local_steps: int = 16
    fragments: int = 4
    delay: int = 4
    rate: float = 1.0
    memory: int = 1
    momentum: float = 0.0
    form: str = "none"

    @classmethod
    def read(cls, words: str) -> "Variant":
        """From NAME=VALUE,NAME=VALUE."""
        kinds = get_type_hints(cls)
        given = dict(word.split("=") for word in words.split(",") if word)
        return cls(**{name: kinds[name](value) for name, value in given.items()})


class Table:
    """Takes the place of a network: what each worker has sent, one vector after the other."""

    def __init__(self, workers: int, form: WireFormat) -> None:
        self.workers, self.form = workers, form
        self.sent: dict[int, list[Sent]] = {}  # By turn, then by worker.
        self.turns = [0] * workers

    def put(self, worker: int, vector: Tensor, error: Tensor | None) -> "Sent":
        packed, kept_back = pack_parts(vector.clone(), error, self.workers, self.form)
        one = Sent(self, self.turns[worker], packed, kept_back, torch.empty_like(vector))
        self.sent.setdefault(one.turn, []).append(one)
        self.turns[worker] += 1
        return one

    def exchange(self, turn: int) -> None:
        """Give everyone the mean; each worker adds up a part, and keeps what rounding leaves."""
        everyone = self.sent.pop(turn)
        sums = []
        for place, one in enumerate(everyone):
            total, left_out = add_up(
                torch.stack([other.packed[place] for other in everyone]), self.form
            )
            sums.append(total)
            if one.kept_back is not None:
                own = one.kept_back[place * len(left_out) :][: len(left_out)]
                own += left_out[: len(own)]
        for one in everyone:
            unpack_parts(torch.stack(sums), self.form, self.workers, one.mean)


@dataclass(frozen=True)
class Sent:
    """A vector on the table; the others' lie there by the time that it is waited for."""

    table: Table
    turn: int
    packed: Tensor
    kept_back: Tensor | None
    mean: Tensor  # To be written.

    def wait(self) -> tuple[Tensor, Tensor | None]:
        if self.turn in self.table.sent:
            self.table.exchange(self.turn)
        return self.mean, self.kept_back


@dataclass(frozen=True)
class Place:
    """A worker's side of the table."""

    table: Table
    worker: int

    def start(self, vector: Tensor, error: Tensor | None) -> Sent:
        return self.table.put(self.worker, vector, error)


def train(config: Config, corpus: PreparedCorpus, variant: Variant) -> list[float]:
    """Train so, and give the losses of the workers' mean."""
    assert variant.delay > 0, "nobody waits here"
    assert config.training.steps
    remembering = with_longer_memory(config, variant.memory).optimizer
    models = [make_model(config, corpus) for _ in range(variant.workers)]
    weights = [flat_weights(model) for model in models]
    optimizers = [Optimizer(model, remembering, LossScale("float32", CPU)) for model in models]
    form = cast(WireFormat, variant.form)
    table = Table(variant.workers, form)
    settings = DistributedSettings(
        sync="local",
        compression=form,
        local_steps=variant.local_steps,
        local_fragments=variant.fragments,
        local_delay=variant.delay,
        outer_momentum=variant.momentum,
    )
    outer = [
        OuterSteps(model, settings, Place(table, worker))  # type: ignore[arg-type]
        for worker, model in enumerate(models)
    ]
    stream = make_stream(config, corpus).steps(Position())
    for step in range(1, config.training.steps + 1):
        batch = next(stream)
        for worker, (model, optimizer) in enumerate(zip(models, optimizers, strict=True)):
            torch.manual_seed(keyed_seed(config.training.seed, step, worker))  # Of the dropout.
            rows = batch.share(worker, variant.workers).rows
            tensors = RowTensors.copy_to(CPU, rows.arrays())
            sums = model(tensors, config.training.label_smoothing)
            (sums.loss / max(1, rows.target_tokens)).backward()
            optimizer.step(variant.rate * scheduled(config, step))
        for one in outer:
            one.after_step(step)
    weights[0].copy_(torch.stack(weights).mean(dim=0))
    return validation_losses(models[0], config, corpus)


def make_model(config: Config, corpus: PreparedCorpus) -> Transformer:
    torch.manual_seed(config.training.seed)
    source, target = corpus.subwords()
    return Transformer(config.model, source.size, target.size, config.vocabulary.joint)


def scheduled(config: Config, step: int) -> float:
    assert config.model.d_model is not None
    return learning_rate(step, config.schedule, config.model.d_model, config.training.steps)


@torch.no_grad()
def validation_losses(model: Transformer, config: Config, corpus: PreparedCorpus) -> list[float]:
    """Of all words, then of fifths of them, the rarest first."""
    one, target = corpus.evaluation_sets("validation")[0], corpus.subwords()[1]
    rows = evaluation_rows(one.name, one.tokens, config.batches.row_tokens, target.begin)
    counts = torch.from_numpy(np.bincount(corpus.train.target.tokens, minlength=target.size))
    batch = RowTensors.copy_to(CPU, rows.arrays())
    labels, is_real = batch.target.flatten().long(), batch.target_segments.flatten() > 0
    # Ties in a fixed order, so that the fifths are equally large.
    order = torch.argsort(counts[labels].masked_fill(~is_real, counts.max() + 1), stable=True)
    fifths = torch.chunk(order[: int(is_real.sum())], FIFTHS)
    model.eval()
    parts = [RowTensors(*(one[at : at + 16] for one in batch)) for at in range(0, len(rows), 16)]
    hidden = torch.cat([model.hidden_states(part).flatten(0, 1) for part in parts])
    losses = []
    for chosen in (torch.cat(fifths), *fifths):
        sums = cross_entropy(
            hidden[chosen],
            model.target_embedding.weight,
            labels[chosen],
            is_real[chosen],
            config.training.label_smoothing,
        )
        losses.append(float(sums.loss) / len(chosen))
    return losses


def main() -> None:
    settings = [word for word in sys.argv[2:] if "." in word.split("=")[0]]
    config = load_config(Path(sys.argv[1]), settings)
    torch.set_num_threads(1)
    corpus = PreparedCorpus(Path(config.corpus.folder))
    print("| variant | loss, each seed | of fifths of the words, the rarest first; mean |")
    print("|---|---|---|")
    for words in (word for word in sys.argv[2:] if word not in settings):
        variant = Variant.read(words)
        seeded = (replace(config, training=replace(config.training, seed=one)) for one in SEEDS)
        losses = np.array([train(one, corpus, variant) for one in seeded])
        each = ", ".join(f"{loss:.3f}" for loss in losses[:, 0])
        fifths = ", ".join(f"{loss:.3f}" for loss in losses[:, 1:].mean(axis=0))
        print(f"| {words} | {each} | {fifths} |", flush=True)


if __name__ == "__main__":
    main()
