"""Start or resume a run: from the command to the first step, straight down."""

import shlex
import sys
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack

import torch

from dragoman.cluster.hosts import Host
from dragoman.cluster.launch import Job, launch
from dragoman.cluster.processes import Workers, join_workers
from dragoman.cluster.supervision import Supervision, supervised
from dragoman.config import Config
from dragoman.config_file import dump_config
from dragoman.model.precision import refuse_impossible
from dragoman.runs.folder import RunFolder, new_run
from dragoman.training.automatic_sync import settle_sync
from dragoman.training.opening import open_everywhere
from dragoman.training.parts import make_parts
from dragoman.training.stopping import Stop, StopSignals
from dragoman.training.trainer import Trainer


def train(config: Config, name: str) -> Stop | None:
    """Train in this process, alone or as one worker; under a launcher, tell it why it stopped."""
    with ThreadPoolExecutor() as beside, supervised() as supervision:
        beside.submit(rehearse_backward)
        workers = join_workers(config.distributed)
        refuse_impossible(config.training.precision, workers.device)
        stop = run_attempt(config, new_run(name), workers, supervision)
        workers.leave()
        return None if supervision.is_launched else stop


def rehearse_backward() -> None:
    """Go backward once: the first time PyTorch imports a lot, a second of work or two."""
    number = torch.ones((), requires_grad=True)
    torch.autograd.grad(2 * number, number, torch.ones(()))


def run_attempt(config: Config, run: RunFolder, workers: Workers, supervision: Supervision) -> Stop:
    """Open the run everywhere and train until a reason to stop; all is saved then."""
    signals = StopSignals()
    config, choice = settle_sync(config, run, workers)
    parts = make_parts(config, workers)
    with ExitStack() as at_end:
        # Under a launcher signals come to it; a worker that gets one is to end at once.
        if not supervision.is_launched:
            at_end.enter_context(signals.caught())
        attempt = supervision.begin_attempt(workers)
        opened = open_everywhere(config, run, parts, workers, attempt, at_end)
        if choice:
            opened.recorder.say(choice)
        trainer = Trainer(config, run, parts, opened, workers, supervision, signals)
        return trainer.run(at_end)


def train_on(hosts: Sequence[Host], config: Config, name: str) -> Stop:
    """Train on several workers, here or on other machines, until the run is over."""
    run = new_run(name)
    job = Job(
        command=["-m", "dragoman", "train", "--run", str(run.path.absolute())],
        config=dump_config(config, with_defaults=False),
        command_line=shlex.join(["dragoman", *sys.argv[1:]]),
    )
    return Stop[launch(hosts, job, config.distributed)]
