"""Checkpoints, whole or absent: safetensors, checksums, and an index."""

import json
import math
import shutil
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from safetensors.torch import save_file
from torch import Tensor

from dragoman.config import CheckpointSettings
from dragoman.console import say
from dragoman.files import find_file_damage, flush_folder, flush_to_disk, sha256, write_whole

INDEX = "checkpoints.json"
BEFORE = ".before"  # Ends the name of a checkpoint that another of its step replaces.
WEIGHTS, OPTIMIZER, STATE = "weights.safetensors", "optimizer.safetensors", "state.json"

Tensors = Mapping[str, Tensor]


@dataclass(frozen=True)
class Scores:
    """The evaluation at a checkpoint's step, on the first validation set."""

    loss: float | None = None
    nll: float | None = None
    bleu: float | None = None


@dataclass(frozen=True)
class Checkpoint:
    """A checkpoint in memory."""

    step: int
    weights: Tensors
    optimizer: Tensors
    state: Mapping[str, Any]
    scores: Scores


def checkpoint_name(step: int) -> str:
    """Folder name of a step's checkpoint."""
    return f"step-{step:08d}"


def write_checkpoint(folder: Path, checkpoint: Checkpoint) -> int:
    """Write one checkpoint aside, put it in place, and enter it in the index; return its bytes.

    Later ones are void: the run went back before them because they are damaged.
    """
    name = checkpoint_name(checkpoint.step)
    aside = folder / f".{name}"
    shutil.rmtree(aside, ignore_errors=True)
    aside.mkdir(parents=True)
    save_file(dict(checkpoint.weights), aside / WEIGHTS)
    save_file(dict(checkpoint.optimizer), aside / OPTIMIZER)
    files = {file: _describe(aside / file) for file in (WEIGHTS, OPTIMIZER)}
    # JSON has no NaN, and a score that is not finite is none.
    scores = {
        score: value if value is not None and math.isfinite(value) else None
        for score, value in asdict(checkpoint.scores).items()
    }
    state = {"step": checkpoint.step, **checkpoint.state, "scores": scores, "files": files}
    (aside / STATE).write_text(json.dumps(state, indent=2))
    for path in aside.iterdir():
        _flush(path)
    flush_folder(aside)
    own = _entry(aside)
    entries = read_index(folder)["checkpoints"]
    valid = [entry for entry in entries if entry["step"] < checkpoint.step]
    if len(valid) < len(entries):
        _write_index(folder, valid)
    before = folder / f".{name}{BEFORE}"
    if (folder / name).exists():
        shutil.rmtree(before, ignore_errors=True)  # An earlier kill may have left one.
        (folder / name).rename(before)  # A kill now leaves two whole ones: see `mend_index`.
    try:
        aside.rename(folder / name)
    except OSError:
        if before.exists():
            before.rename(folder / name)
        raise
    flush_folder(folder)
    _write_index(folder, [*valid, own])
    shutil.rmtree(before, ignore_errors=True)
    for entry in entries:
        if entry["step"] > checkpoint.step:
            _delete(folder / entry["name"])
    return int(own["bytes"])


def read_index(folder: Path) -> dict[str, Any]:
    """The index of kept checkpoints; if it is lost, what their folders say."""
    entries = _listed(folder)
    if entries is None:
        entries = _in_folders(folder)
        if entries:
            say(f"{folder / INDEX} is missing or damaged; reading the folders beside it instead")
    return _index_of(entries)


def mend_index(folder: Path, warn: Callable[[str], None]) -> None:
    """Enter the checkpoints that a kill, or the loss of the index, left out."""
    for before in folder.glob(f".step-*{BEFORE}/"):
        place = folder / before.name.removeprefix(".").removesuffix(BEFORE)
        if not place.exists():
            before.rename(place)
    listed = _listed(folder) or []
    names = {entry["name"] for entry in listed}
    left_out = [entry for entry in _in_folders(folder) if entry["name"] not in names]
    if left_out:
        found = ", ".join(entry["name"] for entry in left_out)
        warn(f"{folder / INDEX} did not list {found}; entered again from the folders")
        _write_index(folder, [*listed, *left_out])


