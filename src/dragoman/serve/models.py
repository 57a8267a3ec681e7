"""The models of a server: runs by our own decoder, exports by CTranslate2's."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import torch

from dragoman.config import TranslationSettings
from dragoman.console import say
from dragoman.errors import UserError
from dragoman.inference.decoder import TrainedChoice, decoding_settings
from dragoman.inference.export_folder import INFO
from dragoman.inference.load import load_exported, load_trained
from dragoman.inference.tags import choose_tag, tags_of, with_tag
from dragoman.inference.translate import TextSides, Translation
from dragoman.model.precision import arithmetic, choose_precision, refuse_impossible
from dragoman.runs.folder import find_run
from dragoman.serve.batches import TranslateLines
from dragoman.serve.sentences import Splitter


@dataclass(frozen=True)
class Direction:
    """From one language to another, by their codes."""

    source: str
    target: str

    def __str__(self) -> str:
        return f"{self.source}-{self.target}"


@dataclass(frozen=True)
class ServedModel:
    """A model that is ready to translate."""

    direction: Direction
    translate: TranslateLines
    splitter: Splitter


def load_models(
    names: Sequence[str], choice: TrainedChoice, source: str | None, target: str | None
) -> dict[Direction, ServedModel]:
    """Load every model; `source` and `target` are the languages of the only one, if given."""
    if (source or target) and len(names) > 1:
        raise UserError("--source and --target apply to a single model: serve only one")
    models: dict[Direction, ServedModel] = {}
    for name in names:
        model = _load(replace(choice, run=name))
        direction = Direction(source or model.direction.source, target or model.direction.target)
        if direction in models:
            raise UserError(
                f"{name}: there is already a model from {direction.source} to "
                f"{direction.target}; serve one model per direction"
            )
        model.translate(["1"], 1)  # The first translation takes longest.
        splitter = replace(model.splitter, language=direction.source)
        models[direction] = replace(model, direction=direction, splitter=splitter)
    return models


def _load(choice: TrainedChoice) -> ServedModel:
    return _load_export(choice) if (Path(choice.run) / INFO).is_file() else _load_run(choice)


def _load_run(choice: TrainedChoice) -> ServedModel:
    run = find_run(choice.run)
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    trained = load_trained(run, choice.checkpoint, choice.average, device)
    precision = choose_precision(choice.precision, trained.config.training.precision, device)
    refuse_impossible(precision, device)
    settings = decoding_settings(trained.config.translation, choice)
    corpus = trained.config.corpus
    translator = with_tag(trained.translator, choose_tag(choice.tag, tags_of(corpus)))
    direction = Direction(corpus.source_language, corpus.target_language)
    say(f"{run.name}: {direction}, {', '.join(trained.checkpoints)}, {precision}")

    def translate(lines: Sequence[str], n_best: int) -> list[list[Translation]]:
        with arithmetic(precision, device):
            return translator.translate(lines, settings, n_best)

    return ServedModel(direction, translate, _splitter(direction, translator.text))


def _load_export(choice: TrainedChoice) -> ServedModel:
    folder = Path(choice.run)
    for option, is_given in (
        ("--checkpoint", choice.checkpoint != TrainedChoice.checkpoint),
        ("--precision", choice.precision is not None),
    ):
        if is_given:
            raise UserError(f"{option}: {folder} is an export, whose weights are fixed")
    exported = load_exported(folder)
    info = exported.info
    translator = with_tag(exported.translator, choose_tag(choice.tag, info.tags))
    settings: TranslationSettings = decoding_settings(info.translation, choice)
    direction = Direction(info.source_language, info.target_language)
    say(f"{folder}: {direction}, {', '.join(info.checkpoints)}, ctranslate2 {info.quantization}")

    def translate(lines: Sequence[str], n_best: int) -> list[list[Translation]]:
        return translator.translate(lines, settings, n_best)

    return ServedModel(direction, translate, _splitter(direction, translator.text))


def _splitter(direction: Direction, text: TextSides) -> Splitter:
    def fits(sentence: str) -> bool:
        # A subword has a byte or more, but for the end mark and the blank before the first word.
        is_short = len(sentence.encode()) + 2 <= text.max_tokens
        return is_short or len(text.source.encode([sentence])[0]) <= text.max_tokens

    return Splitter(direction.source, fits)


def targets_by_source(models: Mapping[Direction, ServedModel]) -> dict[str, list[str]]:
    """Every language, with those that it can be translated to."""
    languages: dict[str, list[str]] = {}
    for direction in models:
        languages.setdefault(direction.source, []).append(direction.target)
        languages.setdefault(direction.target, [])
    return languages
