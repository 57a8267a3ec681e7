"""Notices that only a run's own processes can write, on a store that anyone can write to."""

import hmac
import json
import threading
import time
from collections.abc import Callable, Sequence
from datetime import timedelta
from typing import Any, NamedTuple

from torch.distributed import DistStoreError

_ALGORITHM = "sha256"
_SIGNATURE_CHARACTERS = 64
_SECONDS_BETWEEN_LOOKS = 0.05


class _Signed(NamedTuple):
    """A notice, and how many of the same name came before it."""

    sequence: int
    value: Any


class SignedStore:
    """Posts and reads JSON by name; what has no valid signature counts as not there.

    A signature is for one run, one name and one sequence number: a notice that is copied to another
    name is not valid, and one that is older than what this process has read is not believed.
    """

    def __init__(
        self,
        store: Any,
        run_id: str,
        secret: bytes,
        tell_forgery: Callable[[str], None] = lambda _: None,
        prefix: str = "",
    ) -> None:
        self._store, self._run_id, self._secret = store, run_id, secret
        self._tell_forgery = tell_forgery
        self._prefix = prefix
        # Not the rendezvous' key: what is signed there must be worth nothing here.
        self._key = hmac.digest(secret, b"control store", _ALGORITHM)
        self._newest: dict[str, _Signed] = {}
        self._told: set[str] = set()
        self._lock = threading.Lock()

    def under(self, prefix: str) -> "SignedStore":
        """The notices whose names begin like this."""
        return SignedStore(
            self._store, self._run_id, self._secret, self._tell_forgery, self._prefix + prefix
        )

    def post(self, name: str, value: Any) -> None:
        """Put a notice in the place of the one before."""
        with self._lock:
            before = self._find(name)
            signed = _Signed(before.sequence + 1 if before else 1, value)
            self._store.set(self._prefix + name, self._sign(name, signed))
            self._newest[name] = signed

    def post_first(self, name: str, value: Any) -> bool:
        """Put a notice there unless there is one; return whether this one has the place now."""
        with self._lock:
            content = self._content(name)
            if self._verified(name, content):
                return False
            mine = self._sign(name, _Signed(1, value))
            now = self._store.compare_set(self._prefix + name, content, mine)
            return bool(now == mine.encode())

    def read(self, name: str) -> Any | None:
        """The newest notice of this name; None if there is none."""
        with self._lock:
            found = self._find(name)
            return found.value if found else None

    def wait(self, names: Sequence[str], timeout: timedelta) -> dict[str, Any]:
        """Wait until all these are there; return those that have come, in this order."""
        deadline = time.monotonic() + timeout.total_seconds()
        while True:
            values = {name: self.read(name) for name in names}
            come = {name: value for name, value in values.items() if value is not None}
            if len(come) == len(values) or time.monotonic() > deadline:
                return come
            time.sleep(_SECONDS_BETWEEN_LOOKS)

    def _find(self, name: str) -> _Signed | None:
        newest = self._newest.get(name)
        content = self._content(name)
        found = self._verified(name, content)
        if found is None:
            if content:
                self._tell_once(name)
            return newest
        if newest and found.sequence < newest.sequence:
            return newest  # Not told: it may only have been long on its way.
        self._newest[name] = found
        return found

    def _content(self, name: str) -> bytes:
        """What is there, whoever wrote it; empty if nothing."""
        key = self._prefix + name
        try:
            return bytes(self._store.get(key)) if self._store.check([key]) else b""
        except DistStoreError:
            return b""  # Somebody removed it meanwhile, or the launcher stood still for long.

    def _sign(self, name: str, signed: _Signed) -> str:
        text = json.dumps(signed)
        return self._signature(name, text.encode()) + text

    def _verified(self, name: str, content: bytes) -> _Signed | None:
        signature, text = content[:_SIGNATURE_CHARACTERS], content[_SIGNATURE_CHARACTERS:]
        if hmac.compare_digest(signature, self._signature(name, text).encode()):
            return _Signed(*json.loads(text))
        return None

    def _signature(self, name: str, text: bytes) -> str:
        head = f"{self._run_id}\n{self._prefix}{name}\n"
        return hmac.new(self._key, head.encode() + text, _ALGORITHM).hexdigest()

    def _tell_once(self, name: str) -> None:
        if name not in self._told:
            self._told.add(name)
            self._tell_forgery(self._prefix + name)