def prune(folder: Path, settings: CheckpointSettings) -> None:
    """Delete checkpoints that are neither among the latest nor the best."""
    index = read_index(folder)
    entries = sorted(index["checkpoints"], key=lambda entry: int(entry["step"]))
    latest = {entry["name"] for entry in entries[-settings.keep_latest :]}
    latest -= {entry["name"] for entry in entries if entry.get("is_only_best")}
    kept = set(latest)
    if settings.keep_best:
        kept |= {index[best] for best in ("best_loss", "best_bleu") if index[best]}
    _write_index(
        folder,
        [
            {**entry, "is_only_best": entry["name"] not in latest}
            for entry in entries
            if entry["name"] in kept
        ],
    )
    for entry in entries:
        if entry["name"] not in kept:
            _delete(folder / entry["name"])
    for path in folder.glob(".*/"):  # Half written or half deleted when the run was killed.
        shutil.rmtree(path)


def find_intact(folder: Path, warn: Callable[[str], None]) -> dict[str, Any] | None:
    """Entry of the latest checkpoint whose bytes match their checksums; damaged ones are named."""
    entries = sorted(read_index(folder)["checkpoints"], key=lambda entry: -int(entry["step"]))
    for entry in entries:
        damage = find_damage(folder, entry)
        if damage is None:
            return dict(entry)
        warn(f"checkpoint {entry['name']} is damaged ({damage}); passing over it")
    return None


def has_intact(folder: Path, name: str) -> bool:
    """Whether the folder holds a checkpoint of that name, undamaged."""
    entries = read_index(folder)["checkpoints"]
    return any(entry["name"] == name and find_damage(folder, entry) is None for entry in entries)


def find_damage(
    folder: Path, entry: Mapping[str, Any], files: Sequence[str] = (WEIGHTS, OPTIMIZER, STATE)
) -> str | None:
    """Say what is wrong with a checkpoint's files, if anything."""
    for name in files:
        file = entry["files"][name]
        damage = find_file_damage(folder / entry["name"] / name, file["bytes"], file["sha256"])
        if damage:
            return damage
    return None


def read_state(folder: Path, name: str) -> dict[str, Any]:
    """Read a checkpoint's state: step, place in the corpus, best scores."""
    state: dict[str, Any] = json.loads((folder / name / STATE).read_text())
    return state


def _flush(path: Path) -> None:
    # safetensors makes files that only their owner can read; whom the umask lets in may.
    path.chmod(path.with_name(STATE).stat().st_mode)
    with open(path, "rb") as file:
        flush_to_disk(file)


def _describe(path: Path) -> dict[str, Any]:
    return {"bytes": path.stat().st_size, "sha256": sha256(path)}


def _delete(path: Path) -> None:
    """Delete a checkpoint; a kill in the middle leaves nothing that looks like one."""
    aside = path.with_name(f".{path.name}.old")
    shutil.rmtree(aside, ignore_errors=True)
    if path.exists():
        path.rename(aside)
        shutil.rmtree(aside)


def _entry(path: Path) -> dict[str, Any]:
    """What the index says of the checkpoint in a folder."""
    state = json.loads((path / STATE).read_text())
    files = {**state["files"], STATE: _describe(path / STATE)}
    return {
        "name": checkpoint_name(state["step"]),
        "step": state["step"],
        "time": (path / STATE).stat().st_mtime,
        "bytes": sum(file["bytes"] for file in files.values()),
        "files": files,
        **state["scores"],
    }


def _in_folders(folder: Path) -> list[dict[str, Any]]:
    """Entries of all checkpoints whose folders can be read."""
    entries = []
    for path in sorted(folder.glob("step-*/")):
        with suppress(OSError, ValueError, KeyError, TypeError):
            entries.append((path.name, _entry(path)))
    return [entry for name, entry in entries if entry["name"] == name]


def _listed(folder: Path) -> list[dict[str, Any]] | None:
    """Entries of the index as it stands; None if it is missing or damaged."""
    try:
        entries: list[dict[str, Any]] = json.loads((folder / INDEX).read_text())["checkpoints"]
        _index_of(entries)  # Whatever is JSON can be read; not all of it is an index.
    except (FileNotFoundError, ValueError, KeyError, TypeError):
        return None
    return entries


def _index_of(entries: list[dict[str, Any]]) -> dict[str, Any]:
    entries = sorted(entries, key=lambda entry: int(entry["step"]))

    def best(score: str, sign: int) -> str | None:
        scored = [entry for entry in entries if entry[score] is not None]
        return min(scored, key=lambda entry: sign * entry[score])["name"] if scored else None

    return {
        "latest": entries[-1]["name"] if entries else None,
        "best_loss": best("loss", 1),
        "best_bleu": best("bleu", -1),
        "checkpoints": entries,
    }


def _write_index(folder: Path, entries: list[dict[str, Any]]) -> None:
    write_whole(folder / INDEX, json.dumps(_index_of(entries), indent=2).encode())
