"""A trained model from a run folder, or from an export."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import torch

from dragoman.config import Config
from dragoman.config_file import load_saved_config
from dragoman.console import say
from dragoman.corpus.manifest import SIDES, Manifest, parse_manifest
from dragoman.corpus.subwords import Subwords, load_subwords
from dragoman.errors import UserError, require_package
from dragoman.files import find_file_damage
from dragoman.inference.export_folder import (
    SUBWORDS,
    ExportInfo,
    read_info,
)
from dragoman.inference.translate import TextSides, Translator
from dragoman.model.transformer import Transformer, load_weights
from dragoman.records import CheckpointIndex
from dragoman.runs.checkpoint import find_damage, read_index
from dragoman.runs.checkpoint_index import WEIGHTS
from dragoman.runs.folder import RunFolder
from dragoman.runs.provenance import read_provenance
from dragoman.runs.tensors import read_tensors

if TYPE_CHECKING:
    from dragoman.inference.ctranslate2_model import CTranslate2Translator


@dataclass(frozen=True)
class TrainedModel:
    """A model ready to translate, and which checkpoints it came from."""

    translator: Translator
    config: Config
    checkpoints: list[str]


def load_trained(
    run: RunFolder, checkpoint: str, average: int, device: torch.device
) -> TrainedModel:
    """Load weights by "best", "latest" or a step; or the mean of the last `average`."""
    config = load_saved_config(run.config)
    source, target = _subwords(run)
    names = choose_checkpoints(run, checkpoint, average, config.checkpoints.keep_latest)
    model = Transformer(config.model, source.size, target.size, config.vocabulary.joint)
    load_mean(model, run.checkpoints, names)
    cleaning = config.cleaning
    text = TextSides(source, target, cleaning.normalize_punctuation, cleaning.max_tokens)
    translator = Translator(model.to(device).eval(), text, device)
    return TrainedModel(translator, config, names)


def run_manifest(run: RunFolder) -> Manifest:
    """What the corpus was that a run was trained on, from the copy in its provenance."""
    copy = read_provenance(run).corpus.manifest
    return parse_manifest(
        copy, str(run.provenance), "restore it from a backup", where="corpus.manifest"
    )


def _subwords(run: RunFolder) -> list[Subwords]:
    """The vocabularies of a run, which must be those of its corpus to the last bit."""
    manifest, loaded = run_manifest(run), []
    for side, path in zip(SIDES, run.subwords, strict=True):
        file = manifest.vocabulary_of(side)
        if damage := find_file_damage(path, file.bytes, file.sha256):
            raise UserError(f"{run.path} is damaged: {damage}; restore it from a backup")
        loaded.append(Subwords(load_subwords(path, run.name)))
    return loaded


def load_mean(model: Transformer, folder: Path, names: Sequence[str]) -> None:
    """Load the weights of a checkpoint, or the mean of several."""
    wanted = dict(model.named_parameters())
    weights = read_tensors(folder / names[0] / WEIGHTS, wanted)
    if len(names) > 1:
        total = {key: value.double() for key, value in weights.items()}
        for name in names[1:]:
            for key, value in read_tensors(folder / name / WEIGHTS, wanted).items():
                total[key] += value
        weights = {key: (value / len(names)).float() for key, value in total.items()}
    load_weights(model, weights)


@dataclass(frozen=True)
class ExportedModel:
    """A model that CTranslate2 runs, and what it says of itself."""

    translator: "CTranslate2Translator"
    info: ExportInfo


def load_exported(folder: Path) -> ExportedModel:
    """Load an export; nothing but its folder is needed."""
    require_package("ctranslate2", "export")
    from dragoman.inference.ctranslate2_model import load_translator

    info = read_info(folder)
    source, target = (Subwords((folder / name).read_bytes()) for name in SUBWORDS)
    text = TextSides(source, target, info.normalize_punctuation, info.max_tokens)
    return ExportedModel(load_translator(folder, text), info)


def choose_checkpoints(
    run: RunFolder, checkpoint: str, average: int, keep_latest: int, asked: str = "--average"
) -> list[str]:
    """Names of the checkpoints to load, checked for damage; `asked` is where the average was."""
    if average < 1:
        raise UserError(f"{asked} {average}: must be at least 1")
    index = read_index(run.checkpoints)
    entries = {entry.name: entry for entry in index.checkpoints}
    if not entries:
        raise UserError(f"{run.path} has no checkpoint yet")
    if average > 1:
        # Others are there for their scores alone, with those between them gone.
        latest = [name for name, entry in entries.items() if not entry.is_only_best]
        latest = latest[-keep_latest:]
        if len(latest) < average:
            raise UserError(
                f"{asked} {average}: {run.path} keeps only the latest {len(latest)} "
                "checkpoints; raise checkpoints.keep_latest before training"
            )
        names = latest[-average:]
    else:
        names = [_resolve(checkpoint, index, run)]
    for name in names:
        if damage := find_damage(run.checkpoints, entries[name], (WEIGHTS,)):
            intact = [
                str(one.step)
                for one in entries.values()
                if not find_damage(run.checkpoints, one, (WEIGHTS,))
            ]
            remedy = (
                f"choose --checkpoint {' or '.join(intact)}" if intact else "no other is intact"
            )
            raise UserError(f"{run.checkpoints / name} is damaged: {damage}; {remedy}")
    return names


def _resolve(checkpoint: str, index: CheckpointIndex, run: RunFolder) -> str:
    by_step = {str(entry.step): entry.name for entry in index.checkpoints}
    latest = index.checkpoints[-1].name
    match checkpoint:
        case "latest":
            return latest
        case "best":
            if best := index.best_bleu or index.best_loss:
                return best
            say(f"{run.path} has no evaluated checkpoint; using the latest")
            return latest
        case _ if (step := checkpoint.lstrip("0") or "0") in by_step:
            return by_step[step]
    kept = ", ".join(by_step)
    raise UserError(f"--checkpoint {checkpoint}: choose best, latest or one of the steps {kept}")
