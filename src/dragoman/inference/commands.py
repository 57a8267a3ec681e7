"""What `dragoman translate` and `dragoman evaluate` do with a run."""

import math
import os
import select
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

import torch

from dragoman.cluster.processes import Workers
from dragoman.config import (
    LARGEST_BEAM,
    LARGEST_LENGTH_PENALTY,
    LARGEST_PATIENCE,
    Precision,
    TranslationSettings,
)
from dragoman.console import Progress, say
from dragoman.corpus.store import EvaluationSet, PairTokens, PreparedCorpus, pack_lines
from dragoman.corpus.text import TextFiles, normalize, read_pairs, without_byte_order_mark
from dragoman.errors import UserError
from dragoman.files import describe_file, write_whole
from dragoman.inference.blend import blend_with_parent
from dragoman.inference.evaluate import (
    BOOTSTRAP_SAMPLES,
    MeanLoss,
    evaluation_rows,
    mean_loss,
    score_text,
)
from dragoman.inference.export_folder import MODEL, find_export
from dragoman.inference.load import ExportedModel, TrainedModel, load_exported, load_trained
from dragoman.inference.parts import PartsJob, PartsRequest, describe_input, translate_parts
from dragoman.inference.sampling import Sampling
from dragoman.inference.tags import choose_tag, tags_of, with_tag
from dragoman.inference.translate import Translation
from dragoman.model.precision import arithmetic, choose_precision, refuse_impossible
from dragoman.runs.checkpoint_index import WEIGHTS
from dragoman.runs.folder import find_run

LINES_AT_ONCE, BYTES_AT_ONCE = 2_000, 1 << 20
GPU_LINES_AT_ONCE = 50_000  # A second's work or two.
SECONDS_FOR_MORE = 0.05  # That lines which are there wait for others.


@dataclass(frozen=True)
class TrainedChoice:
    """Which weights of a run to use, and how to decode."""

    run: str
    checkpoint: str = "best"
    average: int = 1
    beam: int | None = None
    patience: int | None = None
    length_penalty: float | None = None
    batch_tokens: int | None = None
    precision: Precision | None = None
    tag: str | None = None
    blend: float | None = None


@dataclass(frozen=True)
class LineOutput:
    """What to print of each line."""

    n_best: int
    with_scores: bool


# The translations of each of some lines.
TranslateLines = Callable[[Sequence[str]], list[list[Translation]]]


@dataclass(frozen=True)
class _Decoder:
    """A model with all that was asked for, and what it is."""

    translate: TranslateLines
    weights: tuple[Path, ...]
    arithmetic: str
    settings: TranslationSettings
    tag: str
    lines_at_once: int = LINES_AT_ONCE


def translate_lines(
    choice: TrainedChoice,
    output: LineOutput,
    engine: str,
    sampling: Sampling | None = None,
    parts: PartsRequest | None = None,
) -> None:
    """Translate standard input to standard output, or a file to a folder; as many lines as in."""
    if output.n_best < 1:
        raise UserError(f"--n-best {output.n_best}: must be at least 1")
    text = describe_input(parts.input) if parts else None
    if engine == "ctranslate2":
        decoder = _exported_decoder(choice, output.n_best)
    else:
        decoder = _own_decoder(choice, output.n_best, sampling)
    if not parts or not text:
        _translate_input(decoder, output)
        return
    job = PartsJob(
        text,
        parts.lines,
        tuple(describe_file(path).sha256 for path in decoder.weights),
        decoder.arithmetic,
        decoder.settings,
        output.n_best,
        output.with_scores,
        sampling,
        decoder.tag,
        choice.blend,
    )
    render = partial(_render, decoder.translate, output)
    translate_parts(parts, job, lambda lines, first: render(_decode(lines, first)))


def _exported_decoder(choice: TrainedChoice, n_best: int) -> _Decoder:
    exported, folder = _load_exported(choice), find_export(choice.run)
    settings = decoding_settings(exported.info.translation, choice)
    tag = choose_tag(choice.tag, exported.info.tags)
    translator = with_tag(exported.translator, tag)

    def translate(lines: Sequence[str]) -> list[list[Translation]]:
        return translator.translate(lines, settings, n_best)

    return _Decoder(translate, (folder / MODEL,), exported.info.quantization, settings, tag)


def _own_decoder(choice: TrainedChoice, n_best: int, sampling: Sampling | None) -> _Decoder:
    trained, precision = _load(choice)
    settings = decoding_settings(trained.config.translation, choice)
    tag = choose_tag(choice.tag, tags_of(trained.config.corpus))
    translator, folder = with_tag(trained.translator, tag), find_run(choice.run).checkpoints

    def translate(lines: Sequence[str]) -> list[list[Translation]]:
        with arithmetic(precision, translator.device):
            if sampling:
                return translator.sample(lines, settings, n_best, sampling)
            return translator.translate(lines, settings, n_best)

    weights = tuple(folder / name / WEIGHTS for name in trained.checkpoints)
    lines_at_once = GPU_LINES_AT_ONCE if translator.device.type == "cuda" else LINES_AT_ONCE
    return _Decoder(translate, weights, precision, settings, tag, lines_at_once)


