"""Which checkpoints a run keeps: the index beside them, read without trusting it."""

import json
import math
from collections.abc import Iterable, Sequence
from pathlib import Path

from dragoman.documents import Mismatch, decode, encode, parse
from dragoman.files import write_whole
from dragoman.records import CheckpointEntry, CheckpointIndex

INDEX = "checkpoints.json"
WEIGHTS, OPTIMIZER, STATE = "weights.safetensors", "optimizer.safetensors", "state.json"
FILES = (WEIGHTS, OPTIMIZER, STATE)
FOLDERS = "step-*/"


def checkpoint_name(step: int) -> str:
    """Folder name of a step's checkpoint."""
    return f"step-{step:08d}"


def read_listed(folder: Path) -> list[CheckpointEntry] | None:
    """Entries of the index as it stands; None if it is missing or damaged."""
    try:
        index = parse(CheckpointIndex, decode((folder / INDEX).read_bytes()))
        for entry in index.checkpoints:
            check_entry(entry)
    except (FileNotFoundError, ValueError):
        return None
    return list(index.checkpoints)


def check_entry(entry: CheckpointEntry) -> None:
    """Refuse an entry whose names lead elsewhere than to the files of its own checkpoint."""
    if entry.name != checkpoint_name(entry.step):
        raise Mismatch(f"{entry.name} is not the checkpoint of step {entry.step}")
    if set(entry.files) != set(FILES):
        raise Mismatch(f"{entry.name} lists unexpected files: {', '.join(sorted(entry.files))}")


def index_of(entries: Iterable[CheckpointEntry]) -> CheckpointIndex:
    """Sort entries by step and choose the latest and the best."""
    ordered = sorted(entries, key=lambda entry: entry.step)
    by_loss = [entry for entry in ordered if entry.loss is not None]
    by_bleu = [entry for entry in ordered if entry.bleu is not None]
    return CheckpointIndex(
        latest=ordered[-1].name if ordered else None,
        best_loss=min(by_loss, key=_loss).name if by_loss else None,
        # Early in a run BLEU is often zero at every evaluation; then the loss tells.
        best_bleu=max(by_bleu, key=lambda one: (one.bleu or 0.0, -_loss(one))).name
        if by_bleu
        else None,
        checkpoints=tuple(ordered),
    )


def _loss(entry: CheckpointEntry) -> float:
    return math.inf if entry.loss is None else entry.loss


def write_index(folder: Path, entries: Sequence[CheckpointEntry]) -> None:
    """Replace the index."""
    write_whole(folder / INDEX, json.dumps(encode(index_of(entries)), indent=2).encode())
