"""The control store of a launched run: requests to all workers, and who failed first.

It is a key-value store of torch.distributed that lives with the launcher, so that any training
machine can be lost. Notices are signed JSON: whoever reaches the port can write to the store, but
only processes of the run know its secret.
"""

import os
import socket
from collections.abc import Callable
from dataclasses import asdict, dataclass
from datetime import timedelta
from typing import Any

from torch.distributed import PrefixStore, TCPStore

from dragoman.cluster.failures import Failure, first_cause, read_failure
from dragoman.cluster.signed_store import SignedStore
from dragoman.errors import UserError

STORE_VARIABLE = "DRAGOMAN_STORE"
RUN_VARIABLE = "DRAGOMAN_RUN"
# In the environment, which only the same user and root can read; a command line is for all to see.
SECRET_VARIABLE = "DRAGOMAN_SECRET"
HEARTBEAT_VARIABLE = "DRAGOMAN_HEARTBEAT"
ADDRESS_VARIABLE = "DRAGOMAN_ADDRESS"
ATTEMPT_VARIABLE = "DRAGOMAN_ATTEMPT"
COMMAND_VARIABLE = "DRAGOMAN_COMMAND"

STORE_TIMEOUT = timedelta(seconds=30)
# Of the workers' patience with each other: a cause has to come before its echo.
PART_OF_TIMEOUT = 0.8


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

    def __init__(
        self,
        store: Any,
        run_id: str,
        secret: bytes,
        tell_forgery: Callable[[str], None] = lambda _: None,
    ) -> None:
        self._store = PrefixStore("dragoman", store)
        self._notices = SignedStore(self._store, run_id, secret, tell_forgery)

    def group_store(self, attempt: str) -> Any:
        """The store of one attempt's process group, apart from that of every other."""
        return PrefixStore(f"group/{attempt}", self._store)

    def notices_of(self, attempt: str) -> SignedStore:
        """What machines tell each other at the beginning of one attempt."""
        return self._notices.under(f"attempt/{attempt}/")

    def post_failure(self, failure: Failure) -> None:
        """Add a failure to the list."""
        number = 1
        while not self._notices.post_first(f"failure/{number}", asdict(failure)):
            number += 1

    def failures(self, after: int = 0) -> list[Failure]:
        """All failures but the first `after`, in the order they were posted."""
        failures: list[Failure] = []
        while value := self._notices.read(f"failure/{after + len(failures) + 1}"):
            failures.append(read_failure(value))
        return failures

    def begin_attempt(self, hosts: list[str]) -> Attempt:
        """Take note of a new attempt with these machines; worker 0 calls it."""
        before = self._notices.read("attempt") or {"number": -1, "hosts": hosts, "failures": 0}
        failures = self.failures()
        number = before["number"] + 1
        now = {"number": number, "hosts": hosts, "failures": len(failures)}
        self._notices.post("attempt", now)
        # A machine that was not in that attempt did not end it, whatever its workers met outside.
        told = [
            failure
            for failure in failures[before["failures"] :]
            if failure.worker is None or failure.host in before["hosts"]
        ]
        return Attempt(
            number,
            first_cause(told),
            sorted(set(before["hosts"]) - set(hosts)),
            sorted(set(hosts) - set(before["hosts"])),
            self.saves_answered(),
        )

    def note_rendezvous(self, attempt: int) -> None:
        """Draw a line under the failures so far: the workers of this attempt have not begun."""
        noted = {
            "number": self.rendezvous_count() + 1,
            "failures": len(self.failures()),
            "attempt": attempt,
        }
        self._notices.post("rendezvous", noted)

    def latest_attempt(self) -> int:
        """The number of the attempt of the last rendezvous."""
        return self._of_rendezvous("attempt", -1)

    def rendezvous_count(self) -> int:
        """How often machines have come together to begin an attempt."""
        return self._of_rendezvous("number", 0)

    def failures_before_rendezvous(self) -> int:
        """How many failures earlier attempts had."""
        return self._of_rendezvous("failures", 0)

    def failures_of_attempt(self) -> list[Failure]:
        """The failures since the last rendezvous."""
        return self.failures(self.failures_before_rendezvous())

    def _of_rendezvous(self, name: str, otherwise: int) -> int:
        noted = self._notices.read("rendezvous")
        return int(noted[name]) if noted else otherwise

    def post_beat(self, host: str, start: int, number: int) -> None:
        """Show that a host's agent is alive; `start` is which of those that were started there."""
        self._notices.post(f"agent/{host}/{start}", number)

    def last_beat(self, host: str, start: int) -> int | None:
        """The number of an agent's last sign of life, if it has ever come up."""
        return self._notices.read(f"agent/{host}/{start}")

    def ask_to_stop(self) -> None:
        """Ask all workers to finish the step, save and leave."""
        self._notices.post("stop", True)

    def is_asked_to_stop(self) -> bool:
        """Whether the launcher wants an orderly end."""
        return self._notices.read("stop") is not None

    def ask_to_save(self) -> int:
        """Ask for a checkpoint soon, as when a machine is about to join; return its number."""
        number = self.saves_asked() + 1
        self._notices.post("save", number)
        return number

    def saves_asked(self) -> int:
        """How often a checkpoint was asked for."""
        return self._notices.read("save") or 0

    def note_saved(self, number: int) -> None:
        """Answer `ask_to_save`: that checkpoint, and all asked for before it, need not be made."""
        self._notices.post("saved", number)

    def saves_answered(self) -> int:
        """Number of the last checkpoint asked for that is on disk."""
        return self._notices.read("saved") or 0

    def note_parts_found(self, parts: int) -> int:
        """Note how many parts of a text are there; return how many the first attempt found."""
        self._notices.post_first("parts", parts)
        return int(self._notices.read("parts") or 0)

    def post_result(self, result: str) -> None:
        """Say that all is done, and what it came to: nothing restarts any more."""
        self._notices.post("result", result)

    def result(self) -> str | None:
        """What the job came to, if it is done."""
        return self._notices.read("result")

    def give_up(self, failure: Failure) -> None:
        """Tell all agents that the run is over; the first reason stands."""
        self._notices.post_first("over", asdict(failure))

    def given_up(self) -> Failure | None:
        """Why the run is over, if it is."""
        value = self._notices.read("over")
        return read_failure(value) if value else None


def listen(address: str, port: int) -> tuple[TCPStore, str]:
    """Open the store on one address only; by itself it would listen on every interface."""
    listener = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listener.bind((address, port))
    except OSError as error:
        raise UserError(f"distributed.port = {port}: cannot listen on {address}: {error}") from None
    port = listener.getsockname()[1]
    store = TCPStore(
        address,
        port,
        is_master=True,
        wait_for_workers=False,
        timeout=STORE_TIMEOUT,
        master_listen_fd=listener.detach(),
    )
    return store, f"{address}:{port}"


def connect(address: str) -> Any:
    """Connect to the launcher's store at host:port."""
    host, port = address.rsplit(":", 1)
    return TCPStore(host, int(port), is_master=False, timeout=STORE_TIMEOUT)


def launched_control_store() -> ControlStore | None:
    """The control store of the launcher that started this process, if one did."""
    address = os.environ.get(STORE_VARIABLE)
    if not address:
        return None
    secret = bytes.fromhex(os.environ[SECRET_VARIABLE])
    return ControlStore(connect(address), os.environ[RUN_VARIABLE], secret)
