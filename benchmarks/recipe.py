"""What each change of the recipe brings on one GPU: many short runs in one process.

    python benchmarks/recipe.py CONFIG RESULTS.jsonl "NAME: SETTING=VALUE ..." ...

Each variant trains CONFIG with some settings changed and evaluates the first validation set: the
loss at every `evaluation.every_steps`, greedy BLEU at the end. Compared with `dragoman train`
nothing is written: a variant costs its steps and a few seconds. Beside settings it may have
    ema=DECAY                also score a running average of the weights
    embedding_rate=FACTOR    of the embeddings' learning rate
    small_batches=STEPS      the first so many steps are half as large
    mix_rows=COUNT           so many rows of a step are of the prepared corpus at $MIX
    late_weight=WEIGHT       of a mix's last training text, in place of the config's stages,
    late_from=STEP           from this step on
    score=STEPS              BLEU this often
"""

import json
import os
import statistics
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from dragoman.cluster.processes import Workers
from dragoman.config import Config, StageSettings, corpus_names, is_mix, shape_of
from dragoman.config_file import load_config
from dragoman.corpus.rows import Position, Rows, RowStream, StepRows
from dragoman.corpus.store import PreparedCorpus
from dragoman.inference.evaluate import MeanLoss, evaluation_rows, mean_loss, score_text
from dragoman.inference.translate import TextSides, Translator
from dragoman.model.precision import arithmetic
from dragoman.schedule import learning_rate
from dragoman.training.batches import Ahead
from dragoman.training.fused_step import FusedStep
from dragoman.training.parts import Parts, make_parts

STEPS_BETWEEN_AVERAGES = 10
WARM_UP_STEPS = 50  # Not counted in the milliseconds of a step.
OWN_KNOBS = (
    *("ema", "embedding_rate", "small_batches", "mix_rows"),
    *("late_weight", "late_from", "score"),
)


@dataclass(frozen=True)
class Variant:
    """One run: the settings and knobs that differ."""

    name: str
    settings: list[str]
    knobs: dict[str, float] = field(default_factory=dict)

    @staticmethod
    def parse(text: str) -> "Variant":
        name, _, changes = text.partition(":")
        words = changes.split()
        knobs = dict(word.split("=") for word in words if word.split("=")[0] in OWN_KNOBS)
        settings = [word for word in words if word.split("=")[0] not in OWN_KNOBS]
        return Variant(name.strip(), settings, {key: float(value) for key, value in knobs.items()})


class Scorer:
    """Scores a model on the first validation set."""

    def __init__(self, config: Config, parts: Parts, device: torch.device) -> None:
        self._config, self._device = config, device
        self._set = parts.corpus.evaluation_sets("validation")[0]
        source, target = parts.corpus.subwords()
        width, cleaning = config.batches.row_tokens, config.cleaning
        text = TextSides(source, target, cleaning.normalize_punctuation, cleaning.max_tokens)
        # One for all evaluations: what it records the first time serves the later ones.
        self._translator = Translator(parts.model, text, device)
        self._rows = evaluation_rows(self._set.name, self._set.tokens, width, target.begin)

    def loss(self, parts: Parts) -> MeanLoss:
        workers, training = Workers(0, 1, self._device), self._config.training
        with torch.no_grad():
            return mean_loss(
                parts.model,
                self._rows,
                training.label_smoothing,
                workers,
                lambda: arithmetic(training.precision, self._device),
            )

    def bleu(self, parts: Parts) -> float:
        parts.model.eval()
        search = replace(self._config.translation, beam=1)
        with arithmetic(self._config.training.precision, self._device):
            found = self._translator.translate(self._set.source, search)
        parts.model.train()
        lines = [best[0].text for best in found]
        return score_text(lines, self._set.target, self._config.evaluation.bleu_tokenize).bleu


def main() -> None:
    config_path, results, *texts = sys.argv[1:]
    with open(results, "a") as file:
        for variant in map(Variant.parse, texts):
            for line in run(Path(config_path), variant):
                print(json.dumps(line), flush=True)
                file.write(json.dumps(line) + "\n")
                file.flush()


