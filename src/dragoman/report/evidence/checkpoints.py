"""checkpoints/ -> which checkpoints are kept, and how large each file is."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from dragoman.report.evidence.json_lines import number_or_none, read_json, table_of, whole_number
from dragoman.report.wording import plural


@dataclass(frozen=True)
class SavedCheckpoint:
    """A checkpoint on disk."""

    name: str
    step: int
    files: Mapping[str, int]  # Bytes of each.
    loss: float | None
    bleu: float | None

    @property
    def bytes(self) -> int:
        """Size of all files together."""
        return sum(self.files.values())


@dataclass(frozen=True)
class CheckpointIndex:
    """All checkpoints that are kept, by step, and which of them are the best."""

    kept: tuple[SavedCheckpoint, ...]
    latest: SavedCheckpoint | None
    best_loss: SavedCheckpoint | None = None
    best_bleu: SavedCheckpoint | None = None


def read_checkpoints(folder: Path, missing: list[str]) -> CheckpointIndex:
    """Read the index; without one, look at the folders themselves."""
    if not (folder / "checkpoints.json").is_file():
        if folder.is_dir() and any(folder.glob("step-*")):
            missing.append("checkpoints/checkpoints.json is missing: the folders were counted")
        return _from_folders(folder)
    index = read_json(folder / "checkpoints.json", missing)
    listed = index.get("checkpoints")
    if not isinstance(listed, list):
        return _from_folders(folder)
    entries = [_from_entry(table_of(entry)) for entry in listed]
    missing += _differences(folder, entries)
    kept = tuple(sorted(entries, key=lambda item: item.step))
    named = {item.name: item for item in kept}
    return CheckpointIndex(
        kept=kept,
        latest=named.get(str(index.get("latest"))) or (kept[-1] if kept else None),
        best_loss=named.get(str(index.get("best_loss"))),
        best_bleu=named.get(str(index.get("best_bleu"))),
    )


def _differences(folder: Path, entries: Sequence[SavedCheckpoint]) -> list[str]:
    """Files that are not as the index says; those that are absent in one line."""
    absent, notices = [], []
    for entry in entries:
        for file, size in entry.files.items():
            path = folder / entry.name / file
            if not path.is_file():
                absent.append(f"checkpoints/{entry.name}/{file}")
            elif path.stat().st_size != size:
                notices.append(
                    f"checkpoints/{entry.name}/{file} has {path.stat().st_size:,} bytes, "
                    f"the index says {size:,}: it is damaged"
                )
    if absent:
        more = f" and {plural(len(absent) - 1, 'more file')} are" if len(absent) > 1 else " is"
        notices.append(f"{absent[0]}{more} in the index but not on this disk")
    return notices


def _from_entry(entry: Mapping[str, Any]) -> SavedCheckpoint:
    described = table_of(entry.get("files"))
    files = {file: whole_number(table_of(value).get("bytes")) for file, value in described.items()}
    return SavedCheckpoint(
        name=str(entry.get("name", "")),
        step=whole_number(entry.get("step")),
        files=files,
        loss=number_or_none(entry.get("loss")),
        bleu=number_or_none(entry.get("bleu")),
    )


def _from_folders(folder: Path) -> CheckpointIndex:
    kept = []
    for path in sorted(folder.glob("step-*")):
        digits = path.name.removeprefix("step-")
        if path.is_dir() and digits.isdecimal():
            sizes = {file.name: file.stat().st_size for file in sorted(path.iterdir())}
            kept.append(SavedCheckpoint(path.name, int(digits), sizes, None, None))
    return CheckpointIndex(tuple(kept), kept[-1] if kept else None)
