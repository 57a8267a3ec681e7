"""What people see while they wait: bars on a terminal, plain lines in a log.

A console that cannot be written, as on a full disk or after its terminal was closed, ends nothing.
"""

import io
import os
import re
import sys
import time
from contextlib import AbstractContextManager, suppress
from typing import Any

SECONDS_BETWEEN_LINES = 10.0
# A terminal would obey them; all but the end of a line and the tabulator.
_CONTROL_CHARACTERS = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f]")


def open_closed_streams() -> None:
    """Let standard streams that were closed lead nowhere, instead of to the next file opened."""
    for name, mode in (("stdin", "r"), ("stdout", "w"), ("stderr", "w")):
        if getattr(sys, name) is None:
            descriptor = os.open(os.devnull, os.O_RDWR)  # The lowest that is free: its own.
            os.set_inheritable(descriptor, True)
            setattr(sys, name, open(descriptor, mode, encoding="utf-8", closefd=False))


def protect_console() -> None:
    """Keep nothing that standard error would not take: flushed at the end, it would fail again."""
    with suppress(OSError, ValueError):  # Something that is no file is kept as it is.
        descriptor = sys.stderr.fileno()
        raw: Any = io.FileIO(descriptor, "w", closefd=False)
        sys.stderr = io.TextIOWrapper(
            raw, encoding=sys.stderr.encoding, errors="backslashreplace", write_through=True
        )


def unfailing() -> AbstractContextManager[None]:
    """Let nothing that is written to the console in this block end more than the block."""
    return suppress(OSError, ValueError)


def printable(text: str) -> str:
    """The text with its control characters spelled out: it may come from anywhere."""
    return _CONTROL_CHARACTERS.sub(lambda found: repr(found[0])[1:-1], text)


def say(message: str = "") -> None:
    """Print one line of status where it does not mix with results."""
    _write(f"{printable(message)}\n")


def show_cursor() -> None:
    """Undo what a live display does to a terminal, where it cannot end by itself."""
    if sys.stderr.isatty():
        _write("\x1b[?25h\n")


def _write(text: str) -> None:
    with unfailing():
        sys.stderr.write(text)
        sys.stderr.flush()


class Progress:
    """Counts towards a total; shows rate and time left."""

    def __init__(self, title: str, total: int, unit: str) -> None:
        self._title, self._total, self._unit = title, total, unit
        self._done = 0
        self._start = self._last_line = time.monotonic()
        self._bar = _make_bar(title, total) if sys.stderr.isatty() else None

    def __enter__(self) -> "Progress":
        if self._bar:
            with unfailing():
                self._bar.start()
        return self

    def __exit__(self, kind: object, error: BaseException | None, traceback: object) -> None:
        if self._bar:
            with unfailing():
                self._bar.stop()
        elif error is None:
            seconds = time.monotonic() - self._start
            unit = self._unit.removesuffix("s") if self._done == 1 else self._unit
            say(f"{self._title}: {self._done:,} {unit} in {seconds:.1f} s")

    def advance(self, amount: int) -> None:
        """Add to what is done."""
        self._done += amount
        now = time.monotonic()
        rate = self._done / max(now - self._start, 1e-9)
        shown = f"{rate:,.{0 if rate >= 10 else 1}f} {self._unit}/s"
        if self._bar:
            with unfailing():
                self._bar.update(self._bar.task_ids[0], advance=amount, rate=shown)
        elif now - self._last_line >= SECONDS_BETWEEN_LINES:
            self._last_line = now
            left = (self._total - self._done) / rate if rate else float("inf")
            say(
                f"{self._title}: {self._done / max(self._total, 1):4.0%}, {shown}, "
                f"{left:.0f} s left"
            )


def _make_bar(title: str, total: int) -> Any:
    from rich import progress
    from rich.console import Console

    bar = progress.Progress(
        progress.TextColumn("{task.description}"),
        progress.BarColumn(),
        progress.TaskProgressColumn(),
        progress.TextColumn("{task.fields[rate]}"),
        progress.TimeRemainingColumn(),
        console=Console(stderr=True),
    )
    bar.add_task(title, total=total, rate="")
    return bar
