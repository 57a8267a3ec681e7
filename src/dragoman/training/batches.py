"""Packs batches ahead in the background, so that the trainer does not wait."""

import queue
import sys
import threading
from collections.abc import Iterator
from typing import Generic, TypeVar

Item = TypeVar("Item")

# Rows are packed a window at a time: some dozens of small steps, whose packing takes as long as
# several of them take on a GPU.
_STEPS_AHEAD = 32
# Packing holds the interpreter. The trainer's thread gives it up with every call into PyTorch, and
# would wait Python's usual 5 ms each time to get it back while a GPU runs dry.
_SECONDS_PER_TURN = 1e-4


class Ahead(Generic[Item]):
    """Runs an endless iterator in a thread, a few items ahead of its reader."""

    def __init__(self, items: Iterator[Item], ahead: int = _STEPS_AHEAD) -> None:
        self._queue: queue.Queue[Item | BaseException] = queue.Queue(ahead)
        self._peeked: list[Item] = []
        self._closed = threading.Event()
        sys.setswitchinterval(_SECONDS_PER_TURN)
        self._thread = threading.Thread(target=self._fill, args=(items,), daemon=True)

    def peek(self) -> Item:
        """Look at the next item without taking it."""
        self._peeked = self._peeked or [self.next()]
        return self._peeked[0]

    def next(self) -> Item:
        """Take the next item; an error in the background is raised here."""
        if self._peeked:
            return self._peeked.pop()
        if not self._thread.ident:  # Nobody has asked before.
            self._thread.start()
        item = self._queue.get()
        if isinstance(item, BaseException):
            raise item
        return item

    def close(self) -> None:
        """Stop the thread."""
        self._closed.set()
        while not self._queue.empty():
            self._queue.get()
        if self._thread.ident:
            self._thread.join()

    def _fill(self, items: Iterator[Item]) -> None:
        try:
            for item in items:
                self._put(item)
                if self._closed.is_set():
                    return
        except BaseException as error:
            self._put(error)

    def _put(self, item: Item | BaseException) -> None:
        while not self._closed.is_set():
            try:
                self._queue.put(item, timeout=0.1)
                return
            except queue.Full:
                continue
