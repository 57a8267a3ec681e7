"""checkpoints/ -> which checkpoints are kept, and whether their files are as the index says."""

from collections.abc import Sequence
from pathlib import Path

from dragoman.records import CheckpointEntry, CheckpointIndex, SavedFile
from dragoman.runs.checkpoint_index import FOLDERS, INDEX, checkpoint_name, index_of, read_listed
from dragoman.wording import plural


def read_checkpoints(folder: Path, missing: list[str]) -> CheckpointIndex:
    """Read the index; without one, look at the folders themselves."""
    entries = read_listed(folder)
    if entries is None:
        found = _from_folders(folder)
        if found or (folder / INDEX).exists():
            missing.append(
                f"checkpoints/{INDEX} is missing or damaged: the checkpoint folders "
                "were read instead"
            )
        return index_of(found)
    missing += _differences(folder, entries)
    return index_of(entries)


def _differences(folder: Path, entries: Sequence[CheckpointEntry]) -> list[str]:
    """Files that are not as the index says; those that are absent in one line."""
    absent, notices = [], []
    for entry in entries:
        for name, file in entry.files.items():
            path = folder / entry.name / name
            if not path.is_file():
                absent.append(f"checkpoints/{entry.name}/{name}")
            elif path.stat().st_size != file.bytes:
                notices.append(
                    f"checkpoints/{entry.name}/{name} has {path.stat().st_size:,} bytes, "
                    f"the index says {file.bytes:,}: it is damaged"
                )
    if absent:
        more = f" and {plural(len(absent) - 1, 'more file')} are" if len(absent) > 1 else " is"
        notices.append(f"{absent[0]}{more} in the index but not on disk")
    return notices


def _from_folders(folder: Path) -> list[CheckpointEntry]:
    """What lies there, whatever it is worth; nothing is known of scores."""
    found = []
    for path in sorted(folder.glob(FOLDERS)):
        digits = path.name.removeprefix("step-")
        if not digits.isdecimal() or path.name != checkpoint_name(int(digits)):
            continue
        files = {file.name: SavedFile(file.stat().st_size, "") for file in sorted(path.iterdir())}
        size = sum(file.bytes for file in files.values())
        written = path.stat().st_mtime
        found.append(
            CheckpointEntry(path.name, int(digits), written, size, files, None, None, None)
        )
    return found
