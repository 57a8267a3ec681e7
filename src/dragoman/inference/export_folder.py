"""The folder of an exported model: its contents, and how it appears complete."""

import json
import shutil
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, TypeVar

from dragoman.config import Library, Quantization, TranslationSettings
from dragoman.documents import FILE_NAME, LINE, item, read_document
from dragoman.errors import UserError
from dragoman.files import (
    LOCK,
    describe_file,
    exclusive,
    find_file_damage,
    flush_folder,
    flush_to_disk,
)
from dragoman.records import SavedFile, Versioned
from dragoman.runs.folder import EXPORT_INFO, find_run

FORMAT = 1
INFO, CARD, MODEL = EXPORT_INFO, "README.md", "model.bin"
SUBWORDS = ("source.model", "target.model")
TENSORS = "model.safetensors"
WEIGHTS_OF: Mapping[Library, str] = {
    "ctranslate2": MODEL,
    "argos": MODEL,
    "transformers": TENSORS,
}

Record = TypeVar("Record")


@dataclass(frozen=True)
class ExportInfo:
    """What an exported model is, and all that `translate` needs beside its weights."""

    run: str = item("name of the run", pattern=LINE)
    checkpoints: tuple[str, ...] = item("the weights are their average", pattern=LINE)
    quantization: Quantization = item("of the weights")
    source_language: str = item("its label", pattern=LINE)
    target_language: str = item("its label", pattern=LINE)
    normalize_punctuation: bool = item("whether input needs plain punctuation")
    max_tokens: int = item("of the longest line in training", minimum=2)
    translation: TranslationSettings = item("how it is decoded")
    versions: Mapping[str, str] = item("of what made it", pattern=LINE)
    tags: tuple[str, ...] = item("that its training text began with", default=(), pattern=LINE)
    library: Library = item("that reads it", default="ctranslate2")


@dataclass(frozen=True)
class ExportFiles:
    """Every file of an export but the one that says so."""

    files: Mapping[str, SavedFile] = item("by name", keys=FILE_NAME)


def find_export(name: str) -> Path:
    """Find an export by its own folder, or by the run it lies in."""
    if (Path(name) / INFO).is_file():
        return Path(name)
    run = find_run(name)
    if not (run.export / INFO).is_file():
        raise UserError(
            f"{run.path} has no export; create one with: dragoman export {run.path} --to "
            "ctranslate2"
        )
    return run.export


def read_info(folder: Path, library: Library = "ctranslate2") -> ExportInfo:
    """Read what an export says of itself, and check that its files are as they were written."""
    info, files = _read(folder, ExportInfo), _read(folder, ExportFiles).files
    if info.library != library:
        raise UserError(
            f"{folder} is an export for {info.library}, which cannot be used here: name the run, "
            f"or its {library} export"
        )
    for name in (WEIGHTS_OF[library], *SUBWORDS):
        if name not in files:
            raise UserError(
                f"{folder / INFO} is damaged: files.{name} is missing; {_remedy(folder)}"
            )
    for name, file in files.items():
        # The card is for people, who are asked to write the licence there.
        damage = find_file_damage(folder / name, file.bytes, file.sha256) if name != CARD else None
        if damage:
            raise UserError(f"{folder} is damaged: {damage}; {_remedy(folder)}")
    return info


def write_info(folder: Path, info: ExportInfo, parity: Mapping[str, Any] | None) -> None:
    """Write down what an export is and how it was checked, with checksums of all its files."""
    files = {
        path.name: asdict(describe_file(path))
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
    with _naming(output, aside):
        aside.mkdir(parents=True, exist_ok=True)
        with exclusive(aside, "exporting"):
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
        raise UserError(f"{output} contains other files than an export: choose another --output")
    written = _read(output, ExportFiles).files
    own = {INFO, *written}
    if foreign := sorted(path.name for path in output.iterdir() if path.name not in own):
        raise UserError(
            f"{output} contains {foreign[0]}, which Dragoman did not write: move it, or choose "
            "another --output"
        )
    card = output / CARD
    if card.is_file() and describe_file(card) != written.get(CARD):
        raise UserError(f"{card} was edited after the export: move it, or choose another --output")


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


def _read(folder: Path, kind: type[Record]) -> Record:
    path, remedy = folder / INFO, _remedy(folder)
    written = read_document(path, Versioned, remedy).format
    if written != FORMAT:
        raise UserError(f"{path} has format {written}, this Dragoman reads {FORMAT}; {remedy}")
    return read_document(path, kind, remedy)


def _remedy(folder: Path) -> str:
    return f"delete {folder} and export the run again"
