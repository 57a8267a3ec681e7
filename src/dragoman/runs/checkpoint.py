"""Checkpoints, complete or absent: safetensors, checksums, and an index."""

import json
import os
import re
import shutil
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from torch import Tensor

from dragoman.config import CheckpointSettings
from dragoman.console import say
from dragoman.documents import encode, read_document
from dragoman.files import describe_file, find_file_damage, flush_folder, flush_to_disk
from dragoman.records import CheckpointEntry, CheckpointIndex, CheckpointState, Scores
from dragoman.runs.checkpoint_index import (
    FILES,
    FOLDERS,
    INDEX,
    OPTIMIZER,
    STATE,
    WEIGHTS,
    check_entry,
    checkpoint_name,
    index_of,
    read_listed,
    write_index,
)
from dragoman.runs.tensors import write_tensors

BEFORE = ".before"  # Ends the name of a checkpoint that another of its step replaces,
OLD = ".old"  # and of one that is being deleted.
ASIDE = re.compile(rf"\.step-\d{{8,19}}({re.escape(BEFORE)}|{re.escape(OLD)})?")

Tensors = Mapping[str, Tensor]


@dataclass(frozen=True)
class Checkpoint:
    """A checkpoint in memory."""

    step: int
    weights: Tensors
    optimizer: Tensors
    progress: Mapping[str, Any]
    numbers: Mapping[str, float]  # The few beside the optimizer's tensors.
    scores: Scores


@dataclass(frozen=True)
class Written:
    """A checkpoint that has been put in place."""

    bytes: int
    void: list[str]  # Names of later ones: the run went back before them, for they are damaged.


def write_checkpoint(folder: Path, checkpoint: Checkpoint) -> Written:
    """Write one checkpoint aside, put it in place, and enter it in the index."""
    aside = _room_for(folder, checkpoint_name(checkpoint.step))
    write_tensors(checkpoint.weights, aside / WEIGHTS)
    write_tensors(checkpoint.optimizer, aside / OPTIMIZER)
    state = CheckpointState(
        checkpoint.step,
        checkpoint.progress,
        checkpoint.numbers,
        checkpoint.scores,
        {file: describe_file(aside / file) for file in (WEIGHTS, OPTIMIZER)},
    )
    (aside / STATE).write_text(json.dumps(encode(state), indent=2))
    return _put_in_place(aside)


def copy_checkpoint(folder: Path, name: str, files: Mapping[str, bytes]) -> None:
    """Write a checkpoint down as another machine has it."""
    aside = _room_for(folder, name)
    for file, content in files.items():
        (aside / file).write_bytes(content)
    _put_in_place(aside)


def _room_for(folder: Path, name: str) -> Path:
    aside = folder / f".{name}"
    shutil.rmtree(aside, ignore_errors=True)
    folder.mkdir(exist_ok=True)  # But not the run's, which may have been moved away.
    aside.mkdir()
    return aside


def _put_in_place(aside: Path) -> Written:
    folder, name = aside.parent, aside.name.removeprefix(".")
    for path in aside.iterdir():
        _flush(path)
    flush_folder(aside)
    own = _entry(aside)
    entries = read_index(folder).checkpoints
    valid = [entry for entry in entries if entry.step < own.step]
    if len(valid) < len(entries):
        write_index(folder, valid)
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
    write_index(folder, [*valid, own])
    shutil.rmtree(before, ignore_errors=True)
    return Written(own.bytes, [entry.name for entry in entries if entry.step > own.step])


def read_index(folder: Path) -> CheckpointIndex:
    """The kept checkpoints; if the index is lost, what their folders say."""
    entries = _listed(folder)
    if entries is None:
        entries = _in_folders(folder)
        if entries:
            say(f"{folder / INDEX} is missing or damaged; reading the checkpoint folders instead")
    return index_of(entries)


def mend_index(folder: Path, warn: Callable[[str], None]) -> None:
    """Enter the checkpoints that a kill, or the loss of the index, left out."""
    for before in folder.glob(f".step-*{BEFORE}/"):
        place = folder / before.name.removeprefix(".").removesuffix(BEFORE)
        if not place.exists():
            before.rename(place)
    for left in folder.glob(
        f".{INDEX}.{os.uname().nodename}.*"
    ):  # Written aside, and not put here.
        left.unlink(missing_ok=True)
    listed = _listed(folder) or []
    names = {entry.name for entry in listed}
    left_out = [entry for entry in _in_folders(folder) if entry.name not in names]
    if left_out:
        found = ", ".join(entry.name for entry in left_out)
        warn(f"{folder / INDEX} did not list {found}; restored from the checkpoint folders")
        write_index(folder, [*listed, *left_out])


