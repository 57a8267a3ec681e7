"""The machines of `--hosts`, and ssh to them."""

import re
import subprocess
import time
from collections.abc import Sequence
from dataclasses import dataclass

from dragoman.console import say
from dragoman.errors import UserError

SSH = ["ssh", "-o", "BatchMode=yes", "-o", "ConnectTimeout=10"]
SSH += ["-o", "ServerAliveInterval=5", "-o", "ServerAliveCountMax=3", "--"]
# An absent host is noticed by ssh itself; a busy one may take long to open a session.
SECONDS_UNTIL_SLOW, SECONDS_TO_LOG_IN = 15.0, 120.0
SECONDS_BETWEEN_LOOKS = 0.05
NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9._-]*")  # No more than letters, digits, ".", "_", "-".


@dataclass(frozen=True)
class Host:
    """A machine and how many workers it runs; "" is this machine."""

    name: str
    workers: int


def parse_hosts(text: str) -> list[Host]:
    """Read `hostA:2,hostB:2`; a host without a number runs one worker."""
    hosts = []
    for part in text.split(","):
        name, _, workers = part.strip().partition(":")
        if not name or not (workers or "1").isdigit() or int(workers or "1") < 1:
            raise UserError(f"--hosts {text}: {part!r} is not HOST or HOST:WORKERS")
        user, at, host = name.rpartition("@")
        if at:
            raise UserError(
                f"--hosts {text}: write only {host}, and put `User {user}` for it into "
                "~/.ssh/config"
            )
        if not NAME.fullmatch(name):
            raise UserError(f"--hosts {text}: {name!r} is not a valid host name")
        hosts.append(Host(name, int(workers or "1")))
    names = [host.name for host in hosts]
    if len(set(names)) < len(names):
        raise UserError(
            f"--hosts {text}: list each host only once; give its number of workers as HOST:N"
        )
    return hosts


def unreachable(hosts: Sequence[Host]) -> list[str]:
    """Names of the hosts that do not answer, all asked at once."""
    knocks = {host.name: Knock(host.name) for host in hosts if host.name}
    try:
        while any(knock.answer() is None for knock in knocks.values()):
            time.sleep(SECONDS_BETWEEN_LOOKS)
        return [name for name, knock in knocks.items() if not knock.answer()]
    finally:
        for knock in knocks.values():
            knock.close()


class Knock:
    """A login that tells whether a host can be reached, made while other things go on."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._begun = time.monotonic()
        self._is_slow = False
        quiet = subprocess.DEVNULL
        self._process = subprocess.Popen(
            [*SSH, name, "true"],
            stdin=quiet,
            stdout=quiet,
            stderr=quiet,
            start_new_session=True,  # Ctrl-C is for the launcher alone.
        )

    def answer(self) -> bool | None:
        """Whether the host can be reached; None while that is not known."""
        code = self._process.poll()
        if code is not None:
            return code == 0
        seconds = time.monotonic() - self._begun
        if seconds > SECONDS_TO_LOG_IN:
            say(f"{self._name}: ssh login not complete after {SECONDS_TO_LOG_IN:.0f} s; giving up")
            self.close()
        elif seconds > SECONDS_UNTIL_SLOW and not self._is_slow:
            self._is_slow = True
            say(f"{self._name}: ssh login not complete after {SECONDS_UNTIL_SLOW:.0f} s; waiting")
        return None

    def close(self) -> None:
        """End it if it has not ended."""
        self._process.kill()
        self._process.wait()
