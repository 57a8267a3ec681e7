"""Processes of Dragoman that start in a moment, because they need not import torch.

Importing torch takes two seconds of a core, and a run on two workers is four processes. Here they
are forked from a template: a process that has imported the libraries, and nothing of Dragoman. Each
of them is a child of the process that asked for it, with the arguments, variables and files that it
gave, and runs the module as `python -m` does. Launcher and agents start theirs in the same way.
What is not `python -m dragoman` is started as ever, and so is every process of another machine.
"""

import ctypes
import gc
import json
import os
import runpy
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import cache, partial
from importlib import import_module
from pathlib import Path
from types import ModuleType
from typing import Any, NoReturn

LIBRARIES = [
    "torch",
    "torch._dynamo",  # DistributedDataParallel imports it when it is made.
    "torch.distributed.algorithms.ddp_comm_hooks.powerSGD_hook",
    "torch.distributed.elastic.agent.server.local_elastic_agent",
    "torch.nn.parallel",
    "numpy",
    "psutil",
    "pynvml",
    "sacrebleu",
    "safetensors.torch",
    "sentencepiece",
    "torch.utils.tensorboard.writer",
]
MODULES = ("dragoman", "dragoman.cluster.agent")
OPTION = ["-X", "forked"]  # Means nothing to Python; asks for the same for what follows.
ROOM = " " * (1 << 16)  # For command lines and variables of all that is forked.
_PR_SET_PDEATHSIG, _PR_SET_CHILD_SUBREAPER = 1, 36
_LARGEST_REQUEST = 1 << 17

_libc = ctypes.CDLL(None, use_errno=True)
_lock = threading.Lock()
_fork_and_exec = subprocess._fork_exec  # type: ignore[attr-defined]


@contextmanager
def forking() -> Iterator[None]:
    """Fork what would be started with `python -m dragoman`; it ends with this process."""
    started: list[subprocess.Popen[bytes]] = []

    def start_template() -> socket.socket:
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        number = theirs.fileno()
        command = [sys.executable, __file__, str(number), ROOM]
        variables = os.environ | {"ROOM": ROOM}
        started.append(subprocess.Popen(command, pass_fds=[number], env=variables))
        theirs.close()
        return ours

    requests = cache(start_template)
    subprocess._fork_exec = partial(_fork_if_asked, requests, True)  # type: ignore[attr-defined]
    try:
        yield
    finally:
        subprocess._fork_exec = _fork_and_exec  # type: ignore[attr-defined]
        for process in started:
            requests().close()
            process.wait()


def _fork_if_asked(
    requests: Callable[[], socket.socket],
    end_with_us: bool,
    words: Sequence[str],
    executables: Any,
    *rest: Any,
) -> int:
    """What subprocess calls to start a process, with all that it says there."""
    python, *command = [os.fsdecode(word) for word in words]
    if command[:2] == OPTION:
        command = command[2:]
    elif command[:1] != ["-m"] or command[1] not in MODULES:
        python = ""
    if python != sys.executable:
        return int(_fork_and_exec(words, executables, *rest))
    _, _, folder, variables, stdin, _, _, stdout, _, stderr, _, _, _, new_session, *_ = rest
    given = [os.fsdecode(one).split("=", 1) for one in variables or ()]
    request = {
        "words": command,
        "folder": os.fsdecode(folder or Path.cwd()),
        "variables": dict(os.environ) if variables is None else dict(given),
        "new_session": new_session,
        "end_with_us": end_with_us,
    }
    files = [given if given >= 0 else own for own, given in enumerate((stdin, stdout, stderr))]
    with _lock, _adopting():
        socket.send_fds(requests(), [json.dumps(request).encode()], files)
        return int(requests().recv(16))


@contextmanager
def _adopting() -> Iterator[None]:
    """Let processes whose parent has ended become children of this one."""
    _libc.prctl(_PR_SET_CHILD_SUBREAPER, 1)
    try:
        yield
    finally:
        _libc.prctl(_PR_SET_CHILD_SUBREAPER, 0)


def _serve(requests: socket.socket) -> None:
    """Fork as asked; returns in each new process, which is then a child of the one that asked."""
    _libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    _show(["template"], {})
    gc.freeze()  # So that memory stays shared.
    while True:
        message, files, _, _ = socket.recv_fds(requests, _LARGEST_REQUEST, 3)
        if not message:
            os._exit(0)
        if not os.fork():
            between = os.getpid()
            if os.fork():
                os._exit(0)
            while os.getppid() == between:
                time.sleep(0.0005)
            requests.send(str(os.getpid()).encode())
            requests.close()
            return _become(json.loads(message), files)
        for file in files:
            os.close(file)
        os.wait()


def _become(request: dict[str, Any], files: Sequence[int]) -> None:
    """Take on the arguments, variables and files of the process asked for."""
    if request["new_session"]:
        os.setsid()
    for number, file in enumerate(files):
        os.dup2(file, number)
        os.close(file)
    sys.stdin = open(0, closefd=False)
    sys.stdout = open(1, "w", closefd=False)
    sys.stderr = open(2, "w", closefd=False, errors="backslashreplace", buffering=1)
    os.chdir(request["folder"])
    os.environ.clear()
    os.environ.update(request["variables"])
    if request["end_with_us"]:
        _libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    sys.argv = request["words"]
    sys.path[0] = request["folder"]


def _show(words: Sequence[str], variables: Mapping[str, str]) -> None:
    """Let `ps` and psutil see the command and variables of this process, not its template's."""
    places = Path("/proc/self/stat").read_text().rpartition(")")[2].split()[45:49]
    starts, ends = (list(map(int, places[first::2])) for first in (0, 1))
    for start, end, texts in zip(
        starts, ends, (words, map("=".join, variables.items())), strict=True
    ):
        block = b"".join(os.fsencode(text) + b"\0" for text in texts)
        ctypes.memmove(start, block[: end - start - 1].ljust(end - start, b"\0"), end - start)


def _run() -> NoReturn:
    """Do what Python does with `-m` or `-c` and what follows it."""
    kind, what, *_ = sys.argv
    if "LOCAL_RANK" not in os.environ:  # Workers start nothing.
        _fork_template()
    _show([sys.executable, *sys.argv], os.environ)
    if os.environ.get("PYTHONPATH"):
        sys.path[1:1] = os.environ["PYTHONPATH"].split(os.pathsep)
        sys.modules.pop("sitecustomize", None)
        import_module("sitecustomize")
    if kind == "-m":
        sys.argv = sys.argv[1:]
        runpy.run_module(what, run_name="__main__", alter_sys=True)
    else:
        sys.argv = ["-c", *sys.argv[2:]]
        sys.modules["__main__"] = main = ModuleType("__main__")
        exec(what, vars(main))
    raise SystemExit


def _fork_template() -> None:
    """Give this process a template of its own, while it has one thread only."""
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    if os.fork():
        theirs.close()
        fork = partial(_fork_if_asked, lambda: ours, False)
        subprocess._fork_exec = fork  # type: ignore[attr-defined]
        return
    ours.close()
    nowhere = os.open(os.devnull, os.O_RDWR)
    for number in range(3):
        os.dup2(nowhere, number)
    os.close(nowhere)
    _serve(theirs)
    _run()


if __name__ == "__main__":
    os.environ["TORCH_CPP_LOG_LEVEL"] = "ERROR"  # As Dragoman sets it before it imports torch.
    for library in LIBRARIES:
        import_module(library)
    _serve(socket.socket(fileno=int(sys.argv[1])))
    _run()
