"""A temporary folder that lives as long as an agent."""

import fcntl
import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

PREFIX = "dragoman-agent-"


@contextmanager
def agent_folder() -> Iterator[Path]:
    """Make a folder of one's own, and remove those of agents that were killed."""
    _remove_left_behind()
    folder, lock = _make()
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)
        os.close(lock)


def _make() -> tuple[Path, int]:
    while True:
        folder = Path(tempfile.mkdtemp(prefix=PREFIX))
        lock = _lock(folder, fcntl.LOCK_EX)
        if lock is not None:
            return folder, lock
        # Another agent found it before it was held, and took it for one left behind.


def _lock(folder: Path, kind: int) -> int | None:
    """Hold a folder until the process ends; None if it is gone, not ours, or held by another."""
    try:
        descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
    except OSError:
        return None
    with suppress(OSError):
        if os.fstat(descriptor).st_uid == os.geteuid():
            fcntl.flock(descriptor, kind)
            if folder.is_dir():
                return descriptor
    os.close(descriptor)
    return None


def _remove_left_behind() -> None:
    for folder in Path(tempfile.gettempdir()).glob(f"{PREFIX}*"):
        lock = _lock(folder, fcntl.LOCK_EX | fcntl.LOCK_NB)
        if lock is not None:
            shutil.rmtree(folder, ignore_errors=True)
            os.close(lock)
