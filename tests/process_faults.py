"""Faults of a launched run on this machine: kills, stops, disks, strangers at its ports."""

import errno
import json
import os
import random
import shutil
import signal
import socket
import subprocess
import time
import uuid
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Protocol

import psutil

from dragoman.cluster.control_store import STORE_VARIABLE, connect
from fault_outcomes import Ended, Finding, Outcome, judge_refusal, worst
from support import (
    SMALL,
    dragoman_command,
    final_tensors,
    run_dragoman,
    wait_until,
    write_small_text,
)

STEPS = 40
SETTINGS = [*SMALL, f"training.steps={STEPS}", "evaluation.every_steps=20"]
SETTINGS += ["distributed.timeout_seconds=8"]
SECONDS_TO_HANG = 600.0  # An agent that stands still before its first word is waited for for 300.
SECONDS_TO_VANISH = 30.0
MOST_LIVES = 8
MARK = "DRAGOMAN_TRIAL"  # In the environment of every process of one trial.
SMALL_DISK = "24m"
NOTICES = ("over", "result", "stop", "save", "saved", "failure/1", "rendezvous", "attempt")


class Stage(Protocol):
    """Where a run is disturbed, beside one that was not."""

    @property
    def seconds(self) -> float:
        """How long the undisturbed run took."""
        ...

    def start(self) -> "Life":
        """Give the command that begins the run, or goes on with it."""
        ...

    def clear(self) -> None:
        """Remove the run."""
        ...

    def judge(self) -> "Finding":
        """Whether the run came to the end of the undisturbed one."""
        ...


@dataclass
class Life:
    """One start of the command."""

    launcher: subprocess.Popen[bytes]
    errors: Path
    find: Callable[[], Iterable[psutil.Process]]  # The processes of the run, dead ones too.

    def processes(self, role: str = "") -> list[psutil.Process]:
        """Those that are alive, of one role or of all."""
        found = []
        for process in self.find():
            with suppress(psutil.Error, OSError):
                its_role = role_of(process)
                if process.status() != psutil.STATUS_ZOMBIE and its_role and role in ("", its_role):
                    found.append(process)
        return found

    def end(self) -> Ended:
        """Wait for the launcher's end; what does not end is killed."""
        try:
            code: int | None = self.launcher.wait(SECONDS_TO_HANG)
        except subprocess.TimeoutExpired:
            code = None
        return Ended(code, b"", self.errors.read_bytes().decode("utf-8", "replace"))

    def orphans(self) -> list[psutil.Process]:
        """Processes that outlive the launcher; killed, so that they disturb no other trial."""
        deadline = time.monotonic() + SECONDS_TO_VANISH
        while (left := self.processes()) and time.monotonic() < deadline:
            time.sleep(0.1)
        for process in left:
            with suppress(psutil.Error):
                process.kill()
        return left


def role_of(process: psutil.Process) -> str:
    """What a process is in a run; nothing if it is none of Dragoman's."""
    words = process.cmdline()
    if "dragoman.cluster.agent" in words:
        return "agent"
    if "train" not in words:
        return ""
    return "worker" if "LOCAL_RANK" in process.environ() else "launcher"


def marked(mark: str) -> Iterator[psutil.Process]:
    """All processes with that mark."""
    for process in psutil.process_iter():
        with suppress(psutil.Error, OSError):
            if process.environ().get(MARK) == mark:
                yield process


@dataclass(frozen=True)
class LocalStage:
    """Two workers on this machine."""

    place: Path
    run: Path
    seconds: float

    def start(self) -> Life:
        """Give the command that begins the run, or goes on with it."""
        config, mark, errors = (
            self.place / "corpus/config.toml",
            uuid.uuid4().hex,
            self.place / "errors",
        )
        words = ["--run", str(self.run), "--workers", "2", *SETTINGS]
        with open(errors, "wb") as stream:
            launcher = subprocess.Popen(
                dragoman_command("train", config, *words),
                stdout=stream,
                stderr=stream,
                env=os.environ | {MARK: mark, "OMP_NUM_THREADS": "1"},
            )
        return Life(launcher, errors, partial(marked, mark))

    def clear(self) -> None:
        """Remove the run."""
        shutil.rmtree(self.run, ignore_errors=True)

    def judge(self) -> Finding:
        """Whether the run came to the end of the undisturbed one."""
        return judge_end(self.place / "reference", self.run)


def build_stage(place: Path) -> LocalStage:
    """Prepare a corpus, and train without faults."""
    place.mkdir(parents=True, exist_ok=True)
    prepare_corpus(place)
    stage = LocalStage(place, place / "reference", 0.0)
    begin = time.monotonic()
    life = stage.start()
    assert life.end().code == 0, life.errors.read_text()
    return LocalStage(place, place / "run", time.monotonic() - begin)


