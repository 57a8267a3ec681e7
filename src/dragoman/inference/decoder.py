"""A model with all that was asked for on the command line, ready for lines."""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import torch

from dragoman.config import (
    LARGEST_BEAM,
    LARGEST_LENGTH_PENALTY,
    LARGEST_PATIENCE,
    Precision,
    TranslationSettings,
)
from dragoman.console import say
from dragoman.errors import UserError
from dragoman.inference.blend import blend_with_parent
from dragoman.inference.export_folder import MODEL, find_export
from dragoman.inference.load import TrainedModel, load_exported, load_trained
from dragoman.inference.sampling import Sampling
from dragoman.inference.tags import choose_tag, tags_of, with_tag
from dragoman.inference.translate import TextSides, Translation
from dragoman.model.precision import arithmetic, choose_precision, refuse_impossible
from dragoman.runs.checkpoint_index import WEIGHTS
from dragoman.runs.folder import find_run
from dragoman.wording import plural

LINES_AT_ONCE = 2_000
GPU_LINES_AT_ONCE = 50_000  # A second's work or two.


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
    """What to write of each line."""

    n_best: int
    with_scores: bool


# The best so many translations of each of some lines, best first.
TranslateLines = Callable[[Sequence[str], int], list[list[Translation]]]


@dataclass(frozen=True)
class Decoder:
    """A model with all that was asked for, and what it is."""

    name: str  # Of the run, or the folder of the export.
    checkpoints: Sequence[str]
    languages: tuple[str, str]
    text: TextSides
    translate: TranslateLines
    weights: tuple[Path, ...]
    arithmetic: str
    settings: TranslationSettings
    lines_at_once: int = LINES_AT_ONCE


def make_decoder(
    choice: TrainedChoice, output: LineOutput, engine: str, sampling: Sampling | None
) -> Decoder:
    """Load what was asked for, and say which weights these are."""
    if output.n_best < 1:
        raise UserError(f"--n-best {output.n_best}: must be at least 1")
    if engine == "ctranslate2":
        decoder = exported_decoder(choice, find_export(choice.run))
    else:
        decoder = own_decoder(choice, sampling)
    say(f"{decoder.name}: {', '.join(decoder.checkpoints)}, {decoder.arithmetic}")
    return decoder


def exported_decoder(choice: TrainedChoice, folder: Path) -> Decoder:
    """An export, run by CTranslate2."""
    exported = load_exported(folder)
    info = exported.info
    settings = decoding_settings(info.translation, choice)
    translator = with_tag(exported.translator, choose_tag(choice.tag, info.tags))

    def translate(lines: Sequence[str], n_best: int) -> list[list[Translation]]:
        return translator.translate(lines, settings, n_best)

    return Decoder(
        str(folder),
        info.checkpoints,
        (info.source_language, info.target_language),
        translator.text,
        translate,
        (folder / MODEL,),
        info.quantization,
        settings,
    )


def own_decoder(choice: TrainedChoice, sampling: Sampling | None = None) -> Decoder:
    """A run, by our own decoder."""
    run, (trained, precision) = find_run(choice.run), load_choice(choice)
    settings = decoding_settings(trained.config.translation, choice)
    corpus = trained.config.corpus
    translator = with_tag(trained.translator, choose_tag(choice.tag, tags_of(corpus)))

    def translate(lines: Sequence[str], n_best: int) -> list[list[Translation]]:
        with arithmetic(precision, translator.device):
            if sampling:
                return translator.sample(lines, settings, n_best, sampling)
            return translator.translate(lines, settings, n_best)

    return Decoder(
        run.name,
        trained.checkpoints,
        (corpus.source_language, corpus.target_language),
        translator.text,
        translate,
        tuple(run.checkpoints / name / WEIGHTS for name in trained.checkpoints),
        precision,
        settings,
        GPU_LINES_AT_ONCE if translator.device.type == "cuda" else LINES_AT_ONCE,
    )


def load_choice(choice: TrainedChoice) -> tuple[TrainedModel, Precision]:
    """Load the weights of a run."""
    run = find_run(choice.run)
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    trained = load_trained(run, choice.checkpoint, choice.average, device)
    if choice.blend is not None:
        trained = blend_with_parent(trained, run, choice.blend)
    precision = choose_precision(choice.precision, trained.config.training.precision, device)
    refuse_impossible(precision, device)
    return trained, precision


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


def render(translate: TranslateLines, output: LineOutput, lines: Sequence[str]) -> str:
    """Translate lines, and write what was asked for, a translation a line."""
    return "".join(
        (f"{one.score:.4f}\t" if output.with_scores else "") + f"{one.text}\n"
        for translations in translate(lines, output.n_best)
        for one in translations
    )


def decode_lines(lines: Sequence[bytes], first: int) -> list[str]:
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
        more = f" and {plural(len(odd) - 1, 'other line')} are" if len(odd) > 1 else " is"
        say(
            f"line {odd[0]:,}{more} not valid UTF-8: \ufffd stands for the bytes in question; "
            "convert the text to UTF-8"
        )
    return text
