"""What `dragoman translate` and `dragoman evaluate` do with a run."""

import sys
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

import torch

from dragoman.cluster.processes import Workers
from dragoman.config import TranslationSettings
from dragoman.console import Progress, say
from dragoman.corpus.store import EvaluationSet, PairTokens, PreparedCorpus, pack_lines
from dragoman.corpus.text import TextFiles, decode, normalize, read_chunks
from dragoman.errors import UserError
from dragoman.inference.evaluate import evaluation_rows, mean_loss, score_text
from dragoman.inference.export_folder import find_export
from dragoman.inference.load import ExportedModel, TrainedModel, load_exported, load_trained
from dragoman.inference.translate import Translator
from dragoman.runs.folder import find_run

if TYPE_CHECKING:
    from dragoman.inference.ctranslate2_model import CTranslate2Translator

LINES_AT_ONCE = 2_000
BOOTSTRAP_SAMPLES = 1_000


@dataclass(frozen=True)
class TrainedChoice:
    """Which weights of a run to use, and how to decode."""

    run: str
    checkpoint: str = "best"
    average: int = 1
    beam: int | None = None
    length_penalty: float | None = None


def translate_lines(choice: TrainedChoice, n_best: int, engine: str) -> None:
    """Translate standard input to standard output, as many lines out as in."""
    if n_best < 1:
        raise UserError(f"--n-best {n_best}: must be at least 1")
    translator: Translator | CTranslate2Translator
    if engine == "ctranslate2":
        exported = _load_exported(choice)
        translator, settings = exported.translator, exported.info.translation
    else:
        trained = _load(choice)
        translator, settings = trained.translator, trained.config.translation
    settings = _decoding(settings, choice)
    sys.stdout.reconfigure(encoding="utf-8", newline="\n")  # type: ignore[union-attr]
    while lines := [line for _, line in zip(range(LINES_AT_ONCE), sys.stdin.buffer, strict=False)]:
        # Whatever comes in, a line goes out: bytes that are no text become U+FFFD.
        text = [line.decode("utf-8", "replace").rstrip("\r\n") for line in lines]
        for translations in translator.translate(text, settings, n_best):
            for translation in translations:
                score = f"{translation.score:.4f}\t" if n_best > 1 else ""
                print(f"{score}{translation.text}")
        sys.stdout.flush()


@dataclass(frozen=True)
class Evaluated:
    """A set as it was translated."""

    source: Sequence[str]
    translations: Sequence[str]


def evaluate_run(
    choice: TrainedChoice, source: Path | None, reference: Path | None
) -> list[Evaluated]:
    """Print loss, BLEU and chrF with confidence intervals and signatures."""
    trained = _load(choice)
    settings = _decoding(trained.config.translation, choice)
    evaluated = []
    for one in _sets(trained, source, reference):
        with Progress(f"translating {one.name}", len(one.source), "sentences") as progress:
            best = trained.translator.translate(one.source, settings, on_progress=progress.advance)
        translations = [ranked[0].text for ranked in best]
        evaluated.append(Evaluated(one.source, translations))
        workers = Workers(0, 1, trained.translator.device)
        rows = evaluation_rows(
            one.tokens, trained.config.batches.row_tokens, trained.translator.text.target.begin
        )
        smoothing = trained.config.training.label_smoothing
        loss = mean_loss(trained.translator.model, rows, smoothing, workers)
        text = score_text(
            translations,
            one.target,
            trained.config.evaluation.bleu_tokenize,
            BOOTSTRAP_SAMPLES,
        )
        assert text.bleu_interval
        assert text.chrf_interval
        print(f"{one.name}: {len(one.source):,} pairs, {loss.target_tokens:,} target tokens")
        print(f"  loss  {loss.loss:.4f}   nll {loss.nll:.4f}   perplexity {loss.perplexity:.2f}")
        for name, score, (low, high), signature in (
            ("BLEU", text.bleu, text.bleu_interval, text.signature),
            ("chrF", text.chrf, text.chrf_interval, text.chrf_signature),
        ):
            print(f"  {name}  {score:.2f}   95% {low:.2f} to {high:.2f}   {signature}")
    return evaluated


def _load(choice: TrainedChoice) -> TrainedModel:
    run = find_run(choice.run)
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    trained = load_trained(run, choice.checkpoint, choice.average, device)
    say(f"{run.name}: {', '.join(trained.checkpoints)}")
    return trained


def _load_exported(choice: TrainedChoice) -> ExportedModel:
    folder = find_export(choice.run)
    exported = load_exported(folder)
    info = exported.info
    say(f"{folder}: {', '.join(info.checkpoints)}, {info.quantization}")
    return exported


def _decoding(settings: TranslationSettings, choice: TrainedChoice) -> TranslationSettings:
    if choice.beam is not None:
        if choice.beam < 1:
            raise UserError(f"--beam {choice.beam}: must be at least 1")
        settings = replace(settings, beam=choice.beam)
    if choice.length_penalty is not None:
        settings = replace(settings, length_penalty=choice.length_penalty)
    return settings


def _sets(
    trained: TrainedModel, source: Path | None, reference: Path | None
) -> Sequence[EvaluationSet]:
    """The given files as a set, or the test sets (failing those, validation sets) of the run."""
    if source is None or reference is None:
        corpus = PreparedCorpus(Path(trained.config.corpus.folder))
        sets = corpus.evaluation_sets("test") or corpus.evaluation_sets("validation")
        if not sets:
            raise UserError("the corpus has no test or validation set: give --source, --reference")
        return sets
    for path in (source, reference):
        if not path.is_file():
            raise UserError(f"{path}: no such file")
    sides: list[list[str]] = [[], []]
    for chunk in read_chunks(TextFiles(source, reference), LINES_AT_ONCE):
        for side, lines, path in zip(
            sides, (chunk.source, chunk.target), (source, reference), strict=True
        ):
            side += [line or "" for line in decode(lines, path, chunk.first_line, skip=False)]
    if not sides[0]:
        raise UserError(f"{source} is empty: nothing to evaluate")
    text = trained.translator.text
    encoded = [
        pack_lines(
            model.encode([normalize(line, text.normalize_punctuation).strip() for line in side]),
            "uint32",
        )
        for model, side in zip((text.source, text.target), sides, strict=True)
    ]
    return [EvaluationSet(source.name, tuple(sides[0]), tuple(sides[1]), PairTokens(*encoded))]
