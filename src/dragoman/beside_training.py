"""What runs alongside training: the live page, notifications, the report for trackers."""

import os
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, nullcontext, suppress

from dragoman.child_process import AGENT_VARIABLE, SAFE_PATH, SAFE_PATH_VARIABLE
from dragoman.cluster.world import read_world
from dragoman.config import Config
from dragoman.config_file import flatten
from dragoman.console import say
from dragoman.errors import explain
from dragoman.notify import Notice, notify, without_secrets
from dragoman.runs.folder import RunFolder, new_run
from dragoman.runs.tracker_kinds import keeps_files
from dragoman.runs.trackers import Trackers

SECONDS_TO_END = 10.0  # That a process beside the training has, once it is asked to end.
_TIMESTAMP = len("2026-01-31 12:00:00 ")  # Before every line of train.log.


@contextmanager
def watched(name: str, *, is_asked_for: bool) -> Iterator[None]:
    """Serve the live page in a process of its own, which prints its address."""
    command = [sys.executable, "-m", "dragoman", "watch", name, "--wait"]
    with _beside(command) if is_asked_for else nullcontext():
        yield


@contextmanager
def _beside(command: Sequence[str]) -> Iterator[None]:
    """Run another process for the time of a block; Ctrl-C is not for it, and it dies with us."""
    own = {AGENT_VARIABLE: str(os.getpid()), SAFE_PATH_VARIABLE: SAFE_PATH}
    beside = subprocess.Popen(command, start_new_session=True, env=os.environ | own)
    try:
        yield
    finally:
        _end(beside)


def _end(process: subprocess.Popen[bytes]) -> None:
    """Ask a process to end, then make it: one that is stopped, or hangs, cannot hold up a run."""
    for ask in (process.terminate, process.kill):
        ask()
        with suppress(subprocess.TimeoutExpired):
            process.wait(SECONDS_TO_END)
            return


@contextmanager
def notified(config: Config, name: str) -> Iterator[None]:
    """Tell whom the settings name how the run ended and, on the way, which verdicts changed."""
    settings = config.notify
    # The launcher speaks for its workers, and worker 0 for those of torchrun or Slurm.
    is_speaker = AGENT_VARIABLE not in os.environ and read_world().rank == 0
    if not is_speaker or not (settings.command or settings.webhook):
        yield
        return

    run = new_run(name)
    watch = [sys.executable, "-m", "dragoman.report.live.verdicts", str(run.path)]
    try:
        with _beside(watch) if "verdict" in settings.on else nullcontext():
            yield
    except Exception as error:
        notify(settings, Notice("failure", run.name, f"failed: {explain(error)}"), say)
        raise
    notify(settings, Notice("end", run.name, _last_word(run)), say)


def _last_word(run: RunFolder) -> str:
    """What the run said last, as in "the run is complete at step 600: ..."."""
    lines = list[str]()
    with suppress(OSError):  # The run is over, whether or not its log can be read.
        lines = run.log.read_text(errors="replace").splitlines()
    return lines[-1][_TIMESTAMP:] if lines else "training has ended"


def attach_report(config: Config, name: str) -> None:
    """Hand the report of a run that is over to the trackers that keep files."""
    run, kinds = new_run(name), [kind for kind in config.logging.trackers if keeps_files(kind)]
    # The machine that launched a run need not have taken part in it.
    if not kinds or not run.metrics.exists():
        return

    from dragoman.report.page.report_page import write_report

    try:
        page = write_report(run.path)
    except Exception as error:  # The run itself is complete.
        lines = explain(error).splitlines()
        reason = lines[0] if lines else type(error).__name__
        say(f"no report for {', '.join(kinds)}: {reason}; nothing else is affected")
        return
    settings = {key: str(value) for key, value in without_secrets(flatten(config)).items()}
    trackers = Trackers(kinds, run, settings, 0, say)
    trackers.attach(page)
    trackers.close()
