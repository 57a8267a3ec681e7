"""A worker's side of supervision: it shows that it is alive, hears requests, says why it fails."""

import json
import os
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import asdict
from datetime import timedelta
from pathlib import Path

import torch.distributed as distributed
from torch.distributed import PrefixStore

from dragoman.cluster.control_store import (
    HEARTBEAT_VARIABLE,
    Attempt,
    ControlStore,
    launched_control_store,
)
from dragoman.cluster.engine import default_store
from dragoman.cluster.failures import describe_error, is_echo, read_failure
from dragoman.cluster.processes import Workers
from dragoman.cluster.world import World, read_world
from dragoman.errors import SystemFault, is_disk_full, is_lack_of_memory, is_mistake
from dragoman.wording import plural

SECONDS_BETWEEN_BEATS = 0.25
SECONDS_BETWEEN_LOOKS = 1.0  # At the control store, which is on another machine.
SECONDS_TO_HEAR = 5.0  # What was asked for last.
SECONDS_TO_ASK = timedelta(seconds=2)  # Whether another worker has told what ends this one.
BEAT_BYTES = 128  # Every beat takes the place of the one before.


class Supervision:
    """Beats a heart for the agent and reads the launcher's control store, in the background.

    Without a launcher (a run alone, under torchrun or srun) it does nothing.
    """

    def __init__(self, worker: int) -> None:
        self.worker = worker
        self.progress: str | None = None
        self.is_asked_to_stop = False
        self.saves_asked = 0
        self._control: ControlStore | None = launched_control_store()
        self._has_failed = False
        self._ended = threading.Event()
        if self._control:
            self.saves_asked = self._control.saves_asked()
            path = Path(os.environ[HEARTBEAT_VARIABLE]) / os.environ["LOCAL_RANK"]
            self._heart = os.open(path, os.O_WRONLY | os.O_CREAT)
            # Apart: the control store does not answer while a link is cut, and the heart beats on.
            threading.Thread(target=self._live, daemon=True).start()
            self._listener = threading.Thread(
                target=self._listen, args=(self._control,), daemon=True
            )
            self._listener.start()

    @property
    def is_launched(self) -> bool:
        """Whether a launcher started this worker."""
        return self._control is not None

    def note_step(self, step: int) -> None:
        """Take note of where training is."""
        self._note_progress(f"at step {step}")

    def note_parts(self, parts: int) -> None:
        """Take note of how many parts of a text are made."""
        self._note_progress(f"after {plural(parts, 'part')}")

    def note_parts_found(self, parts: int) -> int:
        """Note how many there are as an attempt begins; return how many the first one found."""
        return self._control.note_parts_found(parts) if self._control else parts

    def note_saved(self, number: int) -> None:
        """Tell the launcher that the checkpoint it asked for is on disk."""
        if self._control:
            self._control.note_saved(number)

    def conclude(self, workers: Workers, result: str) -> None:
        """Tell the launcher that all workers have done their work, and what it came to.

        Whatever happens to a worker from here on, nothing is done again.
        """
        if self._control and workers.is_first:
            self._control.post_result(result)
        workers.barrier()  # Nobody leaves before that is said.

    def post_failure(self, error: BaseException) -> None:
        """Say once why this worker fails, before its end makes others fail."""
        if self._control is None or self._has_failed:
            return
        self._has_failed = True
        failure = describe_error(error, self.worker, self.progress)
        # Without a store the launcher is gone, and nobody hears of it.
        with suppress(distributed.DistNetworkError):
            # What comes back in another attempt without progress will come back for ever.
            earlier = self._control.failures()[: self._control.failures_before_rendezvous()]
            comes_back = not failure.is_echo and any(
                (failure.progress, failure.reason) == (one.progress, one.reason) for one in earlier
            )
            self._control.post_failure(failure)
            if failure.is_final or comes_back:
                self._control.give_up(failure)

    def begin_attempt(self, workers: Workers) -> Attempt | None:
        """Take note of a new attempt with these workers; None without a launcher."""
        if self._control is None:
            return None
        hosts = list(dict.fromkeys(workers.hosts))
        mine = asdict(self._control.begin_attempt(hosts)) if workers.is_first else None
        attempt = workers.broadcast(mine)
        cause = read_failure(attempt["cause"]) if attempt["cause"] else None
        return Attempt(**{**attempt, "cause": cause})

    def end(self) -> None:
        """Hear no more requests; the heart beats until the process is gone."""
        self._ended.set()
        if self._control:
            # Python aborts where its end meets a thread that talks to the control store.
            self._listener.join(SECONDS_TO_HEAR)

    def _note_progress(self, progress: str) -> None:
        """If this process is killed, its agent still knows."""
        self.progress = progress
        if self._control:
            self._beat()

    def _live(self) -> None:
        while True:
            self._beat()
            time.sleep(SECONDS_BETWEEN_BEATS)

    def _beat(self) -> None:
        beat = json.dumps({"progress": self.progress, "monotonic": time.monotonic()})
        # A disk that is full now may have room for the next beat.
        with suppress(OSError):
            os.pwrite(self._heart, beat.ljust(BEAT_BYTES).encode(), 0)

    def _listen(self, control: ControlStore) -> None:
        while not self._ended.wait(SECONDS_BETWEEN_LOOKS):
            self._look(control)

    def _look(self, control: ControlStore) -> None:
        try:
            self.is_asked_to_stop = control.is_asked_to_stop()
            self.saves_asked = control.saves_asked()
        except distributed.DistNetworkError:
            # The control store does not come back, and nobody would hear of what this worker does.
            if not self._ended.is_set():
                os._exit(1)


@contextmanager
def supervised() -> Iterator[Supervision]:
    """Work under supervision, if there is a launcher; it hears why a worker fails."""
    world = read_world()
    try:
        supervision = Supervision(world.rank)
    except distributed.DistError:
        print("dragoman: the launcher cannot be reached", file=sys.stderr)
        sys.exit(1)
    try:
        yield supervision
    except BaseException as error:
        supervision.post_failure(error)
        is_clear = _is_told_in_a_line(error) or isinstance(error, TimeoutError)
        if supervision.is_launched and (is_clear or is_echo(error) or is_lack_of_memory(error)):
            # The launcher tells the cause once; echoes and repetitions would only hide it.
            sys.exit(1)
        if world.count > 1 and distributed.is_initialized():
            _leave_if_told(error, world)
        raise
    finally:
        supervision.end()


def _is_told_in_a_line(error: BaseException) -> bool:
    return is_mistake(error) or is_disk_full(error) or isinstance(error, SystemFault)


def _leave_if_told(error: BaseException, world: World) -> None:
    """Under torchrun or Slurm: let one worker tell what many meet, and no echo have a traceback."""
    store = PrefixStore("dragoman", default_store())
    if is_echo(error):
        with suppress(RuntimeError):
            if store.check(["told"]):
                sys.exit(1)
        raise SystemFault("connection to another worker lost; see its log") from None
    if not _is_told_in_a_line(error):
        return
    with suppress(RuntimeError):
        is_first = store.compare_set("told", "", str(world.rank)) == str(world.rank).encode()
        store.set(f"left/{world.rank}", "")
        if world.rank == 0:
            # The store may end with this process: let others ask who have met the same.
            places = [f"left/{rank}" for rank in range(world.count)]
            with suppress(distributed.DistStoreError):
                store.wait(places, SECONDS_TO_ASK)
        if not is_first:
            sys.exit(2 if is_mistake(error) else 1)
