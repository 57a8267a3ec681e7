"""What every child process of Dragoman does first."""

import ctypes
import os
import signal
import sys

AGENT_VARIABLE = "DRAGOMAN_AGENT"  # The process that started this worker.
PARENT = os.getppid()  # At the start, before anything slow is imported.
_PR_SET_PDEATHSIG = 1
# torch reads it when it is imported. Causes are told by Dragoman; its chatter would bury them.
QUIET_VARIABLE, QUIET = "TORCH_CPP_LOG_LEVEL", "ERROR"
# torch's threads wait for each other many times a step, spinning for a millisecond or so before
# they sleep. Where other programs have the cores that keeps the awaited thread from running, and
# steps take many times as long. A few microseconds are as fast on idle cores.
SPIN_VARIABLE, SPIN = "GOMP_SPINCOUNT", "2000"

# `python -m` would import what lies in the current folder, which is the user's: a re.py, say.
SAFE_PATH_VARIABLE, SAFE_PATH = "PYTHONSAFEPATH", "1"


def die_with_parent(parent: int) -> None:
    """Let the kernel kill this process when its parent dies; end now if it already has."""
    if sys.platform == "linux":
        ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:
        os._exit(1)


def die_with_agent() -> None:
    """End a worker with its agent, even if that has ended before the worker came to this."""
    agent = os.environ.get(AGENT_VARIABLE)
    if agent:
        die_with_parent(int(agent))


def is_launched() -> bool:
    """Whether this process is a worker that our own launcher started."""
    return AGENT_VARIABLE in os.environ
