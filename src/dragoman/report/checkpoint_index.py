"""checkpoints/ -> which checkpoints are kept, and how large each file is."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from dragoman.report.json_lines import number_or_none, read_json


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
    """All checkpoints that are kept, by step."""

    latest: str
    best_loss: str
    best_bleu: str
    checkpoints: tuple[SavedCheckpoint, ...]

    def find(self, name: str) -> SavedCheckpoint | None:
        """The checkpoint of that name."""
        return next((item for item in self.checkpoints if item.name == name), None)


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
    checkpoints = [
        _from_entry(entry, folder, missing) for entry in listed if isinstance(entry, dict)
    ]
    return CheckpointIndex(
        latest=str(index.get("latest") or ""),
        best_loss=str(index.get("best_loss") or ""),
        best_bleu=str(index.get("best_bleu") or ""),
        checkpoints=tuple(sorted(checkpoints, key=lambda item: item.step)),
    )


def _from_entry(entry: Mapping[str, Any], folder: Path, missing: list[str]) -> SavedCheckpoint:
    name = str(entry.get("name", ""))
    described = entry.get("files")
    files = {
        str(file): int(number_or_none(value.get("bytes")) or 0)
        for file, value in (described.items() if isinstance(described, dict) else ())
        if isinstance(value, dict)
    }
    for file, size in files.items():
        path = folder / name / file
        if not path.is_file():
            missing.append(f"checkpoints/{name}/{file} is in the index but not on this disk")
        elif path.stat().st_size != size:
            missing.append(
                f"checkpoints/{name}/{file} has {path.stat().st_size:,} bytes, "
                f"the index says {size:,}: it is damaged"
            )
    return SavedCheckpoint(
        name=name,
        step=int(number_or_none(entry.get("step")) or 0),
        files=files,
        loss=number_or_none(entry.get("loss")),
        bleu=number_or_none(entry.get("bleu")),
    )


def _from_folders(folder: Path) -> CheckpointIndex:
    checkpoints = []
    for path in sorted(folder.glob("step-*")):
        digits = path.name.removeprefix("step-")
        if path.is_dir() and digits.isdecimal():
            sizes = {file.name: file.stat().st_size for file in sorted(path.iterdir())}
            checkpoints.append(SavedCheckpoint(path.name, int(digits), sizes, None, None))
    latest = checkpoints[-1].name if checkpoints else ""
    return CheckpointIndex(latest, "", "", tuple(checkpoints))
