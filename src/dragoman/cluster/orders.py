"""The orders of the launcher to an agent: one line of JSON on its standard input."""

import json
from dataclasses import asdict, dataclass

from dragoman.cluster.control_store import ControlStore, connect
from dragoman.errors import UserError


@dataclass(frozen=True)
class Orders:
    """What the launcher tells an agent."""

    host: str  # This machine's name in --hosts.
    start: int  # So many agents were started there before this one.
    peers: list[str]  # The other machines.
    workers: int
    min_workers: int  # Of all machines together.
    min_machines: int
    max_machines: int
    store: str  # The launcher's, host:port.
    run_id: str
    secret: str  # Signs what processes of the run tell each other; no network ever sees it.
    command: list[str]  # The worker's, after the interpreter; its config file is the last word.
    config: str  # TOML, for machines that do not have the file; "" if the command needs none.
    interface: str
    wait_seconds: float
    timeout_seconds: float
    max_restarts: int
    variables: dict[str, str]  # Of the launcher's environment, for the workers.

    def to_line(self) -> str:
        """As one line of JSON."""
        return json.dumps(asdict(self)) + "\n"

    def control_store(self) -> ControlStore:
        """A connection of one's own: one that waits for an answer lets nobody else ask."""
        return ControlStore(connect(self.store), self.run_id, bytes.fromhex(self.secret))


def read_orders(line: str) -> Orders:
    """Read what `to_line` wrote, perhaps in another version of Dragoman."""
    try:
        return Orders(**json.loads(line))
    except (TypeError, ValueError):
        raise UserError(
            "the launcher runs another version of Dragoman: install the same one on all machines"
        ) from None