def run(config_path: Path, variant: Variant) -> Iterator[dict[str, object]]:
    """Train one variant and tell its scores."""
    start = time.perf_counter()
    config, device = read_config(config_path, variant), torch.device("cuda", 0)
    assert config.training.steps
    parts = make_parts(config, Workers(0, 1, device))
    step, scorer = parts.step, Scorer(config, parts, device)
    assert isinstance(step, FusedStep)
    prepare_knobs(variant, step)
    rows = config.batches.rows_per_step
    step.begin(rows // 2 if "small_batches" in variant.knobs else rows)
    average = [one.detach().clone() for one in parts.model.parameters()]
    begun, trained, tokens, times = time.perf_counter(), 0.0, 0, []
    score_every = int(variant.knobs.get("score", config.training.steps))
    queued = 0
    ahead = Ahead(batches(config, parts, variant))
    for number in range(1, config.training.steps + 1):
        batch = ahead.next()
        rate = learning_rate(
            number, config.schedule, shape_of(config.model).d_model, config.training.steps
        )
        step.queue(batch, number, rate, 0.0)
        tokens, queued = tokens + batch.target_tokens, queued + 1
        is_last = number == config.training.steps
        is_due = is_last or number % config.evaluation.every_steps == 0
        while queued > (0 if is_due else step.lag):
            result = step.result()
            times.append(result.seconds or 0.0)
            queued -= 1
        if "ema" in variant.knobs and number % STEPS_BETWEEN_AVERAGES == 0:
            weight = 1 - variant.knobs["ema"] ** STEPS_BETWEEN_AVERAGES
            torch._foreach_lerp_(average, [*parts.model.parameters()], weight)
        if not is_due:
            continue
        torch.cuda.synchronize()
        trained += time.perf_counter() - begun
        loss = scorer.loss(parts)
        line: dict[str, object] = {
            "variant": variant.name,
            "step": number,
            "loss": round(loss.loss, 4),
            "nll": round(loss.nll, 4),
            "train_loss": round(result.loss / batch.target_tokens, 3),
            "seconds": round(trained, 2),
            "tokens_per_second": round(tokens / trained),
            "milliseconds": round(1e3 * statistics.median(times[WARM_UP_STEPS:] or times), 3),
        }
        if is_last or number % score_every == 0:
            line["bleu"] = round(scorer.bleu(parts), 2)
        if is_last and "ema" in variant.knobs:
            swap(parts, average)
            line["ema_nll"], line["ema_bleu"] = scorer.loss(parts).nll, scorer.bleu(parts)
            swap(parts, average)
        if is_last:
            line["seconds_in_all"] = round(time.perf_counter() - start, 1)
        yield line
        begun = time.perf_counter()
        step.weights_changed()
    ahead.close()
    del step, parts, average, scorer
    torch.cuda.empty_cache()


def read_config(path: Path, variant: Variant) -> Config:
    config = load_config(path, variant.settings)
    if "late_weight" not in variant.knobs:
        return config
    weights = {corpus_names(config.corpus)[-1]: variant.knobs["late_weight"]}
    return replace(config, stages=(StageSettings(int(variant.knobs["late_from"]), weights),))


def batches(config: Config, parts: Parts, variant: Variant) -> Iterator[StepRows]:
    """The steps' rows, without an end."""
    small, position = int(variant.knobs.get("small_batches", 0)), Position()
    extra = int(variant.knobs.get("mix_rows", 0))
    if is_mix(config):
        assert not small + extra, "small_batches and mix_rows are for text that is no mix"
        yield from parts.stream.steps(position)
    size = config.batches.rows_per_step - extra
    main = stream(config, parts.corpus, size // 2)
    for batch in islice(main.steps(position), small):
        yield batch
        position = batch.next
    steps = stream(config, parts.corpus, size).steps(position)
    if not extra:
        yield from steps
    mixed = stream(config, PreparedCorpus(Path(os.environ["MIX"])), extra)
    for one, other in zip(steps, mixed.steps(Position()), strict=False):
        columns = zip(one.rows.arrays(), other.rows.arrays(), strict=True)
        rows = Rows(*(np.concatenate(arrays) for arrays in columns))
        yield replace(one, rows=rows, target_tokens=one.target_tokens + other.target_tokens)


def stream(config: Config, corpus: PreparedCorpus, rows: int) -> RowStream:
    begin, seed = corpus.subwords()[1].begin, config.training.seed
    return RowStream(corpus.train, config.batches.row_tokens, rows, begin, seed)


def prepare_knobs(variant: Variant, step: FusedStep) -> None:
    """Change what is no setting."""
    flat = step._flat
    if "embedding_rate" in variant.knobs:
        factor, adam = variant.knobs["embedding_rate"], step._adam
        (words,) = (flat.view(flat.values, [n]) for n in flat.of_adam if "embedding" in n)
        (copies,) = (flat.view(flat.copies, [n]) for n in flat.of_adam if "embedding" in n)

        def scaled(*arguments: Any) -> None:
            before = words.clone()
            adam(*arguments)
            words.lerp_(before, 1 - factor)
            copies.copy_(words)

        step._adam = scaled  # type: ignore[assignment]


def swap(parts: Parts, average: list[Tensor]) -> None:
    """Exchange the weights and their average; evaluation uses no copies."""
    with torch.no_grad():
        for one, other in zip(parts.model.parameters(), average, strict=True):
            kept = one.clone()
            one.copy_(other)
            other.copy_(kept)


if __name__ == "__main__":
    main()
