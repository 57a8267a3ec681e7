"""Why a worker or a machine failed, and which of many failures came first."""

import socket
import time
from dataclasses import dataclass

import torch.distributed as distributed

from dragoman.errors import SystemFault, Unreachable, explain, is_disk_full, is_mistake


@dataclass(frozen=True)
class Failure:
    """Something that made a worker or a machine fail."""

    host: str
    worker: int | None
    progress: str | None  # Of the worker, as in "at step 9".
    reason: str
    time: float
    is_echo: bool = False  # Only heard that another one is gone.
    is_final: bool = False  # A restart cannot help.
    is_mistake: bool = False  # The user's, who has to mend it before the next try.

    @property
    def is_of_worker(self) -> bool:
        """Whether something happened to a worker, not to its machine or to another one."""
        return self.worker is not None and not self.is_echo

    def __str__(self) -> str:
        who = f"worker {self.worker} on {self.host}" if self.worker is not None else self.host
        where = f" {self.progress}" if self.progress else ""
        return f"{who}{where}: {self.reason}"


def failure_here(reason: str, worker: int | None = None, progress: str | None = None) -> Failure:
    """What happened on this machine just now."""
    return Failure(socket.gethostname(), worker, progress, reason, time.time())


def read_failure(value: object) -> Failure:
    """Read what `asdict` made of a failure, perhaps in another version of Dragoman."""
    match value:
        case {"host": str(host), "reason": str(reason), "time": float() | int() as when, **rest}:
            worker, progress = rest.get("worker"), rest.get("progress")
            worker = worker if isinstance(worker, int) else None
            progress = progress if isinstance(progress, str) else None
            flags = {name: rest.get(name) is True for name in ("is_echo", "is_final", "is_mistake")}
            return Failure(host, worker, progress, reason, float(when), **flags)
    return Failure(
        "a machine", None, None, "its error message is in a format this version cannot read", 0.0
    )


def describe_error(error: BaseException, worker: int | None, progress: str | None) -> Failure:
    """Turn an exception into a notice."""
    is_told = is_mistake(error) or is_disk_full(error) or isinstance(error, SystemFault)
    text = explain(error) if is_told else f"{type(error).__name__}: {error}".splitlines()[0]
    if is_echo(error):
        text = "connection to another worker lost"
    elsewhere = error.host if isinstance(error, SystemFault) else ""
    return Failure(
        host=elsewhere or socket.gethostname(),
        worker=None if elsewhere else worker,
        progress=progress,
        reason=text,
        time=time.time(),
        is_echo=is_echo(error),
        is_final=is_told and not isinstance(error, Unreachable),
        is_mistake=is_mistake(error),
    )


def is_echo(error: BaseException) -> bool:
    """Whether an exception only says that a message did not come through."""
    if isinstance(error, distributed.DistError):
        return True
    signs = (
        *("Connection closed by peer", "Connection reset by peer", "Timed out waiting"),
        *("pair closure", "gloo"),
    )
    return isinstance(error, RuntimeError) and any(sign in str(error) for sign in signs)


def first_cause(failures: list[Failure]) -> Failure | None:
    """The earliest failure that is not the echo of another one."""
    causes = [failure for failure in failures if not failure.is_echo] or failures
    return min(causes, key=lambda failure: failure.time) if causes else None
