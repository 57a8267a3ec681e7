"""`--workers` and `--hosts`: start agents here and over ssh, keep them going, end them together."""

import os
import secrets
import shlex
import signal
import socket
import subprocess
import sys
import threading
import time
import uuid
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import accumulate
from pathlib import Path
from types import FrameType

# Before torch reads it: the engine's chatter would bury what Dragoman says.
os.environ.setdefault("TORCH_CPP_LOG_LEVEL", "ERROR")

from torch._C._distributed_c10d import TCPStore

from dragoman.cluster.agent import Orders
from dragoman.cluster.control_store import (
    COMMAND_VARIABLE,
    STORE_TIMEOUT,
    ControlStore,
    Failure,
    first_cause,
)
from dragoman.cluster.network import LOOPBACK, route_to_others
from dragoman.config import DistributedSettings
from dragoman.console import say
from dragoman.errors import SystemFault, UserError

SSH = ["ssh", "-o", "BatchMode=yes", "-o", "ConnectTimeout=10"]
SSH += ["-o", "ServerAliveInterval=5", "-o", "ServerAliveCountMax=3"]
SECONDS_BETWEEN_TRIES = 5.0
SECONDS_TO_SAVE = 60.0
FORWARDED_VARIABLES = ("OMP_", "ONEDNN_", "NCCL_", "GLOO_", "TORCH_", "CUDA_")


@dataclass(frozen=True)
class Host:
    """A machine and how many workers it runs; "" is this machine."""

    name: str
    workers: int


@dataclass(frozen=True)
class Job:
    """What to run everywhere."""

    command: list[str]  # Of a worker, after the interpreter; {config} stands for its config file.
    config: str
    command_line: str = ""  # What the user typed; the same goes on with the run.


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
                f"--hosts {text}: write {host} alone, and `User {user}` for it in ~/.ssh/config"
            )
        hosts.append(Host(name, int(workers or "1")))
    names = [host.name for host in hosts]
    if len(set(names)) < len(names):
        raise UserError(f"--hosts {text}: every host may be named once; give its workers as HOST:N")
    return hosts


def unreachable(hosts: Sequence[Host]) -> list[str]:
    """Names of the hosts that do not answer, all asked at once."""
    names = [host.name for host in hosts if host.name]
    with ThreadPoolExecutor(len(hosts)) as threads:
        answers = threads.map(_answers, names)
        return [name for name, answer in zip(names, answers, strict=True) if not answer]


def launch(hosts: Sequence[Host], job: Job, settings: DistributedSettings) -> str | None:
    """Run a job on all hosts until it is over, and return what it came to, if it says.

    A fault for good is raised with its first cause.
    """
    launcher = Launcher(hosts, job, settings)
    launcher.run()
    return launcher.control.result()


