"""Monitors every machine of a run and copies what it sees to every copy of the run folder."""

import time
from collections.abc import Callable, Sequence

import torch

from dragoman.cluster.processes import Workers
from dragoman.documents import encode, parse
from dragoman.records import MachineSample
from dragoman.runs.folder import RunFolder
from dragoman.runs.monitor import Monitor
from dragoman.training.recorder import Recorder

SECONDS_BETWEEN_COLLECTIONS = 10.0


class MachineWatch:
    """The monitors of all machines, as one worker sees them."""

    def __init__(
        self,
        run: RunFolder,
        workers: Workers,
        recorder: Recorder,
        clock_leads: Sequence[float],
        step: Callable[[], int],
    ) -> None:
        self._workers = workers
        self._recorder = recorder
        self._host = workers.hosts[workers.rank]
        self._collected = time.monotonic()
        self._monitor: Monitor | None = None
        if workers.is_first_on_host:
            gpus = torch.cuda.device_count() if workers.device.type == "cuda" else 0
            used = min(gpus, workers.hosts.count(self._host))
            self._monitor = Monitor(run.path, used, clock_leads[workers.rank], step, recorder.say)
            self._path = run.monitor_of(self._host) if recorder.writes else None

    def start(self) -> None:
        """Begin to watch."""
        if self._monitor:
            self._monitor.start(self._path)

    @property
    def is_due(self) -> bool:
        """Whether to collect; worker 0's word counts for all."""
        return time.monotonic() - self._collected >= SECONDS_BETWEEN_COLLECTIONS

    def collect(self) -> None:
        """Bring every machine's latest samples and faults to everyone who writes a run folder."""
        self._collected = time.monotonic()
        taken = self._monitor.take() if self._monitor else []
        own = [
            self._host,
            [encode(sample) for sample in taken],
            self._recorder.take_failures(),
        ]
        for host, lines, failures in self._workers.gather_json(own):
            is_own = host == self._host
            samples = [parse(MachineSample, line) for line in lines]
            self._recorder.machine(host, samples, is_own=is_own)
            for step, reason in failures if not is_own else ():
                self._recorder.failed_elsewhere(host, step, reason)

    def close(self) -> None:
        """Stop watching."""
        if self._monitor:
            self._monitor.close()
