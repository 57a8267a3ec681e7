"""PyTorch internals that Dragoman needs, all in one place.

Nothing else imports a private name of torch or touches a private attribute of its objects. For each
there is a test that names it when a new PyTorch has changed it; pyproject.toml bounds the versions.
"""

import os
import subprocess
from typing import Any

from torch.distributed import Store
from torch.distributed.distributed_c10d import _get_default_store
from torch.distributed.elastic.agent.server.local_elastic_agent import LocalElasticAgent
from torch.distributed.elastic.rendezvous.dynamic_rendezvous import (
    DynamicRendezvousHandler,
    _BackendRendezvousStateHolder,
    _NodeDesc,
)

# torchrun's handler decides by the machines' clocks who is gone. There is no public way to give it
# another judgement than a state holder of one's own, which needs the names of the nodes.
RendezvousStateHolder = _BackendRendezvousStateHolder
NodeDescription = _NodeDesc


def join_running_jobs() -> None:
    """Let this agent join a running job: one that shares its store with the workers cannot."""
    os.environ["TORCH_DISABLE_SHARE_RDZV_TCP_STORE"] = "1"


def default_store() -> Store:
    """The store of the process group, which torchrun or Slurm made: no public name leads to it."""
    return _get_default_store()


def worker_process(agent: LocalElasticAgent, local_rank: int) -> subprocess.Popen[bytes]:
    """A worker's process, to ask whether it has ended: the agent tells of failures only."""
    processes: Any = agent._pcontext
    process: subprocess.Popen[bytes] = processes.subprocess_handlers[local_rank].proc
    return process


def restarts_left(agent: LocalElasticAgent) -> int:
    """How often the agent would still restart its workers."""
    return int(agent._remaining_restarts)


def set_restarts_left(agent: LocalElasticAgent, count: int) -> None:
    """Let the agent restart its workers so often: it counts joins as faults, and knows no end."""
    agent._remaining_restarts = count


def stop_heartbeats(handler: DynamicRendezvousHandler) -> None:
    """End the handler's thread, which may be the last to let go of it, and cannot join itself."""
    handler._stop_heartbeats()
