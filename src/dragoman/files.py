"""Files that appear whole or not at all."""

import errno
import fcntl
import hashlib
import os
import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any

from dragoman.errors import UserError
from dragoman.records import SavedFile

LOCK = ".lock"  # In a folder that one process holds.


def write_whole(path: Path, content: bytes) -> None:
    """Write a file that appears in one move."""
    with writing_whole(path) as file:
        file.write(content)


@contextmanager
def writing_whole(path: Path) -> Iterator[IO[bytes]]:
    """Write a file aside, then put it in place in one move that a power cut cannot halve."""
    # Machines that share a folder may have processes of one number.
    aside = path.with_name(f".{path.name}.{os.uname().nodename}.{os.getpid()}")
    with naming(path):
        try:
            aside.unlink(missing_ok=True)  # Of a killed process; or a link to somewhere else.
            with open(aside, "xb") as file:
                yield file
                flush_to_disk(file)
            aside.replace(path)
        finally:
            aside.unlink(missing_ok=True)
    flush_folder(path.parent)


@contextmanager
def naming(path: Path) -> Iterator[None]:
    """Let a fault of the disk say where it happened."""
    try:
        yield
    except OSError as error:
        if error.filename is None or Path(error.filename).parent == path.parent:
            error.filename = str(path)
        raise


def flush_to_disk(file: IO[Any]) -> None:
    """Hand a file's bytes to the disk itself, past all caches."""
    file.flush()
    os.fsync(file.fileno())


def flush_folder(folder: Path) -> None:
    """Make the renames in a folder survive a power cut."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def sha256(path: Path) -> str:
    """Checksum of a file's bytes."""
    with open(path, "rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def describe_file(path: Path) -> SavedFile:
    """Size and checksum of a file as it is now."""
    return SavedFile(path.stat().st_size, sha256(path))


def find_file_damage(path: Path, size: int, checksum: str | None = None) -> str | None:
    """Say how a file differs from the one that was written, if it does."""
    if not path.is_file():
        return f"{path.name} is missing"
    if path.stat().st_size != size:
        return f"{path.name} has {path.stat().st_size:,} bytes, not {size:,}"
    if checksum is not None and sha256(path) != checksum:
        return f"the checksum of {path.name} does not match"
    return None


def is_held_here(folder: Path) -> bool | None:
    """Whether a process of this machine holds a folder, as its kernel says; None if unknown.

    To try the lock itself would keep others from taking it in that moment.
    """
    try:
        inode = (folder / LOCK).stat().st_ino
        return re.search(rf":{inode} ", Path("/proc/locks").read_text()) is not None
    except OSError:
        return None


@contextmanager
def exclusive(folder: Path, purpose: str) -> Iterator[None]:
    """Hold a folder for one process; the kernel lets go of it when the process dies."""
    path = folder / LOCK
    try:
        lock = os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW, 0o666)
    except OSError as error:
        if error.errno != errno.ELOOP:
            raise
        raise UserError(
            f"{path} is a symbolic link that dragoman did not create; delete it"
        ) from None
    try:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise UserError(
                f"{folder}: another process is {purpose}; wait until it is done"
            ) from None
        yield
    finally:
        os.close(lock)
