"""When a run ends: its settings, its scores, or a signal."""

import math
import os
import signal
import time
from contextlib import AbstractContextManager
from dataclasses import dataclass
from enum import IntEnum
from typing import cast

import numpy as np

from dragoman.config import TrainingSettings
from dragoman.console import say, show_cursor
from dragoman.prediction.outlook import gain_probability
from dragoman.prediction.run_schedule import RunSchedule
from dragoman.records import EndReason
from dragoman.stop_signals import stop_signals_caught


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


@dataclass
class Best:
    """Best scores so far on the first validation set, and evaluations since then."""

    loss: float | None = None
    bleu: float | None = None
    evaluations_since_loss: int = 0
    evaluations_since_bleu: int = 0

    @property
    def is_new(self) -> bool:
        """Whether the last evaluation set a new best."""
        return self.evaluations_since_loss == 0 or self.evaluations_since_bleu == 0

    def update(self, loss: float, bleu: float) -> None:
        """Take note of an evaluation; a loss that is not finite is no improvement."""
        if math.isfinite(loss) and (self.loss is None or loss < self.loss):
            self.loss, self.evaluations_since_loss = loss, 0
        else:
            self.evaluations_since_loss += 1
        if self.bleu is None or bleu > self.bleu:
            self.bleu, self.evaluations_since_bleu = bleu, 0
        else:
            self.evaluations_since_bleu += 1


@dataclass
class ScoreCurve:
    """All scores so far on the first validation set, as the report has them."""

    steps: tuple[int, ...] = ()
    loss: tuple[float | None, ...] = ()
    bleu: tuple[float | None, ...] = ()
    gain_probability: float | None = None  # As of the last evaluation, if the settings ask for it.

    def add(self, step: int, loss: float, bleu: float, schedule: RunSchedule | None) -> None:
        """Take note of an evaluation; with a schedule, look ahead too."""
        self.steps += (step,)
        self.loss += (loss if math.isfinite(loss) else None,)
        self.bleu += (bleu if math.isfinite(bleu) else None,)
        self.gain_probability = None
        if schedule is not None:
            self.gain_probability = gain_probability(
                np.array(self.steps, dtype=np.float64),
                np.array(self.loss, dtype=np.float64),
                np.array(self.bleu, dtype=np.float64),
                schedule,
            )


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


def reason_to_stop(
    settings: TrainingSettings,
    step: int,
    epoch: float,
    seconds: float,
    best: Best,
    gain_probability: float | None = None,
) -> Stop:
    """Check the settings' limits after a step."""
    if settings.steps is not None and step >= settings.steps:
        return Stop.STEPS
    if settings.epochs is not None and epoch >= settings.epochs:
        return Stop.EPOCHS
    if settings.hours is not None and seconds >= 3600 * settings.hours:
        return Stop.HOURS
    waited = (
        best.evaluations_since_loss
        if settings.patience_metric == "loss"
        else best.evaluations_since_bleu
    )
    if settings.patience is not None and waited >= settings.patience:
        return Stop.PATIENCE
    unlikely = settings.stop_when_gain_unlikely
    if unlikely is not None and gain_probability is not None and gain_probability <= unlikely:
        return Stop.GAIN_UNLIKELY
    return Stop.NO


class Stopwatch:
    """Wall time of all lives of a run together."""

    def __init__(self, seconds_before: float) -> None:
        self._seconds_before = seconds_before
        self._start = time.monotonic()

    def seconds(self) -> float:
        """Seconds so far."""
        return self._seconds_before + time.monotonic() - self._start
