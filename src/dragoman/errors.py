"""The ways a command can fail that are not bugs."""


class UserError(ValueError):
    """A mistake the user can mend: names the thing, the value and the fix. Exit code 2."""


class Unreachable(UserError):
    """A machine that does not answer: a mistake, unless it died; another try will tell."""


class SystemFault(RuntimeError):
    """The machine's fault, such as a full disk or a dead process. Exit code 1."""


# What a worker would meet again in its next attempt.
MISTAKES = (UserError, PermissionError, NotADirectoryError, FileExistsError)


def is_lack_of_memory(error: BaseException) -> bool:
    """Whether the machine or its GPU is full; torch has no class of its own for the former."""
    is_torch = type(error).__name__ == "OutOfMemoryError" or "DefaultCPUAllocator" in str(error)
    return isinstance(error, MemoryError) or is_torch