def prepare_corpus(place: Path) -> None:
    """Write text and a config, and prepare it."""
    config = write_small_text(place / "corpus") / "config.toml"
    ended = run_dragoman("prepare", config, "--processes", "1", *SETTINGS)
    assert ended.returncode == 0, ended.stderr


Fault = Callable[[Stage, Life, random.Random], bool]  # Whether there was anything to disturb.


def try_fault(stage: LocalStage, kind: str, generator: random.Random) -> Finding:
    """Disturb a run at a random moment, then give the same command until it is complete."""
    if kind in DISKS:
        return _try_disk(stage, DISKS[kind], generator)
    return disturb(stage, [FAULTS[kind]], generator)


def disturb(stage: Stage, faults: Sequence[Fault], generator: random.Random) -> Finding:
    """Faults one after the other, each at a random moment, and lives until the run is complete."""
    findings: list[Finding] = []
    stage.clear()
    life = stage.start()
    for fault in faults:
        moment = generator.random() * stage.seconds
        time.sleep(moment)
        while not fault(stage, life, generator):  # It was over before.
            ended = life.end()
            findings += judge_life(life, ended)
            if ended.code == 0:
                stage.clear()
                moment *= 0.7
            life = stage.start()
            time.sleep(moment)
    for _ in range(MOST_LIVES):
        ended = life.end()
        findings += judge_life(life, ended)
        if ended.code == 0 or worst(findings).outcome > Outcome.REFUSED:
            break
        life = stage.start()
    if worst(findings).outcome <= Outcome.REFUSED:
        findings.append(stage.judge())
    found = worst(findings)
    return Finding(found.outcome, f"after {moment:.2f} s: {found.detail}")


def judge_life(life: Life, ended: Ended) -> list[Finding]:
    """What one life counts as; that it ended early is no fault of its own."""
    findings = [Finding(Outcome.IDENTICAL)]
    if ended.code != -signal.SIGKILL or ended.is_traceback:
        refusal = judge_refusal(ended)
        if refusal and refusal.outcome != Outcome.REFUSED:
            findings.append(refusal)
    if ended.code is None:
        for process in life.processes():
            process.kill()
        life.launcher.wait()
    orphans = life.orphans()
    if orphans:
        names = [str(process) for process in orphans]
        findings.append(Finding(Outcome.ORPHAN, f"{names} {ended.errors[-1000:]}"))
    return findings


def judge_end(reference: Path, run: Path) -> Finding:
    """Whether tensors and losses are those of the undisturbed run, bit for bit."""
    try:
        tensors, expected = final_tensors(run), final_tensors(reference)
        is_same = tensors.keys() == expected.keys() and all(
            tensors[name].equal(expected[name]) for name in expected
        )
        histories = [_losses(one / "metrics.jsonl") for one in (run, reference)]
    except (OSError, ValueError) as error:
        return Finding(Outcome.LOST, f"no end: {error}")
    if is_same and histories[0] == histories[1]:
        return Finding(Outcome.IDENTICAL)
    steps = sorted(step for step in histories[1] if histories[0].get(step) != histories[1][step])
    return Finding(Outcome.LOST, f"tensors alike: {is_same}, losses that differ: {steps}")


def _losses(path: Path) -> dict[int, object]:
    """Loss and gradient norm of every step; a line that a full disk cut short is passed over."""
    found: dict[int, object] = {}
    for line in path.read_text().splitlines():
        with suppress(json.JSONDecodeError):
            event = json.loads(line)
            if event["kind"] == "train":
                found[event["step"]] = (event["loss"], event["gradient_norm"])
    return found


def victim_of(life: Life, role: str, generator: random.Random) -> psutil.Process | None:
    """A process of that role, once there is one; None if the run is over."""
    while life.launcher.poll() is None:
        if found := sorted(life.processes(role), key=lambda process: process.pid):
            return generator.choice(found)
        time.sleep(0.02)
    return None


def send(number: signal.Signals, role: str) -> Fault:
    def fault(_: Stage, life: Life, generator: random.Random) -> bool:
        victim = victim_of(life, role, generator)
        if victim is None:
            return False
        with suppress(psutil.NoSuchProcess):
            victim.send_signal(number)
            return True
        return False

    return fault


def _suspend_launcher(_: Stage, life: Life, generator: random.Random) -> bool:
    if life.launcher.poll() is not None:
        return False
    life.launcher.send_signal(signal.SIGSTOP)
    time.sleep(generator.uniform(0.1, 5.0))
    life.launcher.send_signal(signal.SIGCONT)
    return True


