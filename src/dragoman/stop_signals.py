"""The signals that request an orderly stop."""

import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType


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
