"""How far a run has come: its place in the corpus and its scores, saved with every checkpoint."""

import math
from dataclasses import dataclass, field

import numpy as np

from dragoman.corpus.rows import Position
from dragoman.prediction.outlook import gain_probability
from dragoman.prediction.run_schedule import RunSchedule


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


@dataclass
class Progress:
    """All that a run remembers beside its weights and moments."""

    step: int = 0
    epoch: float = 0.0
    position: Position = field(default_factory=Position)
    best: Best = field(default_factory=Best)
    scores: ScoreCurve = field(default_factory=ScoreCurve)
    skipped_in_a_row: int = 0
    seconds: float = 0.0
    rows_per_device: int = 0
    device: str = ""  # The kind on which so many rows fit.
    owes_evaluation: bool = False  # At this step; a signal came before it.
