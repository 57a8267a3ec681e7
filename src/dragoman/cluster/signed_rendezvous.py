"""torchrun's rendezvous, signed: its state is pickled, and anyone may write to the store."""

import hmac
from typing import Any

from torch.distributed.elastic.rendezvous.api import RendezvousStateError
from torch.distributed.elastic.rendezvous.c10d_rendezvous_backend import C10dRendezvousBackend

_ALGORITHM = "sha256"
_SIGNATURE_BYTES = 32


class SignedRendezvous(C10dRendezvousBackend):
    """Keeps the rendezvous' state in the launcher's store, and hands out only what agents wrote."""

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
            raise RendezvousStateError("somebody without the run's secret wrote to its rendezvous")
        return state
