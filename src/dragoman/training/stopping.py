"""When a run ends: its settings, its scores, or a signal."""

import os
import signal
import time
from contextlib import AbstractContextManager
from enum import IntEnum
from typing import cast

from dragoman.config import TrainingSettings
from dragoman.console import say, show_cursor
from dragoman.records import EndReason
from dragoman.stop_signals import stop_signals_caught
from dragoman.training.progress import Progress


class Stop(IntEnum):
    """Why to stop; workers agree on the highest."""

    NO = 0
    STEPS = 1
    EPOCHS = 2
    HOURS = 3
    PATIENCE = 4
    GAIN_UNLIKELY = 5
    SIGNAL = 6

    @property
    def reason(self) -> EndReason:
        """As metrics.jsonl has it."""
        return cast(EndReason, self.name.lower())


class StopSignals:
    """Ctrl-C, SIGTERM and SIGHUP ask for a clean end; a second one ends at once."""

    def __init__(self) -> None:
        self.requested: str | None = None

    def caught(self) -> AbstractContextManager[None]:
        """Catch the signals for the time of a block."""
        return stop_signals_caught(self._handle)

    def _handle(self, number: signal.Signals) -> None:
        if self.requested:
            # Files appear whole or not at all, so that leaving at once does no damage.
            show_cursor()
            os._exit(128 + number)
        self.requested = number.name
        say(f"{self.requested}: finishing the step and saving; send it again to quit now")


def reason_to_stop(settings: TrainingSettings, progress: Progress, seconds: float) -> Stop:
    """Check the settings' limits after a step."""
    if settings.steps is not None and progress.step >= settings.steps:
        return Stop.STEPS
    if settings.epochs is not None and progress.epoch >= settings.epochs:
        return Stop.EPOCHS
    if settings.hours is not None and seconds >= 3600 * settings.hours:
        return Stop.HOURS
    best = progress.best
    waited = (
        best.evaluations_since_loss
        if settings.patience_metric == "loss"
        else best.evaluations_since_bleu
    )
    if settings.patience is not None and waited >= settings.patience:
        return Stop.PATIENCE
    unlikely, gain = settings.stop_when_gain_unlikely, progress.scores.gain_probability
    if unlikely is not None and gain is not None and gain <= unlikely:
        return Stop.GAIN_UNLIKELY
    return Stop.NO


class Stopwatch:
    """Wall time of all attempts of a run together."""

    def __init__(self, seconds_before: float) -> None:
        self._seconds_before = seconds_before
        self._start = time.monotonic()

    def seconds(self) -> float:
        """Seconds so far."""
        return self._seconds_before + time.monotonic() - self._start
