"""Processes of Dragoman that start in a moment, because they need not import torch.

Importing torch takes two seconds of a core, and a run on two workers is four processes. Here they
are forked from a template: a process that has imported the libraries and most of Dragoman. Each of
them is a child of the process that asked for it, with the arguments, variables and files that it
gave, and runs the module as `python -m` does. Launcher and agents start theirs in the same way.
What is not `python -m dragoman` is started as ever, the installed program too.
"""

import atexit
import ctypes
import gc
import json
import os
import runpy
import select
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from functools import partial
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
    "torch.utils.tensorboard.writer",
    "numpy",
    "psutil",
    "pynvml",
    "sacrebleu",
    "safetensors.torch",
    "sentencepiece",
    "dragoman.cli",
    "dragoman.training.start",
    "dragoman.cluster.launch",
]
MODULES = ("dragoman", "dragoman.cluster.agent")
OPTION = ["-X", "forked"]  # Means nothing to Python; asks for the same for what follows.
ENTER = ["nsenter", "--mount", "--uts", "--net"]  # And --target=; what follows is forked there.
NAMESPACES = ("mnt", "uts", "net")
ROOM = " " * (1 << 16)  # For command lines and variables of all that is forked.
LARGEST_REQUEST = 1 << 17
_PR_SET_PDEATHSIG, _PR_SET_CHILD_SUBREAPER = 1, 36

_libc = ctypes.CDLL(None, use_errno=True)
_fork_and_exec = subprocess._fork_exec  # type: ignore[attr-defined]
_lock = threading.Lock()


class Template:
    """The process to fork from; started when it is first asked."""

    def __init__(self, folder: Path) -> None:
        self.place = folder / "template"  # Where processes ask that this one does not start.
        self.is_for_slow_tests_only = False
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        """Be ready for requests from anywhere."""
        assert not self.is_for_slow_tests_only, "a test that starts processes must be marked slow"
        if self._process:
            return
        self._requests, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        listener = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        listener.bind(os.fspath(self.place))
        listener.listen(128)
        numbers = [theirs.fileno(), listener.fileno()]
        self._process = subprocess.Popen(
            [sys.executable, __file__, *map(str, numbers), ROOM],
            pass_fds=numbers,
            env=os.environ | {"ROOM": ROOM},
        )
        theirs.close()
        listener.close()

    def requests(self) -> socket.socket:
        """Where this process asks."""
        self.start()
        return self._requests

    def stop(self) -> None:
        if self._process:
            self._requests.close()
            self._process.wait()


@contextmanager
def forking() -> Iterator[Template]:
    """Fork what would be started with `python -m dragoman`; it ends with this process."""
    with tempfile.TemporaryDirectory(prefix="dragoman-tests-") as folder:
        template = Template(Path(folder))
        _replace_start(partial(_start, template.requests, True))
        try:
            yield template
        finally:
            _replace_start(_fork_and_exec)
            template.stop()


def _replace_start(start: Callable[..., int]) -> None:
    subprocess._fork_exec = start  # type: ignore[attr-defined]


def _start(
    requests: Callable[[], socket.socket],
    end_with_us: bool,
    words: Sequence[str],
    executables: Any,
    *rest: Any,
) -> int:
    """What subprocess calls to start a process, with all that it says there."""
    command = [os.fsdecode(word) for word in words]
    target = ""
    if command[: len(ENTER)] == ENTER:
        target, command = command[len(ENTER)].partition("=")[2], command[len(ENTER) + 1 :]
    if not _is_ours(command):
        return int(_fork_and_exec(words, executables, *rest))
    _, _, folder, variables, stdin, _, _, stdout, _, stderr, _, _, _, new_session, *_ = rest
    pairs = [os.fsdecode(one).split("=", 1) for one in variables or ()]
    request = {
        "words": command[1 + len(OPTION) * (command[1:3] == OPTION) :],
        "folder": os.fsdecode(folder or Path.cwd()),
        "variables": dict(os.environ) if variables is None else dict(pairs),
        "new_session": new_session,
        "end_with_us": end_with_us,
    }
    files = [given if given >= 0 else own for own, given in enumerate((stdin, stdout, stderr))]
    with _lock, _adopting(), namespaces_of(target) as namespaces:
        socket.send_fds(requests(), [json.dumps(request).encode()], [*files, *namespaces])
        return int(requests().recv(16))


def _is_ours(command: Sequence[str]) -> bool:
    if command[:1] != [sys.executable]:
        return False
    return command[1:3] == OPTION or (command[1] == "-m" and command[2] in MODULES)


