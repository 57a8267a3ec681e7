"""The models of a server: runs by our own decoder, exports by CTranslate2's."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from dragoman.console import say
from dragoman.errors import UserError
from dragoman.inference.decoder import (
    TrainedChoice,
    TranslateLines,
    exported_decoder,
    own_decoder,
)
from dragoman.inference.export_folder import INFO
from dragoman.inference.translate import TextSides
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
        if direction.source == direction.target and (source or target):
            raise UserError(
                f"{name}: --source and --target would make it a model from {direction.source} to "
                f"{direction.target}; it was trained from {model.direction.source} to "
                f"{model.direction.target}"
            )
        if direction in models:
            raise UserError(
                f"{name}: there is already a model from {direction.source} to "
                f"{direction.target}; serve one model per direction"
            )
        if choice.tag and len(names) == 1 and not (source and target):
            # Which languages a tag stands for is known only to who chose it.
            say(
                f"--tag {choice.tag}: announced as {direction.source} to {direction.target}; if "
                "the tag stands for others, name them with --source and --target"
            )
        model.translate(["1"], 1)  # The first translation takes longest.
        splitter = replace(model.splitter, language=direction.source)
        models[direction] = replace(model, direction=direction, splitter=splitter)
    return models


def _load(choice: TrainedChoice) -> ServedModel:
    folder = Path(choice.run)
    is_export = (folder / INFO).is_file()
    for option, is_given in (
        ("--checkpoint", choice.checkpoint != TrainedChoice.checkpoint),
        ("--precision", choice.precision is not None),
    ):
        if is_export and is_given:
            raise UserError(f"{option}: {folder} is an export, whose weights are fixed")
    decoder = exported_decoder(choice, folder) if is_export else own_decoder(choice)
    direction = Direction(*decoder.languages)
    engine = "ctranslate2 " if is_export else ""
    weights = ", ".join(decoder.checkpoints)
    say(f"{decoder.name}: {direction}, {weights}, {engine}{decoder.arithmetic}")
    return ServedModel(direction, decoder.translate, _splitter(direction, decoder.text))


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
