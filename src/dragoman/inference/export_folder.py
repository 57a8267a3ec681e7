"""The folder of an exported model: what is in it, and how it gets there whole."""

import json
import shutil
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from dragoman.config import QUANTIZATIONS, TranslationSettings
from dragoman.config_file import ConfigError, read_saved_section
from dragoman.errors import UserError
from dragoman.files import (
    digest_of,
    exclusive,
    find_file_damage,
    flush_folder,
    flush_to_disk,
    read_digests,
)
from dragoman.runs.folder import find_run
from dragoman.validation import Fields, load_json

FORMAT = 1
INFO, CARD, MODEL, LOCK = "dragoman.json", "README.md", "model.bin", ".lock"
SUBWORDS = ("source.model", "target.model")


@dataclass(frozen=True)
class ExportInfo:
    """What an exported model is, and all that `translate` needs beside its weights."""

    run: str
    checkpoints: tuple[str, ...]
    quantization: str
    source_language: str
    target_language: str
    normalize_punctuation: bool
    max_tokens: int
    translation: TranslationSettings
    versions: Mapping[str, str]


def require_ctranslate2() -> None:
    """Refuse to go on without the optional dependency."""
    if find_spec("ctranslate2") is None:
        raise UserError("ctranslate2 is not installed: in the checkout, pip install -e '.[export]'")


def find_export(name: str) -> Path:
    """Find an export by its own folder, or by the run it lies in."""
    if (Path(name) / INFO).is_file():
        return Path(name)
    run = find_run(name)
    if not (run.export / INFO).is_file():
        raise UserError(
            f"{run.path} has no export; make one: dragoman export {run.path} --to ctranslate2"
        )
    return run.export


def read_info(folder: Path) -> ExportInfo:
    """Read what an export says of itself, and check that its files are as they were written."""
    document = _read_document(folder)
    digests = read_digests(document.fields("files"))
    for name in (MODEL, *SUBWORDS):
        if name not in digests:
            raise document.refusal(f"files.{name} is missing")
    for name, file in digests.items():
        # The card is for people, who are asked to write the licence there.
        damage = find_file_damage(folder / name, file.bytes, file.sha256) if name != CARD else None
        if damage:
            raise UserError(f"{folder} is damaged: {damage}; export the run again")
    checkpoints, versions = document.list("checkpoints"), document.fields("versions")
    try:
        translation = read_saved_section(
            TranslationSettings, document.fields("translation").raw(), "translation"
        )
    except ConfigError as error:
        raise document.refusal(error.problems[0]) from None
    return ExportInfo(
        document.line("run"),
        tuple(checkpoints.line(place) for place in checkpoints),
        document.one_of("quantization", QUANTIZATIONS),
        document.line("source_language"),
        document.line("target_language"),
        document.flag("normalize_punctuation"),
        document.count("max_tokens", minimum=2),
        translation,
        {name: versions.line(name) for name in versions},
    )


def write_info(folder: Path, info: ExportInfo, parity: Mapping[str, Any] | None) -> None:
    """Write down what an export is and how it was checked, with checksums of all its files."""
    files = {
        path.name: asdict(digest_of(path))
        for path in sorted(folder.iterdir())
        if path.name not in (INFO, LOCK)
    }
    written = {"format": FORMAT, **asdict(info), "parity": parity, "files": files}
    # sacreBLEU's intervals are numpy's numbers.
    text = json.dumps(written, indent=2, ensure_ascii=False, default=float)
    (folder / INFO).write_text(text + "\n", "utf-8")


@contextmanager
def new_export(output: Path) -> Iterator[Path]:
    """Yield a folder to write to; it takes its place, whole, if nothing goes wrong."""
    refuse_foreign(output)
    aside = output.with_name(f".{output.name}.new")
    aside.mkdir(parents=True, exist_ok=True)
    with exclusive(aside, "exporting"), _naming(output, aside):
        try:
            _clear(aside)
            yield aside
            _put_in_place(aside, output)
        finally:
            shutil.rmtree(aside, ignore_errors=True)


@contextmanager
def _naming(output: Path, aside: Path) -> Iterator[None]:
    """Let a fault of the disk name the export, not the place where it is made."""
    try:
        yield
    except OSError as error:
        if error.filename is None or aside in (Path(error.filename), *Path(error.filename).parents):
            error.filename = str(output)
        raise


def refuse_foreign(output: Path) -> None:
    """An earlier export may be replaced, a folder with anything else in it may not."""
    if output.exists() and not output.is_dir():
        raise UserError(f"{output} is a file: choose another --output")
    if not output.exists() or not any(output.iterdir()):
        return
    if not (output / INFO).is_file():
        raise UserError(f"{output} is not an export of dragoman: choose another --output")
    written = read_digests(_read_document(output).fields("files"))
    own = {INFO, *written}
    if foreign := sorted(path.name for path in output.iterdir() if path.name not in own):
        raise UserError(
            f"{output} holds {foreign[0]}, which dragoman did not write: "
            "move it, or choose another --output"
        )
    card = output / CARD
    if card.is_file() and digest_of(card) != written.get(CARD):
        raise UserError(
            f"{card} was changed since it was written: move it, or choose another --output"
        )


def _put_in_place(aside: Path, output: Path) -> None:
    for path in aside.iterdir():
        with open(path, "rb") as file:
            flush_to_disk(file)
    (aside / LOCK).unlink()
    flush_folder(aside)
    earlier = output.with_name(f".{output.name}.old")
    shutil.rmtree(earlier, ignore_errors=True)
    if output.exists():
        output.rename(earlier)
    aside.rename(output)
    flush_folder(output.parent)
    shutil.rmtree(earlier, ignore_errors=True)


def _clear(folder: Path) -> None:
    """Remove what an export that was killed has left."""
    for path in folder.iterdir():
        if path.name != LOCK:
            path.unlink()


def _read_document(folder: Path) -> Fields:
    document = load_json(folder / INFO, f"delete {folder} and export the run again")
    document.require_format(FORMAT)
    return document