@contextmanager
def namespaces_of(process: str) -> Iterator[list[int]]:
    """Open the namespaces of a process, "" for none."""
    names = NAMESPACES if process else ()
    opened = [os.open(f"/proc/{process}/ns/{name}", os.O_RDONLY) for name in names]
    try:
        yield opened
    finally:
        for one in opened:
            os.close(one)


@contextmanager
def _adopting() -> Iterator[None]:
    """Let processes whose parent has ended become children of this one."""
    _libc.prctl(_PR_SET_CHILD_SUBREAPER, 1)
    try:
        yield
    finally:
        _libc.prctl(_PR_SET_CHILD_SUBREAPER, 0)


def _serve(requests: socket.socket, listener: socket.socket | None = None) -> None:
    """Fork as asked; returns in each new process."""
    _libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    _show(["template"], {})
    gc.freeze()  # So that memory stays shared.
    sources = [requests, listener] if listener else [requests]
    while True:
        for source in select.select(sources, [], [])[0]:
            is_child = source is requests
            connection = requests if is_child else source.accept()[0]
            message, files, _, _ = socket.recv_fds(connection, LARGEST_REQUEST, 6)
            if is_child and not message:
                os._exit(0)
            if not os.fork():
                _become_child(connection) if is_child else _become_guest(connection)
                for one in {*sources, connection}:
                    one.close()
                return _become(json.loads(message), files)
            os.wait()
            for file in files:
                os.close(file)
            if not is_child:
                connection.close()


def _become_child(asker: socket.socket) -> None:
    """Become a child of the process that asked, and tell it one's number."""
    between = os.getpid()
    if os.fork():
        os._exit(0)
    while os.getppid() == between:
        time.sleep(0.0005)
    asker.send(str(os.getpid()).encode())


def _become_guest(asker: socket.socket) -> None:
    """Become the child of a process that tells the one that asked how it ended."""
    if os.fork():
        os._exit(0)
    child = os.fork()
    if child:
        code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
        try:
            asker.send(str(code).encode())
        finally:  # It may have been killed itself.
            os._exit(0)


def _become(request: dict[str, Any], files: Sequence[int]) -> None:
    """Take on the arguments, variables, files and namespaces of the process asked for."""
    if request["new_session"]:
        os.setsid()
    for number, file in enumerate(files):
        if number < 3:
            os.dup2(file, number)
        else:
            assert not _libc.setns(file, 0), os.strerror(ctypes.get_errno())
        os.close(file)
    sys.stdin = open(0, closefd=False)
    sys.stdout = open(1, "w", closefd=False)
    sys.stderr = open(2, "w", closefd=False, errors="backslashreplace", buffering=1)
    os.chdir(request["folder"])
    os.environ.clear()
    os.environ.update(request["variables"])
    if request["end_with_us"]:
        _libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    signal.signal(signal.SIGINT, signal.default_int_handler)  # Also if tests run in the background.
    tempfile.tempdir = None  # The template's, if a library has asked for it.
    for name, module in list(sys.modules.items()):
        if name.startswith("dragoman.") and hasattr(module, "PARENT"):
            module.PARENT = os.getppid()  # type: ignore[attr-defined]
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
        with suppress(ModuleNotFoundError):
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
        _replace_start(partial(_start, lambda: ours, False))
        return
    ours.close()
    nowhere = os.open(os.devnull, os.O_RDWR)
    for number in range(3):
        os.dup2(nowhere, number)
    os.close(nowhere)
    _serve(theirs)
    _run()


def _leave(code: Any) -> NoReturn:
    """End as Python does, but without taking apart all that the template has imported.

    That touches every page shared with it, and would take longer than the tests' runs themselves.
    """
    if isinstance(code, str):
        print(code, file=sys.stderr)
    threading._shutdown()  # type: ignore[attr-defined]
    atexit._run_exitfuncs()
    try:
        sys.stdout.flush()
    except OSError:
        os._exit(120)
    os._exit(code if isinstance(code, int) else int(code is not None))


if __name__ == "__main__":
    os.environ["TORCH_CPP_LOG_LEVEL"] = "ERROR"  # As Dragoman sets it before it imports torch.
    os.environ["PYTORCH_NVML_BASED_CUDA_CHECK"] = "1"  # Looks for GPUs so that forks may use them.
    for library in LIBRARIES:
        import_module(library)
    _serve(*(socket.socket(fileno=int(number)) for number in sys.argv[1:3]))
    try:
        _run()
    except SystemExit as end:
        _leave(end.code)
