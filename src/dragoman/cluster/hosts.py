"""The machines of `--hosts`, and ssh to them."""

import re
import subprocess
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

from dragoman.errors import UserError

SSH = ["ssh", "-o", "BatchMode=yes", "-o", "ConnectTimeout=10"]
SSH += ["-o", "ServerAliveInterval=5", "-o", "ServerAliveCountMax=3", "--"]
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
    names = [host.name for host in hosts if host.name]
    with ThreadPoolExecutor(len(hosts)) as threads:
        found = threads.map(answers, names)
        return [name for name, answer in zip(names, found, strict=True) if not answer]


def answers(name: str) -> bool:
    """Whether a host can be reached."""
    try:
        return subprocess.run([*SSH, name, "true"], capture_output=True, timeout=15).returncode == 0
    except subprocess.TimeoutExpired:
        return False
