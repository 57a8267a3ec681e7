"""Every machine has a copy of the last checkpoint, or all workers tell where there is none."""

from collections.abc import Mapping, Sequence

from dragoman.cluster.processes import Workers
from dragoman.errors import FIX_FIRST, SystemFault, explain
from dragoman.runs.checkpoint import copy_checkpoint, has_intact
from dragoman.runs.checkpoint_index import FILES
from dragoman.runs.folder import RunFolder


def complete_copies(
    run: RunFolder, name: str, writers: Sequence[int], workers: Workers
) -> list[str]:
    """Copy a checkpoint to every run folder that lacks it; give the names of their machines.

    A disk may have had no room for it when the run was finished.
    """
    has_it = [bool(one) for one in workers.gather_number(has_intact(run.checkpoints, name))]
    lacking = [rank for rank in sorted(set(writers)) if not has_it[rank]]
    if not lacking:
        return []
    source = has_it.index(True)
    folder, failure = run.checkpoints / name, ""
    own = [(folder / file).read_bytes() if workers.rank == source else b"" for file in FILES]
    files = [workers.broadcast_bytes(content, source) for content in own]
    if workers.rank in lacking:
        try:
            copy_checkpoint(run.checkpoints, name, dict(zip(FILES, files, strict=True)))
        except OSError as error:
            failure = f"{folder} could not be copied: {explain(error)}"
    raise_failures(failures_by_host(failure, workers))
    return [workers.hosts[rank] for rank in lacking]


def failures_by_host(failure: str, workers: Workers) -> dict[str, str]:
    """Why a checkpoint is not on the disks of some machines; each worker gives its own reason."""
    by_host = zip(workers.hosts, workers.gather_json(failure), strict=True)
    return {host: reason for host, reason in by_host if reason}


def raise_failures(failures: Mapping[str, str]) -> None:
    """End all workers with what has to be fixed on some machine, if anything."""
    if failures:
        (host, failure), *others = failures.items()
        told = "; ".join([failure, *map(": ".join, others)])
        raise SystemFault(f"{told}; {FIX_FIRST}", host)
