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
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from itertools import accumulate
from pathlib import Path

from dragoman.child_process import QUIET, QUIET_VARIABLE, SAFE_PATH, SAFE_PATH_VARIABLE
from dragoman.cluster.control_store import COMMAND_VARIABLE, ControlStore, listen
from dragoman.cluster.failures import Failure, first_cause
from dragoman.cluster.hosts import SSH, Host, Knock
from dragoman.cluster.network import LOOPBACK, route_to_others
from dragoman.cluster.orders import Orders
from dragoman.config import DistributedSettings
from dragoman.console import say
from dragoman.errors import FIX_FIRST, SystemFault, UserError
from dragoman.stop_signals import stop_signals_caught

SECONDS_BETWEEN_LOOKS = 0.2
SECONDS_BETWEEN_TRIES = 5.0
SECONDS_TO_SAVE = 60.0
SECONDS_TO_LEAVE = 60.0  # Once all is done.
SECONDS_TO_END = 10.0  # Once told to.
# Of an agent, which shows every second that it is alive; and until it has come up.
SECONDS_OF_SILENCE, SECONDS_TO_COME_UP = 60.0, 300.0
SECONDS_TO_BE_MISSED = 5.0  # Of that silence, when others give up waiting for a machine.
STALL_SECONDS = 2.0  # A launcher that comes to look so late stood still itself.
FORWARDED_VARIABLES = ("OMP_", "ONEDNN_", "NCCL_", "GLOO_", "TORCH_", "CUDA_")


@dataclass(frozen=True)
class Job:
    """What to run everywhere."""

    command: list[str]  # Of a worker, after the interpreter; its config file, if any, comes last.
    config: str = ""
    command_line: str = ""  # What the user typed; the same goes on with the run.
    has_checkpoints: bool = True  # Otherwise nothing is to be saved before workers end.


def launch(hosts: Sequence[Host], job: Job, settings: DistributedSettings) -> str:
    """Run a job on all hosts until it is done, and return what it came to.

    A fault for good is raised with its first cause.
    """
    return Launcher(hosts, job, settings).run()


