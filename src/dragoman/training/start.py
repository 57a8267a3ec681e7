"""Start or resume a run in this process, alone or as one of many."""

from dragoman.cluster.processes import join_workers
from dragoman.config import Config
from dragoman.runs.folder import new_run
from dragoman.training.stopping import Stop
from dragoman.training.trainer import Trainer

PROCESS_GROUP_TIMEOUT_SECONDS = 120.0


def train(config: Config, name: str) -> Stop:
    """Train until a reason to stop."""
    workers = join_workers(PROCESS_GROUP_TIMEOUT_SECONDS)
    try:
        return Trainer(config, new_run(name), workers).run()
    finally:
        workers.leave()
