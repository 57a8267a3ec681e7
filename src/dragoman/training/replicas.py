"""A copy of the run folder on every machine, so that any machine can be lost.

All workers know the same weights and the same history, so that the first worker of every machine
can write them down without any traffic. Machines that share a file system write once.
"""

import hashlib
import time
import uuid
from contextlib import ExitStack

from dragoman.cluster.processes import Workers
from dragoman.errors import UserError
from dragoman.files import exclusive, write_whole
from dragoman.runs.folder import RunFolder
from dragoman.training.resume import Found


def choose_writers(run: RunFolder, workers: Workers) -> list[int]:
    """Who writes the run folder that each worker sees, by rank."""
    if workers.count == 1:
        return [0]
    token = workers.broadcast(uuid.uuid4().hex)
    prefix = f".seen-{token}-"
    mark = run.path / f"{prefix}{workers.rank}"
    if workers.is_first_on_host:
        run.path.mkdir(parents=True, exist_ok=True)
        try:
            mark.touch()
        except OSError as error:
            error.filename = str(run.path)  # The mark has another name every time.
            raise
    try:
        workers.gather([0.0])  # All marks are there before anyone looks,
        ranks = [int(path.name.removeprefix(prefix)) for path in run.path.glob(f"{prefix}*")]
        workers.gather([0.0])  # and everyone has looked before any is removed.
    finally:
        if workers.is_first_on_host:
            mark.unlink(missing_ok=True)
    return [int(writer) for (writer,) in workers.gather([min(ranks)])]


def hold(run: RunFolder, at_end: ExitStack, patience_seconds: float) -> None:
    """Keep every other process from writing the run folder, for as long as this one does.

    Patience is for the lock of a machine that was lost, which a file server keeps for a while.
    """
    run.path.mkdir(parents=True, exist_ok=True)
    deadline = time.monotonic() + patience_seconds
    while True:
        try:
            at_end.enter_context(exclusive(run.path, "training it"))
            return
        except UserError:
            if time.monotonic() >= deadline:
                raise
            time.sleep(1.0)


def newest(run: RunFolder, found: Found | None, workers: Workers) -> int | None:
    """Rank of the worker whose machine has the latest checkpoint; None if nobody has one.

    Starting again would delete those that are damaged, which someone may be able to restore.
    """
    steps = [step for (step,) in workers.gather([found.progress.step if found else -1])]
    if max(steps) >= 0:
        return steps.index(max(steps))
    is_damaged = any(run.checkpoints.glob("step-*/"))
    if any(damaged for (damaged,) in workers.gather([float(is_damaged)])):
        raise UserError(
            f"no checkpoint in {run.checkpoints} is intact; restore one of them, "
            "or start a new run with --run"
        )
    return None


def share_history(run: RunFolder, workers: Workers, source: int | None, writes: bool) -> None:
    """Bring the histories of all machines up to the source's; if there is none, to the longest."""
    if workers.count == 1:
        return
    if source is None:
        size = run.metrics.stat().st_size if writes and run.metrics.exists() else -1
        sizes = [size for (size,) in workers.gather([size])]
        source = sizes.index(max(sizes))
    for path in (run.metrics, run.samples):
        mine = path.read_bytes() if (writes or workers.rank == source) and path.exists() else b""
        digests = workers.gather_json([writes, hashlib.sha256(mine).hexdigest()])
        if all(digest == digests[source][1] for is_writer, digest in digests if is_writer):
            continue
        content = workers.broadcast_bytes(mine, source)
        if writes and workers.rank != source:
            write_whole(path, content)