def prune(folder: Path, settings: CheckpointSettings) -> None:
    """Delete checkpoints that are neither among the latest nor the best."""
    index = read_index(folder)
    entries = index.checkpoints
    latest = {entry.name for entry in entries[-settings.keep_latest :] if not entry.is_only_best}
    kept = set(latest)
    if settings.keep_best:
        kept |= {best for best in (index.best_loss, index.best_bleu) if best}
    write_index(
        folder,
        [
            replace(entry, is_only_best=entry.name not in latest)
            for entry in entries
            if entry.name in kept
        ],
    )
    delete_checkpoints(folder, [entry.name for entry in entries if entry.name not in kept])
    for path in folder.iterdir():
        if ASIDE.fullmatch(path.name):  # Half written or half deleted when the run was killed.
            shutil.rmtree(path)


def delete_checkpoints(folder: Path, names: Sequence[str]) -> None:
    """Delete checkpoints; a kill in the middle leaves nothing that looks like one."""
    for name in names:
        aside = folder / f".{name}{OLD}"
        shutil.rmtree(aside, ignore_errors=True)
        if (folder / name).exists():
            (folder / name).rename(aside)
            shutil.rmtree(aside)


def find_intact(folder: Path, warn: Callable[[str], None]) -> CheckpointEntry | None:
    """The latest checkpoint whose bytes match their checksums; damaged ones are named."""
    for entry in reversed(read_index(folder).checkpoints):
        damage = find_damage(folder, entry)
        if damage is None:
            return entry
        warn(f"checkpoint {entry.name} is damaged ({damage}); skipping it")
    return None


def has_intact(folder: Path, name: str) -> bool:
    """Whether the folder holds a checkpoint of that name, undamaged."""
    entries = read_index(folder).checkpoints
    return any(entry.name == name and find_damage(folder, entry) is None for entry in entries)


def find_damage(folder: Path, entry: CheckpointEntry, files: Sequence[str] = FILES) -> str | None:
    """Say what is wrong with a checkpoint's files, if anything."""
    for name in files:
        file = entry.files[name]
        damage = find_file_damage(folder / entry.name / name, file.bytes, file.sha256)
        if damage:
            return damage
    return None


def read_state(folder: Path, name: str) -> CheckpointState:
    """Read a checkpoint's state: step, place in the corpus, best scores."""
    return read_document(folder / name / STATE, CheckpointState, "restore the checkpoint")


def _listed(folder: Path) -> list[CheckpointEntry] | None:
    """Entries of the index; None if it is lost, or says other scores than a checkpoint itself.

    They decide which checkpoint is the best, and which are deleted.
    """
    entries = read_listed(folder)
    for entry in entries or ():
        with suppress(OSError, ValueError):
            own = _entry(folder / entry.name)
            told = replace(entry, loss=own.loss, nll=own.nll, bleu=own.bleu)
            if own.files[STATE] == entry.files[STATE] and told != entry:
                return None
    return entries


def _flush(path: Path) -> None:
    # safetensors makes files that only their owner can read; whom the umask lets in may.
    path.chmod(path.with_name(STATE).stat().st_mode)
    with open(path, "rb") as file:
        flush_to_disk(file)


def _entry(path: Path) -> CheckpointEntry:
    """What the index says of the checkpoint in a folder."""
    state = read_state(path.parent, path.name)
    files = {**state.files, STATE: describe_file(path / STATE)}
    entry = CheckpointEntry(
        name=checkpoint_name(state.step),
        step=state.step,
        time=(path / STATE).stat().st_mtime,
        bytes=sum(file.bytes for file in files.values()),
        files=files,
        **vars(state.scores),
    )
    check_entry(entry)
    return entry


def _in_folders(folder: Path) -> list[CheckpointEntry]:
    """Entries of all checkpoints whose folders can be read."""
    entries = []
    for path in sorted(folder.glob(FOLDERS)):
        with suppress(OSError, ValueError):
            entries.append((path.name, _entry(path)))
    return [entry for name, entry in entries if entry.name == name]