def _pester(_: Stage, life: Life, generator: random.Random) -> bool:
    """Send forged notices and garbage to all ports of the run, until it is over."""
    worker = victim_of(life, "worker", generator)
    if worker is None:
        return False
    try:
        address = worker.environ()[STORE_VARIABLE]
    except (psutil.Error, KeyError):
        return False
    stranger = os.fork()  # So that no thread of the store is in the process that forks commands.
    if not stranger:
        with suppress(BaseException):
            _be_stranger(life, address, generator)
        os._exit(0)
    os.waitpid(stranger, 0)
    return True


def _be_stranger(life: Life, address: str, generator: random.Random) -> None:
    lie = {"host": "you", "worker": 0, "step": 1, "reason": "\x1b[2Jthe end", "time": 0.0}
    contents = [json.dumps(lie | {"is_final": True}), "{}", "1", "[" * 50_000, "\x00" * 100, "true"]
    store = connect(address)
    for _ in range(generator.randrange(20, 200)):
        if life.launcher.poll() is not None:
            return
        if generator.random() < 0.5:
            name = f"dragoman/{generator.choice(NOTICES)}"
            store.set(name, generator.choice(contents))
        else:
            with suppress(OSError):
                _send_garbage(generator.choice(_ports(life)), generator)
        time.sleep(0.01)


def _ports(life: Life) -> list[tuple[str, int]]:
    ports = []
    for process in life.processes():
        with suppress(psutil.Error):
            ports += [
                (one.laddr.ip, one.laddr.port)
                for one in process.net_connections("inet")
                if one.status == psutil.CONN_LISTEN
            ]
    return ports or [("127.0.0.1", 1)]


def _send_garbage(port: tuple[str, int], generator: random.Random) -> None:
    # The first four begin a conversation with a store of the engine.
    hello = b"\x00\x85\x1b\x18\x3c" if generator.random() < 0.5 else b""
    with socket.create_connection(port, timeout=2) as connection:
        connection.sendall(hello + generator.randbytes(generator.choice((1, 9, 100, 10_000))))


FAULTS: dict[str, Fault] = {
    "kill -9 of the launcher": send(signal.SIGKILL, "launcher"),
    "kill -9 of an agent": send(signal.SIGKILL, "agent"),
    "kill -9 of a worker": send(signal.SIGKILL, "worker"),
    "SIGSTOP of a worker": send(signal.SIGSTOP, "worker"),
    "SIGSTOP of an agent": send(signal.SIGSTOP, "agent"),
    "SIGSTOP and SIGCONT of the launcher": _suspend_launcher,
    "strangers at the ports": _pester,
}


def _try_disk(stage: LocalStage, fault: Fault, generator: random.Random) -> Finding:
    """Give the run a disk of its own, which fills or can no longer be written."""
    disk = stage.place / "disk"
    disk.mkdir(exist_ok=True)
    subprocess.run(["mount", "-t", "tmpfs", "-o", f"size={SMALL_DISK}", "none", disk], check=True)
    try:
        return disturb(replace(stage, run=disk / "run"), [fault], generator)
    finally:
        subprocess.run(["umount", "--lazy", disk], check=True)


def _fill(stage: Stage, life: Life, _: random.Random) -> bool:
    """Fill the disk until the run has ended, which it does at once or when it is complete."""
    if life.launcher.poll() is not None:
        return False
    assert isinstance(stage, LocalStage)
    filler = stage.run.parent / "filler"
    with open(filler, "wb", buffering=0) as file:
        for size in (1 << 16, 1):
            with suppress(OSError):
                while True:
                    file.write(bytes(size))
    with suppress(subprocess.TimeoutExpired):
        life.launcher.wait(SECONDS_TO_HANG)
    filler.unlink()
    return True


def _make_read_only(stage: Stage, life: Life, generator: random.Random) -> bool:
    """Kill the run, since a disk with open files stays writable; the command must then refuse."""
    assert isinstance(stage, LocalStage)
    if not send(signal.SIGKILL, "launcher")(stage, life, generator):
        return False
    life.end()
    assert not life.orphans()
    disk = stage.run.parent
    wait_until(lambda: not _remount(disk, "ro"))  # Files of the killed are closed a little later.
    try:
        ended = stage.start().end()
    finally:
        assert not _remount(disk, "rw")
    assert ended.code == 2, ended.errors
    assert os.strerror(errno.EROFS) in ended.errors, ended.errors
    return True


def _remount(disk: Path, how: str) -> int:
    command = ["mount", "-o", f"remount,{how}", str(disk)]
    return subprocess.run(command, capture_output=True).returncode


DISKS: dict[str, Fault] = {"full disk": _fill, "read-only disk": _make_read_only}
