"""Faults of a run over `--hosts`: of its processes, its machines and its links."""

import random
import shutil
import signal
import subprocess
import time
import uuid
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import psutil

from fault_outcomes import Finding, Outcome, worst
from forked import Template
from machines import Machine, Network, network, run_on, shell, start_all, wait_for_ssh
from process_faults import (
    MARK,
    SETTINGS,
    Fault,
    Life,
    Stage,
    judge_end,
    marked,
    prepare_corpus,
    send,
)

HOSTS = ("hostA", "hostB")


@dataclass(frozen=True)
class HostStage:
    """Two machines with a worker each, and a folder each that the other does not see."""

    net: Network
    place: Path
    seconds: float

    def start(self) -> Life:
        """Give the command that begins the run, or goes on with it."""
        run, mark, errors = self.net.folder / "private/run", uuid.uuid4().hex, self.place / "errors"
        where = "--run", run, "--hosts", ",".join(f"{name}:1" for name in HOSTS)
        words = self.net.dragoman("train", self.place / "corpus/config.toml", *where, *SETTINGS)
        with open(errors, "wb") as stream:
            launcher = subprocess.Popen(
                words,
                stdout=stream,
                stderr=stream,
                env=self.net.environment() | {MARK: mark, "OMP_NUM_THREADS": "1"},
            )
        return Life(launcher, errors, partial(self._processes, mark))

    def clear(self) -> None:
        """Remove the run from every machine."""
        for machine in self.net.machines:
            shutil.rmtree(run_on(self.net, machine), ignore_errors=True)

    def judge(self) -> Finding:
        """Whether the run came to the end of the undisturbed one, on every machine that has it.

        A killed machine has lost its folder; killed when all is done, it gets no other.
        """
        runs = [run_on(self.net, machine) for machine in self.net.machines]
        ends = [run for run in runs if (run / "checkpoints" / "checkpoints.json").exists()]
        if not ends:
            return Finding(Outcome.LOST, "no machine has the run")
        return worst([judge_end(self.place / "reference", end) for end in ends])

    def _processes(self, mark: str) -> Iterator[psutil.Process]:
        yield from marked(mark)
        for machine in self.net.machines:
            for pid in shell(f"ip netns pids {machine.namespace}").split():
                with suppress(psutil.NoSuchProcess):
                    yield psutil.Process(int(pid))


@contextmanager
def host_stage(place: Path, template: Template) -> Iterator[HostStage]:
    """Make two machines, prepare a corpus, and train without faults."""
    place.mkdir(parents=True, exist_ok=True)
    prepare_corpus(place)
    template.start()
    with network(place, HOSTS, template.place) as net:
        start_all(net)
        begin = time.monotonic()
        life = HostStage(net, place, 0.0).start()
        assert life.end().code == 0, life.errors.read_text()
        seconds = time.monotonic() - begin
        shutil.copytree(run_on(net, net.machines[0]), place / "reference")
        yield HostStage(net, place, seconds)


def _on_a_machine(breaks: str, mends: str, longest: float) -> Fault:
    """Break one machine in one way, and mend it after a while."""

    def fault(stage: Stage, life: Life, generator: random.Random) -> bool:
        assert isinstance(stage, HostStage)
        if life.launcher.poll() is not None:
            return False
        machine: Machine = generator.choice(stage.net.machines)
        getattr(machine, breaks)()
        time.sleep(generator.uniform(0.5, longest))
        getattr(machine, mends)()
        wait_for_ssh(stage.net)
        return True

    return fault


HOST_FAULTS: dict[str, Fault] = {
    "hosts: kill -9 of the launcher": send(signal.SIGKILL, "launcher"),
    "hosts: kill -9 of an agent": send(signal.SIGKILL, "agent"),
    "hosts: kill -9 of a worker": send(signal.SIGKILL, "worker"),
    "hosts: a machine killed": _on_a_machine("kill", "start", 8.0),
    "hosts: a link cut": _on_a_machine("cut", "mend", 20.0),
}
