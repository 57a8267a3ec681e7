"""Writes a run down: metrics, samples, checkpoints, the screen."""

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Any

from dragoman.cluster.processes import Workers
from dragoman.config import Config
from dragoman.runs.checkpoint import Checkpoint
from dragoman.runs.checkpoint_writer import CheckpointWriter, Saved
from dragoman.runs.folder import RunFolder
from dragoman.runs.metrics import MetricsLog
from dragoman.training.display import Display
from dragoman.training.evaluator import Evaluation


class Recorder:
    """Keeps the run folder of one machine; silent in workers that do not write it."""

    def __init__(
        self, run: RunFolder, config: Config, workers: Workers, writes: bool, step: int
    ) -> None:
        self.writes = writes
        self._run = run
        self._failure = ""  # Of the last checkpoint.
        self.display = Display(
            f"dragoman: {run.name}",
            run.log if writes else None,
            config.training.steps,
            is_shown=workers.is_first,
        )
        if writes:
            self._metrics = MetricsLog(run, step, self.say)
            self._checkpoints = CheckpointWriter(run, config.checkpoints)

    @property
    def has_history(self) -> bool:
        """Whether an earlier attempt wrote anything down; false if this worker does not write."""
        return self.writes and self._metrics.has_history

    def say(self, message: str) -> None:
        """Tell one line in the log and, by worker 0, on the screen."""
        self.display.say(message)

    def event(self, kind: str, step: int, **values: Any) -> None:
        """Write one event down."""
        if self.writes:
            self._metrics.write(kind, step, **values)

    def step(self, step: int, values: dict[str, Any]) -> None:
        """Write a training step down; `values` say when it ended."""
        self.event("train", step, **values)
        self.display.step(step, values)

    def evaluation(self, step: int, one: Evaluation) -> None:
        """Write an evaluation and its samples down."""
        values = {
            "set": one.name,
            "pairs": one.pairs,
            "bleu_pairs": one.bleu_pairs,
            "loss": one.loss.loss,
            "nll": one.loss.nll,
            "train_sample_loss": one.train_sample.loss,
            "train_sample_nll": one.train_sample.nll,
            "bleu": one.text.bleu,
            "chrf": one.text.chrf,
            "signature": one.text.signature,
            "chrf_signature": one.text.chrf_signature,
            "seconds": one.seconds,
        }
        self.event("eval", step, **values)
        if self.writes:
            for sample in one.samples:
                self._metrics.write_sample(step, **asdict(sample))
        self.display.evaluation(step, values, one.samples)

    def machine(self, host: str, samples: Sequence[Mapping[str, Any]], *, is_own: bool) -> None:
        """Write down what a machine did; one's own monitor has already done so."""
        if self.writes and samples:
            if not is_own:
                self._metrics.write_samples_of_machine(host, samples)
            self._metrics.show_machine(host, samples)

    def save(self, checkpoint: Checkpoint) -> None:
        """Save in the background; the save before this one is waited for."""
        if self.writes:
            # A checkpoint without the history of its steps would leave a gap after a kill.
            self._metrics.flush()
            self._note_saved(self._checkpoints.save(checkpoint))

    def note_saved(self) -> None:
        """Write down any checkpoint that was finished meanwhile."""
        if self.writes:
            self._note_saved(self._checkpoints.done())

    def finish_saving(self) -> str:
        """Wait until the last checkpoint is on disk; say why it is not, if so."""
        if self.writes:
            self._note_saved(self._checkpoints.finish())
        return self._failure

    def close(self) -> None:
        """Finish all files and give the terminal back."""
        if self.writes:
            self._metrics.close()
        self.display.stop()

    def _note_saved(self, saved: Saved | None) -> None:
        if saved is None:
            return
        self._failure = ""
        if saved.failure:
            path = self._run.checkpoints / saved.name
            self._failure = f"checkpoint {path} could not be written: {saved.failure}"
            self.event("checkpoint_failed", saved.step, reason=saved.failure)
            self.say(f"{self._failure}; training goes on")
            return
        self.event(
            "checkpoint",
            saved.step,
            name=saved.name,
            bytes=saved.bytes,
            seconds_blocking=saved.seconds_blocking,
            seconds_background=saved.seconds_background,
        )
