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
from dragoman.inference.load import ExportedModel, TrainedModel, load_exported, load_trained
from dragoman.inference.sampling import Sampling
from dragoman.inference.tags import choose_tag, tags_of, with_tag
from dragoman.inference.translate import Translation
from dragoman.model.precision import arithmetic, choose_precision, refuse_impossible
from dragoman.runs.checkpoint_index import WEIGHTS
from dragoman.runs.folder import find_run

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


# The translations of each of some lines.
TranslateLines = Callable[[Sequence[str]], list[list[Translation]]]


@dataclass(frozen=True)
class Decoder:
    """A model with all that was asked for, and what it is."""

    translate: TranslateLines
    weights: tuple[Path, ...]
    arithmetic: str
    settings: TranslationSettings
    tag: str
    lines_at_once: int = LINES_AT_ONCE


def make_decoder(
    choice: TrainedChoice, output: LineOutput, engine: str, sampling: Sampling | None
) -> Decoder:
    """Load what was asked for."""
    if output.n_best < 1:
        raise UserError(f"--n-best {output.n_best}: must be at least 1")
    if engine == "ctranslate2":
        return _exported_decoder(choice, output.n_best)
    return _own_decoder(choice, output.n_best, sampling)


def _exported_decoder(choice: TrainedChoice, n_best: int) -> Decoder:
    exported, folder = _load_exported(choice), find_export(choice.run)
    settings = decoding_settings(exported.info.translation, choice)
    tag = choose_tag(choice.tag, exported.info.tags)
    translator = with_tag(exported.translator, tag)

    def translate(lines: Sequence[str]) -> list[list[Translation]]:
        return translator.translate(lines, settings, n_best)

    return Decoder(translate, (folder / MODEL,), exported.info.quantization, settings, tag)


def _own_decoder(choice: TrainedChoice, n_best: int, sampling: Sampling | None) -> Decoder:
    trained, precision = load_choice(choice)
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
    return Decoder(translate, weights, precision, settings, tag, lines_at_once)


def load_choice(choice: TrainedChoice) -> tuple[TrainedModel, Precision]:
    """Load the weights of a run, and say which."""
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


def render(translate: TranslateLines, output: LineOutput, lines: Sequence[str]) -> str:
    """Translate lines, and write what was asked for, a translation a line."""
    return "".join(
        (f"{one.score:.4f}\t" if output.with_scores else "") + f"{one.text}\n"
        for translations in translate(lines)
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
        say(f"{len(odd):,} lines are not UTF-8, first line {odd[0]:,}: convert the text")
    return text
