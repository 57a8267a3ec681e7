"""The place of this process among others, as whoever started them all says."""

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from dragoman.errors import UserError


@dataclass(frozen=True)
class World:
    """A process among those that torchrun, Slurm or our own launcher started."""

    rank: int
    count: int
    local_rank: int
    local_count: int  # On this machine.


def read_world() -> World:
    """Read this process's place from torchrun's variables, or Slurm's."""
    for rank, count, *local in (
        ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE"),
        ("SLURM_PROCID", "SLURM_NTASKS", "SLURM_LOCALID", "SLURM_NTASKS_PER_NODE"),
    ):
        if count in os.environ and rank in os.environ:
            local_rank, local_count = (os.environ.get(name) for name in local)
            return World(
                int(os.environ[rank]),
                int(os.environ[count]),
                int(local_rank or 0),
                int(local_count or 1),
            )
    return World(0, 1, 0, 1)


@contextmanager
def told_once_per_machine() -> Iterator[None]:
    """Leave it to a machine's first process to tell a mistake that all of them must meet there."""
    try:
        yield
    except UserError:
        if read_world().local_rank:
            sys.exit(2)
        raise
