"""Start or resume a run: in this process, or through agents on one or many machines."""

import shlex
import sys
from collections.abc import Sequence

from dragoman.cluster.hosts import Host
from dragoman.cluster.launch import Job, launch
from dragoman.cluster.processes import join_workers
from dragoman.cluster.supervision import supervised
from dragoman.config import Config
from dragoman.config_file import dump_config
from dragoman.model.precision import refuse_impossible
from dragoman.runs.folder import new_run
from dragoman.training.stopping import Stop
from dragoman.training.trainer import Trainer


def train(config: Config, name: str) -> Stop | None:
    """Train in this process, alone or as one worker; under a launcher, tell it why it stopped."""
    with supervised() as supervision:
        workers = join_workers(config.distributed)
        refuse_impossible(config.training.precision, workers.device)
        stop = Trainer(config, new_run(name), workers, supervision).run()
        workers.leave()
        return None if supervision.is_launched else stop


def train_on(hosts: Sequence[Host], config: Config, name: str) -> Stop:
    """Train on several workers, here or on other machines, until the run is over."""
    run = new_run(name)
    job = Job(
        command=["-m", "dragoman", "train", "--run", str(run.path.absolute())],
        config=dump_config(config, with_defaults=False),
        command_line=shlex.join(["dragoman", *sys.argv[1:]]),
    )
    return Stop[launch(hosts, job, config.distributed)]
