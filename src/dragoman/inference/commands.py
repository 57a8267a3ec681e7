"""What `dragoman translate` and `dragoman evaluate` do with a run."""

import os
import select
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

from dragoman.cluster.processes import Workers
from dragoman.config import Precision
from dragoman.console import Progress, say
from dragoman.corpus.store import EvaluationSet, PairTokens, PreparedCorpus, encode_pairs
from dragoman.corpus.text import TextFiles, read_pairs, without_byte_order_mark
from dragoman.errors import UserError
from dragoman.files import naming, write_whole
from dragoman.inference.decoder import (
    LINES_AT_ONCE,
    LineOutput,
    TrainedChoice,
    decode_lines,
    decoding_settings,
    load_choice,
    make_decoder,
    render,
)
from dragoman.inference.evaluate import (
    BOOTSTRAP_SAMPLES,
    MeanLoss,
    evaluation_rows,
    mean_loss,
    score_text,
)
from dragoman.inference.load import TrainedModel
from dragoman.inference.sampling import Sampling
from dragoman.inference.tags import choose_tag, tags_of, with_tag
from dragoman.model.precision import arithmetic
from dragoman.runs.folder import find_run

BYTES_AT_ONCE = 1 << 20
SECONDS_FOR_MORE = 0.05  # That lines which are there wait for others.


def translate_lines(
    choice: TrainedChoice, output: LineOutput, engine: str, sampling: Sampling | None = None
) -> None:
    """Translate standard input to standard output; as many lines as in."""
    decoder = make_decoder(choice, output, engine, sampling)
    sys.stdout.reconfigure(encoding="utf-8", newline="\n")  # type: ignore[union-attr]
    first = 1
    for lines in _lines_as_they_come(sys.stdin.fileno(), decoder.lines_at_once):
        if first == 1:
            lines = without_byte_order_mark(lines, "standard input")
        text = decode_lines(lines, first)
        first += len(lines)
        with naming(Path("standard output")):
            print(render(decoder.translate, output, text), end="", flush=True)


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
    trained, precision = load_choice(choice)
    say(f"{find_run(choice.run).name}: {', '.join(trained.checkpoints)}, {precision}")
    settings = decoding_settings(trained.config.translation, choice)
    known = tags_of(trained.config.corpus)
    if source and reference:
        sets = [_read_set(trained, source, reference, choose_tag(choice.tag, known))]
    else:
        chosen = _choose_sets(PreparedCorpus(Path(trained.config.corpus.folder)), names)
        if choice.tag is not None:
            tag = choose_tag(choice.tag, known)
            chosen = [replace(one, tag=tag) for one in chosen]
        sets = [
            # The corpus may have been prepared again since, with other subwords.
            replace(one, tokens=_encode(trained, one.tag, one.source, one.target))
            for one in chosen
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
        perplexity = f"{loss.perplexity:{'.2f' if loss.perplexity < 1e6 else '.1e'}}"
        print(f"  loss  {loss.loss:.4f}   nll {loss.nll:.4f}   perplexity {perplexity}")
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


def _encode(
    trained: TrainedModel, tag: str, source: Sequence[str], target: Sequence[str]
) -> PairTokens:
    """Source and target in the subwords of the run."""
    text = trained.translator.text
    models, punctuation = (text.source, text.target), text.normalize_punctuation
    return encode_pairs(models, (source, target), punctuation, tag, "uint32")