class Launcher:
    """Keeps the store, the agents and the peace."""

    def __init__(self, hosts: Sequence[Host], job: Job, settings: DistributedSettings) -> None:
        self.hosts = list(hosts)
        self.job = job
        self.settings = settings
        total = sum(host.workers for host in hosts)
        self.min_workers = settings.min_workers or total
        if self.min_workers > total:
            raise UserError(
                f"distributed.min_workers = {self.min_workers}, but there are only {total} workers"
            )
        self.run_id = uuid.uuid4().hex
        self.secret = secrets.token_hex()
        remote = [host.name for host in hosts if host.name]
        address = route_to_others(remote, settings.interface).address if remote else LOOPBACK
        self._store, self.endpoint = _listen(address, settings.port)
        self.control = ControlStore(self._store)
        self.agents: dict[str, subprocess.Popen[bytes]] = {}
        self.lost: dict[str, float] = {}  # When to try a lost host again.
        self.interrupts = 0

    def run(self) -> None:
        """Start everything and wait for the end."""
        with self._interruptible():
            try:
                for host in self.hosts:
                    self._start(host)
                self._watch()
            finally:
                self._end_all()

    def _watch(self) -> None:
        """Until all agents are done: notice lost machines, bring them back, or give up."""
        finished: set[str] = set()
        asked = 0
        while len(finished) < len(self.hosts):
            time.sleep(0.2)
            if self.interrupts > asked:
                asked = self.interrupts
                if asked > 1:
                    say("left at once; checkpoints that were saved are whole")
                    raise KeyboardInterrupt
                say("finishing the step and saving; Ctrl-C once more to leave at once")
                self.control.ask_to_stop()
            for host in self.hosts:
                code = self._exit_code(host)
                if host.name in finished or code is None:
                    continue
                if code == 0:
                    finished.add(host.name)
                elif host.name not in self.lost:
                    self._note_exit(host, code)
                elif not self.interrupts and time.monotonic() > self.lost[host.name]:
                    self._bring_back(host)
            if self.interrupts and self.lost and not finished and not self._can_train():
                # The others wait for machines that nobody brings back, and cannot save.
                name = next(iter(self.lost))
                raise SystemFault(f"{name}: the machine was lost{self._advice()}")
            if self.lost and finished:
                # The others are through; nobody waits for the lost ones any more.
                finished |= self.lost.keys()

    def _note_exit(self, host: Host, code: int) -> None:
        """Tell whether an agent that is gone is gone for good, or with its machine."""
        over = self.control.given_up()
        if over is None and not self.control.was_up(host.name):
            there = f"ssh {host.name} " if host.name else ""
            raise UserError(
                f"{host.name or 'the agent'} did not come up (exit {code}); try "
                f"`{there}{sys.executable} -m dragoman --version` by hand"
            )
        if over is not None or all(self._exit_code(one) is not None for one in self.hosts):
            self._raise_final(host, code, over)
        self.control.post_failure(
            Failure(host.name, None, None, "the machine was lost", time.time())
        )
        if self.interrupts:
            say(f"{host.name} is lost (exit {code})")
        else:
            say(f"{host.name} is lost (exit {code}); trying to bring it back")
        self.lost[host.name] = time.monotonic() + SECONDS_BETWEEN_TRIES

    def _bring_back(self, host: Host) -> None:
        """Try to start a lost machine's agent, once what is running has been saved."""
        self.lost[host.name] = time.monotonic() + SECONDS_BETWEEN_TRIES
        if not _answers(host.name):
            return
        self._save_first()
        if self.interrupts:
            return  # Nobody is to join a run that ends.
        say(f"{host.name} is back")
        self._start(host)
        del self.lost[host.name]

    def _save_first(self) -> None:
        """A joining machine restarts all workers; let nothing be lost by it."""
        number = self.control.ask_to_save()
        deadline = time.monotonic() + SECONDS_TO_SAVE
        while self.control.saves_answered() < number:
            if self.interrupts or not self._can_train():
                return
            if time.monotonic() > deadline:
                say(
                    f"no checkpoint on every disk within {SECONDS_TO_SAVE:.0f} s; the steps since "
                    "the last one will be made again"
                )
                return
            time.sleep(0.1)

    def _can_train(self) -> bool:
        """Whether the machines that are there have workers enough."""
        there = [host for host in self.hosts if self._exit_code(host) is None]
        return sum(host.workers for host in there) >= self.min_workers

    def _raise_final(self, host: Host, code: int, over: Failure | None) -> None:
        cause = over
        if cause is None or cause.is_echo:
            # What an agent heard of last need not be what happened first.
            cause = first_cause(self.control.failures_of_attempt()) or over
        if cause and cause.is_mistake:
            raise UserError(str(cause))
        what = str(cause) if cause else f"{host.name or 'the agent'} ended with {code}"
        raise SystemFault(f"{what}{self._advice()}")

    def _advice(self) -> str:
        line = self.job.command_line
        return f"\nresume the run with: {line}" if line else ""

    def _exit_code(self, host: Host) -> int | None:
        return self.agents[host.name].poll()

    def _start(self, host: Host) -> None:
        """Start a host's agent; it must be the main thread that does, for they die together."""
        python = [sys.executable, "-m", "dragoman.cluster.agent"]
        if host.name:
            words = " ".join(shlex.quote(word) for word in python)
            command = [*SSH, host.name, f"cd {shlex.quote(str(Path.cwd()))} && exec {words}"]
        else:
            command = python
        several = len(self.hosts) > 1
        agent = subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE if several else None,
            stderr=subprocess.STDOUT if several else None,
            start_new_session=True,  # Ctrl-C is for the launcher alone.
        )
        if several:
            threading.Thread(target=_stream, args=(host.name, agent), daemon=True).start()
        assert agent.stdin
        try:
            agent.stdin.write(self._orders(host).to_line().encode())
            agent.stdin.flush()
        except BrokenPipeError:
            pass  # Its exit code will tell.
        self.agents[host.name] = agent

    def _orders(self, host: Host) -> Orders:
        return Orders(
            host=host.name,
            peers=[one.name for one in self.hosts if one.name != host.name],
            workers=host.workers,
            min_workers=self.min_workers,
            min_machines=self._min_machines(),
            max_machines=len(self.hosts),
            store=self.endpoint,
            run_id=self.run_id,
            secret=self.secret,
            command=self.job.command,
            config=self.job.config,
            interface=self.settings.interface,
            wait_seconds=self.settings.wait_seconds,
            timeout_seconds=self.settings.timeout_seconds,
            max_restarts=self.settings.max_restarts,
            variables={COMMAND_VARIABLE: self.job.command_line}
            | {
                name: value
                for name, value in os.environ.items()
                if name.startswith(FORWARDED_VARIABLES)
            },
        )

    def _min_machines(self) -> int:
        """Fewest machines that can have `min_workers` workers."""
        largest_first = sorted((host.workers for host in self.hosts), reverse=True)
        workers = accumulate(largest_first)
        return 1 + sum(count < self.min_workers for count in workers)

    def _end_all(self) -> None:
        """Close every agent's standard input, which ends it and its workers."""
        for agent in self.agents.values():
            if agent.stdin:
                try:
                    agent.stdin.close()
                except BrokenPipeError:
                    continue
        for agent in self.agents.values():
            try:
                agent.wait(timeout=10)
            except subprocess.TimeoutExpired:
                agent.kill()

    @contextmanager
    def _interruptible(self) -> Iterator[None]:
        def count(_: int, __: FrameType | None) -> None:
            self.interrupts += 1

        numbers = (signal.SIGINT, signal.SIGTERM)
        before = [signal.signal(number, count) for number in numbers]
        try:
            yield
        finally:
            for number, handler in zip(numbers, before, strict=True):
                signal.signal(number, handler)


def _listen(address: str, port: int) -> tuple[TCPStore, str]:
    """Open the store on one address only; by itself it would listen on every interface."""
    listener = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listener.bind((address, port))
    except OSError as error:
        raise UserError(f"distributed.port = {port}: cannot listen on {address}: {error}") from None
    port = listener.getsockname()[1]
    store = TCPStore(
        address,
        port,
        is_master=True,
        wait_for_workers=False,
        timeout=STORE_TIMEOUT,
        master_listen_fd=listener.detach(),
    )
    return store, f"{address}:{port}"


def _answers(name: str) -> bool:
    """Whether a host can be reached."""
    try:
        return subprocess.run([*SSH, name, "true"], capture_output=True, timeout=15).returncode == 0
    except subprocess.TimeoutExpired:
        return False


def _stream(name: str, agent: subprocess.Popen[bytes]) -> None:
    """Show an agent's output, each line with its host's name."""
    assert agent.stdout
    for line in agent.stdout:
        say(f"{name} | {line.decode('utf-8', 'replace').rstrip()}")
