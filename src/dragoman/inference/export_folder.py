"""The folder of an exported model: what is in it, and how it gets there whole."""

import json
import shutil
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from dragoman.config import TranslationSettings
from dragoman.errors import UserError
from dragoman.files import exclusive, flush_folder, flush_to_disk, naming, sha256
from dragoman.runs.folder import find_run

FORMAT = 1
INFO, CARD, LOCK = "dragoman.json", "README.md", ".lock"
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
    parity: Mapping[str, Any] | None  # None: exported without a check.


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
    """Read what an export says of itself, and check that its files are whole."""
    written = _read_json(folder)
    for name, file in written["files"].items():
        path = folder / name
        if not path.is_file() or path.stat().st_size != file["bytes"]:
            raise UserError(f"{path} is missing or cut short; export the run again")
    values = {name: written[name] for name in ExportInfo.__dataclass_fields__}
    values["checkpoints"] = tuple(values["checkpoints"])
    values["translation"] = TranslationSettings(**values["translation"])
    return ExportInfo(**values)


def write_info(folder: Path, info: ExportInfo) -> None:
    """Write down what an export is, with the checksums of all its files."""
    files = {
        path.name: {"bytes": path.stat().st_size, "sha256": sha256(path)}
        for path in sorted(folder.iterdir())
        if path.name not in (INFO, LOCK)
    }
    written = {"format": FORMAT, **asdict(info), "files": files}
    # sacreBLEU's intervals are numpy's numbers.
    text = json.dumps(written, indent=2, ensure_ascii=False, default=float)
    (folder / INFO).write_text(text + "\n", "utf-8")


@contextmanager
def new_export(output: Path) -> Iterator[Path]:
    """Yield a folder to write to; it takes its place, whole, if nothing goes wrong."""
    refuse_foreign(output)
    aside = output.with_name(f".{output.name}.new")
    aside.mkdir(parents=True, exist_ok=True)
    with exclusive(aside, "exporting"), naming(output):
        try:
            _clear(aside)
            yield aside
            _put_in_place(aside, output)
        finally:
            shutil.rmtree(aside, ignore_errors=True)


def refuse_foreign(output: Path) -> None:
    """An earlier export may be replaced, a folder with anything else in it may not."""
    if output.exists() and not output.is_dir():
        raise UserError(f"{output} is a file: choose another --output")
    if not output.exists() or not any(output.iterdir()):
        return
    if not (output / INFO).is_file():
        raise UserError(f"{output} is not an export of dragoman: choose another --output")
    written = _read_json(output)["files"]
    own = {INFO, *written}
    if foreign := sorted(path.name for path in output.iterdir() if path.name not in own):
        raise UserError(
            f"{output} holds {foreign[0]}, which dragoman did not write: "
            "move it, or choose another --output"
        )
    card = output / CARD
    if card.is_file() and sha256(card) != written[CARD]["sha256"]:
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


def _read_json(folder: Path) -> dict[str, Any]:
    path = folder / INFO
    try:
        written: dict[str, Any] = json.loads(path.read_text("utf-8"))
    except ValueError:
        raise UserError(f"{path} is damaged; delete {folder} and export the run again") from None
    if written.get("format") != FORMAT:
        raise UserError(
            f"{path} has format {written.get('format')}, this Dragoman reads {FORMAT}; "
            "export the run again"
        )
    return written