def _translate_input(decoder: _Decoder, output: LineOutput) -> None:
    sys.stdout.reconfigure(encoding="utf-8", newline="\n")  # type: ignore[union-attr]
    first = 1
    for lines in _lines_as_they_come(sys.stdin.fileno(), decoder.lines_at_once):
        text = _decode(without_byte_order_mark(lines) if first == 1 else lines, first)
        first += len(lines)
        print(_render(decoder.translate, output, text), end="", flush=True)


def _render(translate: TranslateLines, output: LineOutput, lines: Sequence[str]) -> str:
    """Translate lines, and write what was asked for, a translation a line."""
    return "".join(
        (f"{one.score:.4f}\t" if output.with_scores else "") + f"{one.text}\n"
        for translations in translate(lines)
        for one in translations
    )


def _lines_as_they_come(descriptor: int, lines_at_once: int) -> Iterator[list[bytes]]:
    """Lines in groups; who writes slowly gets an answer without writing more."""
    lines: list[bytes] = []
    rest, is_over = b"", False
    while not is_over:
        wait = SECONDS_FOR_MORE if lines else None
        has_more = bool(select.select([descriptor], [], [], wait)[0])
        if has_more:
            block = os.read(descriptor, BYTES_AT_ONCE)
            *whole, rest = (rest + block).split(b"\n")
            is_over = not block
            lines += [*whole, rest] if is_over and rest else whole
        least = lines_at_once if has_more and not is_over else 1
        while len(lines) >= least:
            yield lines[:lines_at_once]
            lines = lines[lines_at_once:]


def _decode(lines: Sequence[bytes], first: int) -> list[str]:
    """Whatever comes in, a line goes out: bytes that are no text become U+FFFD, and are named."""
    text, odd = [], []
    for number, line in enumerate(lines, first):
        try:
            decoded = line.decode()
        except UnicodeDecodeError:
            odd.append(number)
            decoded = line.decode("utf-8", "replace")
        text.append(decoded.rstrip("\r\n"))
    if odd:
        say(f"{len(odd):,} lines are not UTF-8, first line {odd[0]:,}: convert the text")
    return text


@dataclass(frozen=True)
class Evaluated:
    """A set as it was translated."""

    source: Sequence[str]
    translations: Sequence[str]


def evaluate_run(
    choice: TrainedChoice,
    source: Path | None,
    reference: Path | None,
    names: Sequence[str] = (),
    output: Path | None = None,
) -> list[Evaluated]:
    """Print the scores of every set, and keep its translations in the folder `output`, if any."""
    trained, precision = _load(choice)
    settings = decoding_settings(trained.config.translation, choice)
    known = tags_of(trained.config.corpus)
    if source and reference:
        sets = [_read_set(trained, source, reference, choose_tag(choice.tag, known))]
    else:
        corpus = PreparedCorpus(Path(trained.config.corpus.folder))
        sets = [
            # The corpus may have been prepared again since, with other subwords.
            replace(one, tokens=_encode(trained, one.tag, one.source, one.target))
            for one in _choose_sets(corpus, names)
        ]
        if choice.tag is not None:
            tag = choose_tag(choice.tag, known)
            sets = [
                replace(one, tag=tag, tokens=_encode(trained, tag, one.source, one.target))
                for one in sets
            ]
    if output:
        output.mkdir(parents=True, exist_ok=True)
    evaluated = []
    for one in sets:
        with (
            Progress(f"translating {one.name}", len(one.source), "sentences") as progress,
            arithmetic(precision, trained.translator.device),
        ):
            translator = with_tag(trained.translator, one.tag)
            best = translator.translate(one.source, settings, on_progress=progress.advance)
        translations = [ranked[0].text for ranked in best]
        evaluated.append(Evaluated(one.source, translations))
        loss = _loss(trained, one, precision)
        print(
            f"{one.name}: {len(one.source):,} pairs, {loss.target_tokens:,} target tokens, "
            f"beam {settings.beam}, {precision}"
        )
        print(f"  loss  {loss.loss:.4f}   nll {loss.nll:.4f}   perplexity {loss.perplexity:.2f}")
        _print_scores(translations, one.target, trained.config.evaluation.bleu_tokenize)
        if output:
            lines = "".join(f"{line}\n" for line in translations)
            write_whole(output / f"{one.name}.txt", lines.encode())
    return evaluated


