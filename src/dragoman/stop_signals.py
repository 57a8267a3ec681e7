"""The signals that request an orderly stop."""

import os
import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType

from dragoman.console import say

INTERRUPTED = 130  # Exit code.


@contextmanager
def imports_interruptible() -> Iterator[None]:
    """Let Ctrl-C end the process at once while modules are imported.

    An exception would be lost in their C code, or leave half a module to whoever needs it next.
    """
    is_main = threading.current_thread() is threading.main_thread()
    if not is_main or signal.getsignal(signal.SIGINT) is not signal.default_int_handler:
        yield
        return
    signal.signal(signal.SIGINT, _interrupt)
    try:
        yield
    finally:
        if signal.getsignal(signal.SIGINT) is _interrupt:
            signal.signal(signal.SIGINT, signal.default_int_handler)


def _interrupt(_: int, frame: FrameType | None) -> None:
    while frame:
        if frame.f_code.co_filename.startswith("<frozen importlib"):
            say("dragoman: interrupted")
            os._exit(INTERRUPTED)
        frame = frame.f_back
    raise KeyboardInterrupt


@contextmanager
def stop_signals_caught(handle: Callable[[signal.Signals], None]) -> Iterator[None]:
    """Call a function on Ctrl-C, SIGTERM and the end of the terminal, for the time of a block."""
    has_come = False

    def note(number: int, _: FrameType | None) -> None:
        nonlocal has_come
        # A terminal that closes may say so twice, which is no second request.
        if not (has_come and number == signal.SIGHUP):
            has_come = True
            handle(signal.Signals(number))

    numbers = [signal.SIGINT, signal.SIGTERM]
    if signal.getsignal(signal.SIGHUP) is not signal.SIG_IGN:  # As nohup has it.
        numbers.append(signal.SIGHUP)
    before = [signal.signal(number, note) for number in numbers]
    try:
        yield
    finally:
        for number, handler in zip(numbers, before, strict=True):
            signal.signal(number, handler)
