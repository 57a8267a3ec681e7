"""What may come of a fault, and commands that start in a moment to find out."""

import os
import re
import resource
import signal
import sys
import time
import traceback
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import IntEnum
from pathlib import Path

from dragoman.cli import main

SECONDS_TO_HANG = 120.0  # On a busy machine; a command here takes one or two.
LARGEST_MEMORY = 12 << 30  # Of a command, so that a damaged size does not take all there is.


class Outcome(IntEnum):
    """What came of a fault, from the best to the worst; a fault counts with its worst."""

    IDENTICAL = 0  # As if nothing had happened.
    AS_EDITED = 1  # A page tells, or a command obeys, what the changed text now says.
    REFUSED = 2  # With one line.
    HANG = 3
    ORPHAN = 4  # A process that outlives its run.
    LOST = 5  # Intact files destroyed, or another result without a word.
    TRACEBACK = 6  # Or a crash.


@dataclass(frozen=True)
class Finding:
    """One outcome, and the words that prove it."""

    outcome: Outcome
    detail: str = ""


@dataclass(frozen=True)
class Ended:
    """A command that has come to its end."""

    code: int | None  # None if it had to be killed; negative for a signal.
    output: bytes
    errors: str

    @property
    def is_crash(self) -> bool:
        """Whether it ended as no command should."""
        is_signal = self.code is not None and (self.code < 0 or self.code > 130)
        return is_signal or self.is_traceback

    @property
    def is_traceback(self) -> bool:
        """Whether it shows the user where its code failed."""
        return "Traceback (most recent call last)" in self.errors


def worst(findings: Sequence[Finding]) -> Finding:
    """What a fault counts as."""
    return max(findings, key=lambda finding: finding.outcome)


def judge_refusal(ended: Ended, lines_allowed: int = 1) -> Finding | None:
    """What a command that did not succeed counts as; None if it succeeded."""
    told = [line for line in ended.errors.splitlines() if line.startswith("dragoman: ")]
    told = [line for line in told if not line.startswith("dragoman: resume the run with: ")]
    if ended.code is None:
        return Finding(Outcome.HANG, ended.errors[-2000:])
    if ended.is_crash:
        return Finding(Outcome.TRACEBACK, f"exit {ended.code}\n{ended.errors[-4000:]}")
    if ended.code == 0:
        return None
    if ended.code in (1, 2) and 1 <= len(told) <= lines_allowed:
        return Finding(Outcome.REFUSED, " / ".join(told))
    return Finding(Outcome.LOST, f"exit {ended.code} without one line: {ended.errors[-2000:]}")


def run_forked(
    words: Sequence[str | Path],
    folder: Path,
    given: bytes = b"",
    before: Callable[[], None] = lambda: None,
) -> Ended:
    """Run a command in a fork of this process, which has imported all that it needs."""
    streams = [folder / name for name in ("given", "output", "errors")]
    streams[0].write_bytes(given)
    child = os.fork()
    if not child:
        _be_command([str(word) for word in words], streams, before)
    code = _wait(child)
    errors = streams[2].read_bytes().decode("utf-8", "replace")
    return Ended(code, streams[1].read_bytes(), re.sub(r"\x1b\[\??[0-9;]*[a-z]", "", errors))


def _be_command(words: list[str], streams: Sequence[Path], before: Callable[[], None]) -> None:
    code = 1
    try:
        os.setsid()
        modes = (os.O_RDONLY, *[os.O_WRONLY | os.O_CREAT | os.O_TRUNC] * 2)
        for number, (path, mode) in enumerate(zip(streams, modes, strict=True)):
            os.dup2(os.open(path, mode, 0o600), number)
        before()
        resource.setrlimit(resource.RLIMIT_AS, (LARGEST_MEMORY, LARGEST_MEMORY))
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
        main(words)
        code = 0
    except SystemExit as ended:
        code = int(ended.code or 0)
    except BaseException:
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)


def _wait(child: int) -> int | None:
    """The exit code of a child; None if it never came to an end."""
    deadline = time.monotonic() + SECONDS_TO_HANG
    pause = 0.002
    while not (found := os.waitpid(child, os.WNOHANG))[0]:
        if time.monotonic() > deadline:
            os.kill(child, signal.SIGKILL)
            os.waitpid(child, 0)
            return None
        time.sleep(pause)
        pause = min(pause * 1.5, 0.05)
    return os.waitstatus_to_exitcode(found[1])
