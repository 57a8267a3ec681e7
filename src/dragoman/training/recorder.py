"""Records a run: metrics, samples, checkpoints, the screen."""

import time
from collections.abc import Sequence

from dragoman.cluster.processes import Workers
from dragoman.config import Config
from dragoman.config_file import flatten
from dragoman.notify import without_secrets
from dragoman.records import (
    Before,
    CheckpointFailed,
    End,
    Event,
    EventKind,
    MachineSample,
    SampleTranslation,
    TrainStep,
)
from dragoman.runs.before import write_before
from dragoman.runs.checkpoint import Checkpoint
from dragoman.runs.checkpoint_index import checkpoint_name
from dragoman.runs.checkpoint_writer import CheckpointWriter, Saved
from dragoman.runs.folder import HeldFolder, RunFolder
from dragoman.runs.metrics import MetricsLog
from dragoman.runs.trackers import Trackers
from dragoman.training.display import Display
from dragoman.training.evaluator import Evaluated

SECONDS_BETWEEN_LOOKS = 1.0  # At where the run folder is.


class Recorder:
    """Keeps the run folder of one machine; silent in workers that do not write it."""

    def __init__(
        self, run: RunFolder, config: Config, workers: Workers, writes: bool, step: int
    ) -> None:
        self.writes = writes
        self._run = run
        self._failure = ""  # Of the last checkpoint.
        self._untold: list[tuple[int, str]] = []  # Failures that other machines do not know of.
        self.display = Display(
            f"dragoman: {run.name}",
            run.log if writes else None,
            config.training.steps,
            is_shown=workers.is_first,
        )
        if writes:
            public = without_secrets(flatten(config))
            settings = {name: str(value) for name, value in public.items()}
            # One copy of the run folder is enough to tell of.
            kinds = config.logging.trackers
            if not workers.is_first:
                kinds = tuple(kind for kind in kinds if kind == "tensorboard")
            trackers = Trackers(kinds, run, settings, step + 1, self.say)
            self._metrics = MetricsLog(run, trackers, self.say)
            self._checkpoints = CheckpointWriter(run, config.checkpoints)
            self._folder = HeldFolder(run.path)
            self._last_look = 0.0

    @property
    def has_history(self) -> bool:
        """Whether an earlier attempt wrote anything down; false if this worker does not write."""
        return self.writes and self._metrics.has_history

    def say(self, message: str) -> None:
        """Tell one line in the log and, by worker 0, on the screen."""
        self.display.say(message)

    def event(self, kind: EventKind, step: int, event: Event, moment: float | None = None) -> None:
        """Write one event down."""
        if self.writes:
            self._metrics.write(kind, step, event, moment)

    def end_if_missing(self, step: int, end: End) -> None:
        """Write the end of a run down whose last attempt reached it and died before it could."""
        if self.writes:
            self._metrics.end_if_missing(step, end)

    def flush(self) -> None:
        """Hand all lines to the operating system, so that they outlive this process."""
        if self.writes:
            self._metrics.flush()

    def step(self, step: int, line: TrainStep, end: float) -> None:
        """Write a training step down that ended then."""
        self.event("train", step, line, end)
        self.display.step(step, line)

    def evaluation(self, step: int, one: Evaluated) -> None:
        """Write an evaluation and its samples down."""
        self.event("eval", step, one.scores)
        if self.writes:
            samples = [SampleTranslation(step, time.time(), **vars(each)) for each in one.samples]
            self._metrics.write_samples(step, samples)
        self.display.evaluation(step, one)

    def before(self, before: Before) -> None:
        """Keep the translations by the weights that the run started from."""
        if self.writes:
            write_before(self._run, before)

    def machine(self, host: str, samples: Sequence[MachineSample], *, is_own: bool) -> None:
        """Write down what a machine did; one's own monitor has already done so."""
        if self.writes and samples:
            if not is_own:
                self._metrics.write_samples_of_machine(host, samples)
            self._metrics.show_machine(host, samples)

    def save(self, checkpoint: Checkpoint) -> None:
        """Save in the background; the save before this one is waited for."""
        if self.writes:
            self._folder.check()
            # A checkpoint without the history of its steps would leave a gap after a kill.
            self.flush()
            self._note_saved(self._checkpoints.save(checkpoint), "; training continues")

    def note_saved(self) -> None:
        """Write down any checkpoint that was finished meanwhile, if all is where it was."""
        if self.writes:
            if time.monotonic() - self._last_look > SECONDS_BETWEEN_LOOKS:
                self._last_look = time.monotonic()
                self._folder.check()
            self._note_saved(self._checkpoints.done(), "; training continues")

    def finish_saving(self) -> str:
        """Wait until the last checkpoint is on disk; say why it is not, if so."""
        if self.writes:
            self._note_saved(self._checkpoints.finish())
        return self._failure

    def take_failures(self) -> list[tuple[int, str]]:
        """The checkpoints, by step, that could not be written here since the last call, and why."""
        untold, self._untold = self._untold, []
        return untold

    def failed_elsewhere(self, host: str, step: int, reason: str) -> None:
        """Write down that another machine could not write its copy of a checkpoint."""
        self.event("checkpoint_failed", step, CheckpointFailed(reason, host))
        self.say(f"{host}: checkpoint of step {step:,} could not be written: {reason}")

    def close(self) -> None:
        """Finish all files and give the terminal back."""
        if self.writes:
            self._metrics.close()
            self._folder.close()
        self.display.stop()

    def _note_saved(self, saved: Saved | None, and_then: str = "") -> None:
        if saved is None:
            return
        self._failure = ""
        if isinstance(saved.event, CheckpointFailed):
            path = self._run.checkpoints / checkpoint_name(saved.step)
            self._failure = f"checkpoint {path} could not be written: {saved.event.reason}"
            self._untold.append((saved.step, saved.event.reason))
            self.event("checkpoint_failed", saved.step, saved.event)
            self.say(f"{self._failure}{and_then}")
        else:
            self.event("checkpoint", saved.step, saved.event)
        if saved.left_over:
            self.say(f"old checkpoints could not be deleted: {saved.left_over}{and_then}")