@dataclass
class RunningAgent:
    """An agent that was started, and what was heard of it."""

    process: subprocess.Popen[bytes]
    start: int  # So many were started there before.
    heard: float  # When.
    beat: int | None = None


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
        self._store, self.endpoint = listen(address, settings.port)
        self.control = ControlStore(
            self._store, self.run_id, bytes.fromhex(self.secret), self._tell_forgery
        )
        self.agents: dict[str, RunningAgent] = {}
        self.lost: dict[str, float] = {}  # When to try a lost host again.
        self.knocks: dict[str, Knock] = {}  # At lost hosts, not yet answered.
        self.interrupts = self._heeded = 0
        self._looked = 0.0

    def run(self) -> str:
        """Start everything, wait until all is done, and return what it came to."""
        with stop_signals_caught(self._note_interrupt):
            try:
                for host in self.hosts:
                    self._start(host)
                self._looked = time.monotonic()
                while (result := self.control.result()) is None:
                    time.sleep(SECONDS_BETWEEN_LOOKS)
                    self._heed_interrupts()
                    self._look(time.monotonic())
                self._let_leave()
                return result
            finally:
                self._end_all()

    def _note_interrupt(self, _: signal.Signals) -> None:
        self.interrupts += 1

    def _heed_interrupts(self) -> None:
        if self.interrupts == self._heeded:
            return
        self._heeded = self.interrupts
        if not self.job.has_checkpoints:
            raise KeyboardInterrupt
        if self.interrupts > 1:
            say("quit at once; the checkpoints already saved are intact")
            raise KeyboardInterrupt
        say("finishing the step and saving; press Ctrl-C again to quit now")
        self.control.ask_to_stop()

    def _look(self, now: float) -> None:
        """Notice agents that are gone or stand still, bring machines back, or give up."""
        if now - self._looked > STALL_SECONDS:
            for agent in self.agents.values():
                agent.heard = now  # What was said meanwhile is heard only now.
        self._looked = now
        for host in self.hosts:
            code = self._exit_code(host)
            if code is None:
                self._end_if_silent(host, now)
            elif self.control.result() is not None:
                return
            elif host.name not in self.lost:
                self._note_exit(host, code)
            elif not self.interrupts and now > self.lost[host.name] and self._is_back(host.name):
                self._bring_back(host)
        if self.interrupts and self.lost and not self._can_train():
            # The others wait for machines that nobody brings back, and cannot save.
            name = next(iter(self.lost))
            raise SystemFault(f"{name}: the machine was lost{self._advice()}")

    def _end_if_silent(self, host: Host, now: float) -> None:
        """Kill an agent that was stopped for good: it would never say how its workers fare."""
        agent = self.agents[host.name]
        beat = self.control.last_beat(host.name, agent.start)
        if beat != agent.beat:
            agent.beat, agent.heard = beat, now
        silence = now - agent.heard
        if silence > (SECONDS_TO_COME_UP if beat is None else SECONDS_OF_SILENCE):
            name = host.name or socket.gethostname()
            reason = f"no heartbeat from its agent for {silence:.0f} s (stopped or hung)"
            self.control.post_failure(Failure(name, None, None, reason, time.time()))
            agent.process.kill()
            agent.heard = now

    def _let_leave(self) -> None:
        """All is done; who does not leave is not waited for for ever."""
        deadline = time.monotonic() + SECONDS_TO_LEAVE
        while any(self._exit_code(host) is None for host in self.hosts):
            if time.monotonic() > deadline or self.interrupts > 1:
                return
            time.sleep(SECONDS_BETWEEN_LOOKS)

    def _note_exit(self, host: Host, code: int) -> None:
        """Tell whether an agent that is gone is gone for good, or with its machine."""
        over = self.control.given_up()
        if over is None and self.control.last_beat(host.name, start=0) is None:
            command = f"{sys.executable} -m dragoman --version"
            if host.name:
                command = f"ssh {host.name} {shlex.quote(_in_this_folder(command))}"
            raise UserError(
                f"{host.name or 'the agent'} did not start (exit {code}); try `{command}` yourself"
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

    def _is_back(self, name: str) -> bool:
        """Ask a lost machine, without waiting for its answer."""
        if name not in self.knocks:
            self.knocks[name] = Knock(name)
        answer = self.knocks[name].answer()
        if answer is not None:
            del self.knocks[name]
            self.lost[name] = time.monotonic() + SECONDS_BETWEEN_TRIES
        return bool(answer)

    def _bring_back(self, host: Host) -> None:
        """Start a lost machine's agent, once what is running has been saved."""
        if self.job.has_checkpoints:
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
                    f"the checkpoint did not reach every disk within {SECONDS_TO_SAVE:.0f} s; the "
                    "steps since the last one will be repeated"
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
        what = str(cause) if cause else f"{host.name or 'the agent'} exited with code {code}"
        missing = [name for name in self.agents if name != host.name and self._is_missing(name)]
        gone = f"; {', '.join(missing)} did not come back" if missing else ""
        advice = "" if FIX_FIRST in what else self._advice()
        raise SystemFault(f"{what}{gone}{advice}")

    def _is_missing(self, name: str) -> bool:
        # Over a link that was cut ssh takes longer to end than machines may be told to wait.
        silence = time.monotonic() - self.agents[name].heard
        return name in self.lost or silence > SECONDS_TO_BE_MISSED

    def _advice(self) -> str:
        line = self.job.command_line
        return f"\nresume the run with: {line}" if line else ""

    def _exit_code(self, host: Host) -> int | None:
        return self.agents[host.name].process.poll()

    def _tell_forgery(self, name: str) -> None:
        say(
            f"someone without the run's secret wrote the notice {name!r} to its control store at "
            f"{self.endpoint}; it was ignored"
        )

    def _start(self, host: Host) -> None:
        """Start a host's agent; it must be the main thread that does, for they die together."""
        python = [sys.executable, "-m", "dragoman.cluster.agent"]
        if host.name:
            words = " ".join(shlex.quote(word) for word in python)
            quiet = f"{QUIET_VARIABLE}={QUIET} {SAFE_PATH_VARIABLE}={SAFE_PATH}"
            command = [*SSH, host.name, _in_this_folder(f"{quiet} exec {words}")]
        else:
            command = python
        several = len(self.hosts) > 1
        before = self.agents.get(host.name)
        start = before.start + 1 if before else 0
        process = subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE if several else None,
            stderr=subprocess.STDOUT if several else None,
            start_new_session=True,  # Ctrl-C is for the launcher alone.
            env=os.environ | {SAFE_PATH_VARIABLE: SAFE_PATH},
        )
        if several:
            threading.Thread(target=_stream, args=(host.name, process), daemon=True).start()
        assert process.stdin
        # A pipe that is broken already is told by the exit code.
        with suppress(BrokenPipeError):
            process.stdin.write(self._orders(host, start).to_line().encode())
            process.stdin.flush()
        self.agents[host.name] = RunningAgent(process, start, time.monotonic())

    def _orders(self, host: Host, start: int) -> Orders:
        return Orders(
            host=host.name,
            start=start,
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
        for knock in self.knocks.values():
            knock.close()
        processes = [agent.process for agent in self.agents.values()]
        for process in processes:
            if process.stdin:
                with suppress(BrokenPipeError):
                    process.stdin.close()
        deadline = time.monotonic() + SECONDS_TO_END
        for process in processes:
            try:
                process.wait(timeout=max(0.0, deadline - time.monotonic()))
            except subprocess.TimeoutExpired:
                process.kill()


def _in_this_folder(command: str) -> str:
    """A command for another machine, whose shell begins elsewhere."""
    return f"cd {shlex.quote(str(Path.cwd()))} && {command}"


def _stream(name: str, agent: subprocess.Popen[bytes]) -> None:
    """Show an agent's output, each line with its host's name."""
    assert agent.stdout
    for line in agent.stdout:
        say(f"{name} | {line.decode('utf-8', 'replace').rstrip()}")
