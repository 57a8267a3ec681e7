"""Start or resume a run: in this process, or through agents on one or many machines."""

import os
import shlex
import sys
from collections.abc import Sequence

from dragoman.cluster.board import is_echo
from dragoman.cluster.launch import Host, Job, launch
from dragoman.cluster.processes import join_workers
from dragoman.cluster.supervision import Supervision
from dragoman.config import Config
from dragoman.config_file import dump_config
from dragoman.errors import SystemFault, UserError
from dragoman.runs.folder import new_run
from dragoman.training.stopping import Stop
from dragoman.training.trainer import Trainer

Told = (UserError, SystemFault)


def train(config: Config, name: str) -> Stop:
    """Train in this process, alone or as one worker of the world it was started in."""
    supervision = Supervision(int(os.environ.get("RANK", "0")))
    try:
        workers = join_workers(config.distributed.timeout_seconds)
        stop = Trainer(config, new_run(name), workers, supervision).run()
        workers.leave()
        return stop
    except BaseException as error:
        supervision.post_failure(error)
        if supervision.is_launched and (is_echo(error) or isinstance(error, Told)):
            # The launcher tells the cause once; echoes and repetitions would only hide it.
            sys.exit(1)
        raise
    finally:
        supervision.end()


def train_on(hosts: Sequence[Host], config: Config, name: str) -> None:
    """Train on several workers, here or on other machines, until the run is over."""
    run = new_run(name)
    job = Job(
        command=["-m", "dragoman", "train", "{config}", "--run", str(run.path.absolute())],
        config=dump_config(config, with_defaults=False),
        command_line=shlex.join(["dragoman", *sys.argv[1:]]),
    )
    launch(hosts, job, config.distributed)
