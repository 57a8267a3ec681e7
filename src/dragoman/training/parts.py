"""What a worker trains with: the corpus, the model, the stream of rows, and the kind of step."""

from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import assert_never

import torch

from dragoman.cluster.processes import Workers
from dragoman.config import Config, CorpusSettings, ParallelText, corpus_names, is_mix
from dragoman.contradictions import refuse_idle_workers
from dragoman.corpus.mix import MixedStream, plan_stages, slots_of
from dragoman.corpus.order import keyed_seed
from dragoman.corpus.rows import RowStream
from dragoman.corpus.store import PairTokens, PreparedCorpus
from dragoman.corpus.subword_dropout import SubwordDropout
from dragoman.errors import UserError
from dragoman.model.transformer import Transformer
from dragoman.training.capacity import rows_that_fit
from dragoman.training.fused_step import FusedStep
from dragoman.training.kernels import KernelChoice, choose_kernels, refuse_mixed_kernels
from dragoman.training.local_step import LocalStep, alone, with_longer_memory
from dragoman.training.row_shares import micro_batch_rows
from dragoman.training.step import PlainStep, TrainingStep


@dataclass(frozen=True)
class Parts:
    """All a worker needs but a run folder."""

    corpus: PreparedCorpus
    model: Transformer
    kernels: KernelChoice
    step: TrainingStep
    stream: RowStream | MixedStream


def make_parts(config: Config, workers: Workers) -> Parts:
    """Build everything from the config; the weights are random, the same on every worker."""
    corpus = PreparedCorpus(Path(config.corpus.folder))
    with ThreadPoolExecutor() as beside:
        # A GPU takes its time to start; meanwhile there is much to read and to draw.
        woken = beside.submit(wake, workers.device)
        if workers.is_first_on_host:
            corpus.check_contents()
        check_corpus_settings(config, corpus)
        source, target = corpus.subwords()
        torch.manual_seed(config.training.seed)
        model = Transformer(config.model, source.size, target.size, config.vocabulary.joint)
        woken.result()
    model.to(workers.device)
    batches = config.batches
    refuse_idle_workers(batches, workers.count)
    stream = make_stream(config, corpus)
    kernels = choose_kernels(config, workers)
    refuse_mixed_kernels(kernels, workers)
    return Parts(corpus, model, kernels, make_step(config, model, workers, kernels), stream)


def make_stream(config: Config, corpus: PreparedCorpus) -> RowStream | MixedStream:
    """The steps' rows: of all text shuffled together, or of a mix of corpora."""
    seed, rows = config.training.seed, config.batches.rows_per_step
    source, target = corpus.subwords()
    dropout = None
    if config.training.subword_dropout:
        share, width = config.training.subword_dropout, config.batches.row_tokens
        dropout = SubwordDropout((source, target), share, width)

    def stream(pairs: PairTokens, seed: int) -> RowStream:
        return RowStream(pairs, config.batches.row_tokens, rows, target.begin, seed, dropout)

    if not is_mix(config):
        return stream(corpus.train, seed)
    parts = corpus.train_parts()
    # Corpora of one size would be walked in the same order.
    streams = {
        name: stream(pairs, keyed_seed(seed, place))
        for place, (name, pairs) in enumerate(parts.items())
    }
    stages = plan_stages(config, [slots_of(pairs) for pairs in parts.values()])
    return MixedStream(streams, stages, rows, seed)


def wake(device: torch.device) -> None:
    """Start a GPU, what multiplies matrices there, and what finds kernels on disk."""
    if device.type != "cuda":
        return
    matrix = torch.ones(64, 64, device=device)
    torch.mm(matrix, matrix)
    with suppress(ImportError):
        from triton.runtime.cache import triton_key

        triton_key()  # Looks at all of Triton, 400 MB, once in a process.


def make_step(
    config: Config, model: Transformer, workers: Workers, kernels: KernelChoice
) -> TrainingStep:
    """Choose how this worker makes its steps."""
    if config.distributed.sync == "local":
        own = with_longer_memory(config, workers.count)
        by_itself = make_lockstep(own, model, alone(workers), kernels)
        return LocalStep(by_itself, model, workers, config.distributed)
    return make_lockstep(config, model, workers, kernels)


def make_lockstep(
    config: Config, model: Transformer, workers: Workers, kernels: KernelChoice
) -> TrainingStep:
    """Make the steps that the chosen kernels make."""
    match kernels.kind:
        case "plain":
            return PlainStep(config, model, workers)
        case "fused" | "compiled":
            return FusedStep(config, model, workers, is_compiled=kernels.kind == "compiled")
        case _:
            assert_never(kernels.kind)


def choose_rows_per_device(config: Config, parts: Parts, workers: Workers) -> int:
    """How many rows a device handles at once: as the config says, or as fits."""
    most, chosen = most_rows_per_device(config, parts, workers), config.batches.rows_per_device
    if chosen == "auto":
        return rows_that_fit(parts.step.try_rows, config.batches.row_tokens, most, workers.device)
    # A recorded step would fill up with empty rows, and take as long as for full ones.
    return chosen if parts.kernels.kind == "plain" else min(chosen, most)


def most_rows_per_device(config: Config, parts: Parts, workers: Workers) -> int:
    """A worker's share of a step; less where shares are made of whole micro-batches."""
    share = -(-parts.stream.rows_per_step // workers.count)
    if config.distributed.balance and parts.kernels.kind != "plain":
        return min(share, micro_batch_rows(parts.stream.rows_per_step))
    return share


def check_corpus_settings(config: Config, corpus: PreparedCorpus) -> None:
    """Refuse a corpus that was prepared with other settings than the config's."""
    made_with = corpus.manifest.settings
    before, now = made_with.corpus, config.corpus
    different = [
        f"corpus.{key} = {getattr(now, key)!r}, not {getattr(before, key)!r}"
        for key in ("source_language", "target_language", "seed")
        if getattr(now, key) != getattr(before, key)
    ]
    different += [
        f"{section}.{key} = {value!r}, not {getattr(getattr(made_with, section), key)!r}"
        for section in ("cleaning", "vocabulary")
        for key, value in vars(getattr(config, section)).items()
        if getattr(getattr(made_with, section), key) != value
        and not key.endswith(("model", "from_run"))
    ]
    if different:
        raise UserError(
            f"{corpus.folder} was prepared with different settings; the config now has "
            f"{'; '.join(different)}; run `dragoman prepare` again"
        )
    if list(corpus.train_parts()) != (corpus_names(now) if is_mix(config) else []):
        raise UserError(
            f"{corpus.folder} was prepared with different names or weights in corpus.train, "
            "which decide which texts are kept apart; run `dragoman prepare` again"
        )
    texts_before = texts_of(before)
    for name, files in texts_of(now).items():
        if files != texts_before[name]:
            raise UserError(
                f"{corpus.folder} was prepared from different text: corpus.{name} was "
                f"{', '.join(texts_before[name]) or 'empty'}; the config now has "
                f"{', '.join(files) or 'nothing'}; run `dragoman prepare` again"
            )


def texts_of(corpus: CorpusSettings) -> dict[str, list[str]]:
    """Names of the files of each kind of text; where they lie may differ between machines."""

    def names(text: ParallelText) -> list[str]:
        files = [Path(path).name for path in (text.source, text.target, text.tsv) if path]
        return [*files, text.tag] if text.tag else files

    return {
        "train": [name for text in corpus.train for name in names(text)],
        **{
            kind: [
                f"{set_name}: {name}" for set_name, text in named.items() for name in names(text)
            ]
            for kind, named in (("validation", corpus.validation), ("test", corpus.test))
        },
    }
