"""The ways a command can fail that are not bugs."""

import errno
from importlib.util import find_spec

_ADVICE = {
    errno.EEXIST: "name another path, or move the file out of the way",
    errno.ENOTDIR: "name another path, or move the file out of the way",
    errno.EROFS: "name a path on a disk that can be written to",
}

FIX_FIRST = "fix this, then run the same command to resume"


class UserError(ValueError):
    """A mistake the user can mend: names the thing, the value and the fix. Exit code 2."""


class Unreachable(UserError):
    """A machine that does not answer: a mistake, unless it died; another try will tell."""


class SystemFault(RuntimeError):
    """The machine's fault, such as a full disk or a dead process. Exit code 1."""

    def __init__(self, message: str, host: str = "") -> None:
        super().__init__(message)
        self.host = host  # Where, if all workers tell of it.


def require_package(name: str, extra: str) -> None:
    """Refuse to go on without an optional dependency."""
    if find_spec(name) is None:
        raise UserError(f"{name} is not installed: in the checkout, pip install -e '.[{extra}]'")


def is_mistake(error: BaseException) -> bool:
    """Whether it is for the user to mend; a worker would meet it again in its next attempt."""
    kinds = (UserError, PermissionError, NotADirectoryError, FileExistsError)
    is_read_only = isinstance(error, OSError) and error.errno == errno.EROFS
    return isinstance(error, kinds) or is_read_only


def is_disk_full(error: BaseException) -> bool:
    """Whether a disk has no room, no inodes or no quota left."""
    return isinstance(error, OSError) and error.errno in (errno.ENOSPC, errno.EDQUOT)


def is_lack_of_memory(error: BaseException) -> bool:
    """Whether the machine or its GPU is full; torch has no class of its own for the former."""
    is_torch = type(error).__name__ == "OutOfMemoryError" or "DefaultCPUAllocator" in str(error)
    return isinstance(error, MemoryError) or is_torch


def explain(error: BaseException) -> str:
    """What an error that is no bug says to a user; one of the system names the file."""
    if not isinstance(error, OSError):
        return str(error)
    where = f"{error.filename}: " if error.filename else ""
    advice = f"; {_ADVICE[error.errno]}" if error.errno in _ADVICE else ""
    return f"{where}{error.strerror or error}{advice}"
