"""torchrun's rendezvous, which trusts neither who writes to the store nor the machines' clocks."""

import hmac
import os
import time
from datetime import UTC, datetime, timedelta
from typing import Any

from torch.distributed.elastic.rendezvous.api import RendezvousStateError
from torch.distributed.elastic.rendezvous.c10d_rendezvous_backend import C10dRendezvousBackend
from torch.distributed.elastic.rendezvous.dynamic_rendezvous import (
    DynamicRendezvousHandler,
    RendezvousSettings,
    RendezvousTimeout,
)

from dragoman.cluster.engine import NodeDescription, RendezvousStateHolder

# How quickly a machine that is gone is noticed, and how long to wait for a last one to come.
KEEP_ALIVE_SECONDS, KEEP_ALIVE_ATTEMPTS, LAST_CALL_SECONDS = 1, 5, 3
_ALGORITHM = "sha256"
_SIGNATURE_BYTES = 32


class SignedRendezvous(C10dRendezvousBackend):
    """Keeps the rendezvous' state in the launcher's store, and hands out only what agents wrote.

    The state is pickled, and anyone may write to the store.
    """

    def __init__(self, store: Any, run_id: str, secret: bytes) -> None:
        super().__init__(store, run_id)
        self._secret = secret

    def get_state(self) -> tuple[bytes, Any] | None:
        """Read the state, if there is one; the token says which version it is."""
        found = super().get_state()
        return (self._verified(found[0]), found[1]) if found else None

    def set_state(self, state: bytes, token: Any = None) -> tuple[bytes, Any, bool] | None:
        """Replace the version that the token says; return what there is now, and if it is ours."""
        found = super().set_state(self._signature(state) + state, token)
        return (self._verified(found[0]), *found[1:]) if found else None

    def _signature(self, state: bytes) -> bytes:
        return hmac.digest(self._secret, state, _ALGORITHM)

    def _verified(self, signed: bytes) -> bytes:
        signature, state = signed[:_SIGNATURE_BYTES], signed[_SIGNATURE_BYTES:]
        if not hmac.compare_digest(signature, self._signature(state)):
            raise RendezvousStateError("someone without the run's secret wrote to its rendezvous")
        return state


class HeardState(RendezvousStateHolder):
    """The state, in which a machine is gone when its heartbeat has not changed for a while.

    The engine compares the time in a heartbeat with its own clock, and clocks differ.
    """

    def __init__(self, backend: SignedRendezvous, settings: RendezvousSettings) -> None:
        super().__init__(backend, settings)
        self._heard: dict[
            NodeDescription, tuple[datetime, float]
        ] = {}  # A heartbeat, and when it came.

    def _sanitize(self) -> None:
        beats, now, clock = self._state.last_heartbeats, time.monotonic(), datetime.now(UTC)
        before = self._heard
        self._heard = {
            node: before[node] if node in before and before[node][0] == beat else (beat, now)
            for node, beat in beats.items()
        }
        self._state.last_heartbeats = {
            node: clock - timedelta(seconds=now - came) for node, (_, came) in self._heard.items()
        }
        super()._sanitize()
        self._state.last_heartbeats = {node: beats[node] for node in self._state.last_heartbeats}


class Rendezvous(DynamicRendezvousHandler):
    """One machine's part in a rendezvous, which knows which one it was."""

    round = 0  # Of the last time; no two have the same.

    def _get_store(self) -> Any:
        self.round = self._state_holder.state.round
        return super()._get_store()


def make_handler(
    backend: SignedRendezvous,
    store: Any,
    run_id: str,
    address: str,
    machines: tuple[int, int],
    wait_seconds: float,
) -> Rendezvous:
    """One machine's part in a rendezvous of so many machines, at least and at most."""
    timeout = RendezvousTimeout(
        join=timedelta(seconds=wait_seconds), last_call=timedelta(seconds=LAST_CALL_SECONDS)
    )
    keep_alive = timedelta(seconds=KEEP_ALIVE_SECONDS)
    settings = RendezvousSettings(run_id, *machines, timeout, keep_alive, KEEP_ALIVE_ATTEMPTS)
    node = NodeDescription(address, os.getpid(), 0)
    holder = HeardState(backend, settings)
    return Rendezvous(node, settings, backend.name, store, holder)