def _loss(trained: TrainedModel, one: EvaluationSet, precision: Precision) -> MeanLoss:
    translator, config = trained.translator, trained.config
    width, begin = config.batches.row_tokens, translator.text.target.begin
    rows = evaluation_rows(one.name, one.tokens, width, begin)
    return mean_loss(
        translator.model,
        rows,
        config.training.label_smoothing,
        Workers(0, 1, translator.device),
        partial(arithmetic, precision, translator.device),
    )


def _print_scores(translations: Sequence[str], references: Sequence[str], tokenize: str) -> None:
    text = score_text(translations, references, tokenize, BOOTSTRAP_SAMPLES)
    assert text.bleu_interval
    assert text.chrf_interval
    for name, score, (low, high), signature in (
        ("BLEU", text.bleu, text.bleu_interval, text.signature),
        ("chrF", text.chrf, text.chrf_interval, text.chrf_signature),
    ):
        print(f"  {name}  {score:.2f}   95% {low:.2f} to {high:.2f}   {signature}")


def _load(choice: TrainedChoice) -> tuple[TrainedModel, Precision]:
    run = find_run(choice.run)
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    trained = load_trained(run, choice.checkpoint, choice.average, device)
    if choice.blend is not None:
        trained = blend_with_parent(trained, run, choice.blend)
    precision = choose_precision(choice.precision, trained.config.training.precision, device)
    refuse_impossible(precision, device)
    say(f"{run.name}: {', '.join(trained.checkpoints)}, {precision}")
    return trained, precision


def _load_exported(choice: TrainedChoice) -> ExportedModel:
    folder = find_export(choice.run)
    exported = load_exported(folder)
    info = exported.info
    say(f"{folder}: {', '.join(info.checkpoints)}, {info.quantization}")
    return exported


def decoding_settings(settings: TranslationSettings, choice: TrainedChoice) -> TranslationSettings:
    """How to decode: as the run says, but for what was asked for."""
    limits = (
        ("beam", 1, LARGEST_BEAM),
        ("patience", 1, LARGEST_PATIENCE),
        ("length_penalty", 0, LARGEST_LENGTH_PENALTY),
        ("batch_tokens", 1, math.inf),
    )
    for name, least, most in limits:
        value = getattr(choice, name)
        if value is None:
            continue
        if not least <= value <= most:
            at_most = f" and at most {most:g}" if math.isfinite(most) else ""
            raise UserError(
                f"--{name.replace('_', '-')} {value:g}: must be at least {least}{at_most}"
            )
        settings = replace(settings, **{name: value})
    return settings


def _choose_sets(corpus: PreparedCorpus, names: Sequence[str]) -> list[EvaluationSet]:
    """The sets of these names; without any, the test sets, or failing those, validation sets.

    In either case those of the run that this one started from, too.
    """
    kinds = {kind: corpus.evaluation_sets(kind) for kind in ("test", "validation")}
    known = {f"{kind}.{one.name}": one for kind, sets in kinds.items() for one in sets}
    old = corpus.old_sets()
    known |= {one.name: one for one in old}
    if not known:
        raise UserError("the corpus has no test or validation set: give --source, --reference")
    if not names:
        return [*(kinds["test"] or kinds["validation"]), *old]
    chosen = []
    for name in names:
        fitting = [full for full, one in known.items() if name in (full, one.name)]
        if len(fitting) != 1:
            raise UserError(f"--set {name}: choose from {', '.join(fitting or known)}")
        chosen.append(replace(known[fitting[0]], name=name))
    return chosen


def _read_set(trained: TrainedModel, source: Path, reference: Path, tag: str) -> EvaluationSet:
    """Two files as a set."""
    for path in (source, reference):
        if not path.is_file():
            raise UserError(f"{path}: no such file")
    sides: list[list[str]] = [[], []]
    for chunk in read_pairs(TextFiles(source, reference), LINES_AT_ONCE):
        for side, lines in zip(sides, chunk, strict=True):
            side += lines
    if not sides[0]:
        raise UserError(f"{source} is empty: nothing to evaluate")
    tokens = _encode(trained, tag, *sides)
    return EvaluationSet(source.name, tuple(sides[0]), tuple(sides[1]), tokens, tag)


def _encode(trained: TrainedModel, tag: str, *sides: Sequence[str]) -> PairTokens:
    """Source and target in the subwords of the run."""
    text = trained.translator.text
    encoded = [
        pack_lines(
            model.encode(
                [normalize(line, text.normalize_punctuation).strip() for line in side], before
            ),
            "uint32",
        )
        for model, side, before in zip((text.source, text.target), sides, (tag, ""), strict=True)
    ]
    return PairTokens(*encoded)
