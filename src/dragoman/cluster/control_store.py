"""The control store of a launched run: requests to all workers, and who failed first.

It is a key-value store of torch.distributed that lives with the launcher, so that any training
machine can be lost. Notices are JSON.
"""

import json
import os
import socket
import time
from dataclasses import asdict, dataclass
from datetime import timedelta
from typing import Any

import torch.distributed as distributed
from torch._C._distributed_c10d import PrefixStore, TCPStore

from dragoman.errors import MISTAKES, SystemFault, Unreachable

STORE_VARIABLE = "DRAGOMAN_STORE"
HEARTBEAT_VARIABLE = "DRAGOMAN_HEARTBEAT"
ADDRESS_VARIABLE = "DRAGOMAN_ADDRESS"
ATTEMPT_VARIABLE = "DRAGOMAN_ATTEMPT"
COMMAND_VARIABLE = "DRAGOMAN_COMMAND"

STORE_TIMEOUT = timedelta(seconds=30)
# Of the workers' patience with each other: a cause has to come before its echo.
PART_OF_TIMEOUT = 0.8


@dataclass(frozen=True)
class Failure:
    """Something that made a worker or a machine fail."""

    host: str
    worker: int | None
    step: int | None
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
        where = f" at step {self.step}" if self.step is not None else ""
        return f"{who}{where}: {self.reason}"


@dataclass(frozen=True)
class Attempt:
    """One attempt of a run: from a start or restart to the next."""

    number: int  # 0 for the first one under this launcher.
    cause: Failure | None  # What ended the attempt before.
    lost: list[str]
    joined: list[str]
    saves_answered: int  # So many of the launcher's requests to save need no answer any more.

    @property
    def reason(self) -> str:
        """Why this attempt began, if it is not the first, and which machines left or came."""
        told = [str(self.cause)] if self.cause and self.cause.is_of_worker else []
        told += [f"{', '.join(self.lost)} was lost"] if self.lost else []
        told += [f"{', '.join(self.joined)} joined"] if self.joined else []
        return "; ".join(told) or str(self.cause or "a machine came or went")


class ControlStore:
    """Reads and posts notices."""

    def __init__(self, store: Any) -> None:
        self._store = PrefixStore("dragoman", store)

    def store_of(self, attempt: str) -> Any:
        """What the workers of one attempt share, apart from that of every other attempt."""
        return PrefixStore(f"group/{attempt}", self._store)

    def post_failure(self, failure: Failure) -> None:
        """Add a failure to the list."""
        number = self._store.add("failures", 1)
        self._store.set(f"failure/{number}", json.dumps(asdict(failure)))

    def failures(self, after: int = 0) -> list[Failure]:
        """All failures but the first `after`, in the order they were posted."""
        count = self._store.add("failures", 0)
        return [
            Failure(**json.loads(self._store.get(f"failure/{number}")))
            for number in range(after + 1, count + 1)
        ]

    def begin_attempt(self, hosts: list[str]) -> Attempt:
        """Take note of a new attempt with these machines; worker 0 calls it."""
        number = int(self._store.add("attempts", 1)) - 1
        before: dict[str, Any] = {"hosts": hosts, "failures": 0}
        if number:
            before = json.loads(self._store.get("attempt"))
        count = int(self._store.add("failures", 0))
        self._store.set("attempt", json.dumps({"hosts": hosts, "failures": count}))
        # A machine that was not in that attempt did not end it, whatever its workers met outside.
        told = [
            failure
            for failure in self.failures(before["failures"])
            if failure.worker is None or failure.host in before["hosts"]
        ]
        return Attempt(
            number,
            first_cause(told),
            sorted(set(before["hosts"]) - set(hosts)),
            sorted(set(hosts) - set(before["hosts"])),
            self.saves_answered(),
        )

    def note_rendezvous(self) -> None:
        """Draw a line under the failures so far: the workers of the next attempt have not begun."""
        self._store.set("rendezvous", str(self._store.add("failures", 0)))
        self._store.add("meetings", 1)

    def meetings(self) -> int:
        """How often machines have met to begin an attempt."""
        return int(self._store.add("meetings", 0))

    def failures_of_attempt(self) -> list[Failure]:
        """The failures since the machines last met."""
        return self.failures(self.failures_before_rendezvous())

    def failures_before_rendezvous(self) -> int:
        """How many failures earlier attempts had."""
        return int(self._store.get("rendezvous")) if self._store.check(["rendezvous"]) else 0

    def note_up(self, host: str) -> None:
        """Say that a host's agent has come up."""
        self._store.set(f"up/{host}", "1")

    def was_up(self, host: str) -> bool:
        """Whether a host's agent has ever come up."""
        return bool(self._store.check([f"up/{host}"]))

    def ask_to_stop(self) -> None:
        """Ask all workers to finish the step, save and leave."""
        self._store.set("stop", "1")

    def is_asked_to_stop(self) -> bool:
        """Whether the launcher wants an orderly end."""
        return bool(self._store.check(["stop"]))

    def ask_to_save(self) -> int:
        """Ask for a checkpoint soon, as when a machine is about to join; return its number."""
        return int(self._store.add("save", 1))

    def saves_asked(self) -> int:
        """How often a checkpoint was asked for."""
        return int(self._store.add("save", 0))

    def note_saved(self, number: int) -> None:
        """Answer `ask_to_save`: that checkpoint, and all asked for before it, need not be made."""
        self._store.set("saved", str(number))

    def saves_answered(self) -> int:
        """Number of the last checkpoint asked for that is on disk."""
        return int(self._store.get("saved")) if self._store.check(["saved"]) else 0

    def post_result(self, result: str) -> None:
        """Leave what a job came to for the launcher."""
        self._store.set("result", result)

    def result(self) -> str | None:
        """What the job came to, if it said."""
        return self._store.get("result").decode() if self._store.check(["result"]) else None

    def give_up(self, failure: Failure) -> None:
        """Tell all agents that the run is over; the first reason stands."""
        self._store.compare_set("over", "", json.dumps(asdict(failure)))

    def given_up(self) -> Failure | None:
        """Why the run is over, if it is."""
        if not self._store.check(["over"]):
            return None
        return Failure(**json.loads(self._store.get("over")))


def first_cause(failures: list[Failure]) -> Failure | None:
    """The earliest failure that is not the echo of another one."""
    causes = [failure for failure in failures if not failure.is_echo] or failures
    return min(causes, key=lambda failure: failure.time) if causes else None


def connect(address: str) -> Any:
    """Connect to the launcher's store at host:port."""
    host, port = address.rsplit(":", 1)
    return TCPStore(host, int(port), is_master=False, timeout=STORE_TIMEOUT)


def launched_control_store() -> ControlStore | None:
    """The control store of the launcher that started this process, if one did."""
    address = os.environ.get(STORE_VARIABLE)
    return ControlStore(connect(address)) if address else None


def describe_error(error: BaseException, worker: int | None, step: int | None) -> Failure:
    """Turn an exception into a notice."""
    is_mistake = isinstance(error, MISTAKES)
    is_told = is_mistake or isinstance(error, SystemFault)
    text = str(error) if is_told else f"{type(error).__name__}: {error}".splitlines()[0]
    if is_mistake and isinstance(error, OSError) and error.filename:
        text = f"{error.filename}: {error.strerror}"
    if is_echo(error):
        text = "lost touch with another worker"
    return Failure(
        host=socket.gethostname(),
        worker=worker,
        step=step,
        reason=text,
        time=time.time(),
        is_echo=is_echo(error),
        is_final=is_told and not isinstance(error, Unreachable),
        is_mistake=is_mistake,
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
