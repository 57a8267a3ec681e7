"""Copies of a finished run's last checkpoint, for machines whose disks had no room for it."""

from collections.abc import Sequence

from dragoman.cluster.processes import Workers
from dragoman.errors import FIX_FIRST, SystemFault, explain
from dragoman.runs.checkpoint import copy_checkpoint, has_intact
from dragoman.runs.checkpoint_index import FILES
from dragoman.runs.folder import RunFolder


def complete_copies(
    run: RunFolder, name: str, writers: Sequence[int], workers: Workers
) -> list[str]:
    """Copy a checkpoint to every run folder that lacks it; give the names of their machines."""
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
            failure = explain(error)
    for host, reason in zip(workers.hosts, workers.gather_json(failure), strict=True):
        if reason:
            raise SystemFault(f"{folder} could not be copied: {reason}; {FIX_FIRST}", host)
    return [workers.hosts[rank] for rank in lacking]
