"""How many workers and processes can be asked for, and where."""

import argparse
import os
from typing import TYPE_CHECKING

from dragoman.errors import UserError

if TYPE_CHECKING:
    from dragoman.cluster.hosts import Host

PROCESSES_PER_CORE = 4  # More than one is no faster; many more take all memory.


def add_workers(parser: argparse.ArgumentParser) -> None:
    """Options of several workers."""
    parser.add_argument("--workers", type=int, metavar="N", help="worker processes on this machine")
    parser.add_argument(
        "--hosts", type=filled, metavar="A:2,B:2", help="machines and their workers, over ssh"
    )


def read_hosts(arguments: argparse.Namespace) -> "list[Host]":
    """The machines asked for; none if this process does the work itself."""
    if arguments.workers is not None and arguments.workers < 1:
        raise UserError(f"--workers {arguments.workers}: must be at least 1")
    if arguments.workers is not None and arguments.hosts:
        raise UserError("--workers runs on this machine, --hosts on others: give only one of them")

    from dragoman.cluster.hosts import Host, parse_hosts

    if arguments.hosts:
        return parse_hosts(arguments.hosts)
    return [Host("", arguments.workers)] if (arguments.workers or 1) > 1 else []


def refuse_processes(processes: int | None) -> None:
    """Refuse a number of processes that cannot be meant."""
    most = PROCESSES_PER_CORE * len(os.sched_getaffinity(0))
    if processes is not None and processes < 1:
        raise UserError(f"--processes {processes}: must be at least 1")
    if processes is not None and processes > most:
        raise UserError(
            f"--processes {processes}: must be at most {most}, {PROCESSES_PER_CORE} for each core"
        )


def filled(text: str) -> str:
    """The type of an argument that may not be empty."""
    if not text.strip():
        raise argparse.ArgumentTypeError("it is empty")
    return text
