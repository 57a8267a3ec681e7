"""What 50% more steps would bring, in loss and BLEU; for the report and for stopping."""

import math
from dataclasses import dataclass
from typing import Literal

import numpy as np

from dragoman.prediction.learning_curve import Curve, Forecast, forecast
from dragoman.prediction.run_schedule import RunSchedule
from dragoman.schedule import Floats
from dragoman.thresholds import (
    BLEU_CEILING,
    EVALUATIONS_FOR_CONFIDENCE,
    EVALUATIONS_NEEDED,
    MEANINGFUL_BLEU_GAIN,
    MEANINGFUL_LOSS_GAIN,
)

Measure = Literal["loss", "BLEU"]

# Of a measure that falls as a model gets better: BLEU is turned upside down.
_LIMITS: dict[Measure, tuple[float, float]] = {"loss": (0.0, math.inf), "BLEU": (-100.0, 0.0)}
MEANINGFUL = {"loss": MEANINGFUL_LOSS_GAIN.value, "BLEU": MEANINGFUL_BLEU_GAIN.value}


@dataclass(frozen=True)
class Outlook:
    """Forecasts of the measures that are known."""

    loss: Forecast | None
    bleu: Forecast | None
    is_at_ceiling: bool  # BLEU cannot show any more.

    @property
    def forecasts(self) -> dict[Measure, Forecast]:
        """Those that there are."""
        both: tuple[tuple[Measure, Forecast | None], ...] = (
            ("loss", self.loss),
            ("BLEU", self.bleu),
        )
        return {measure: found for measure, found in both if found is not None}

    @property
    def probability(self) -> float:
        """How likely loss or BLEU gains what is worth having; NaN if nothing is known.

        The two rise and fall together, so that either is hardly likelier than the likelier one.
        """
        deciding = {
            measure: found
            for measure, found in self.forecasts.items()
            if measure == "BLEU" or not self.is_at_ceiling
        }
        chances = (one.gain_probability(MEANINGFUL[name]) for name, one in deciding.items())
        return max(chances, default=math.nan)


def look_ahead(steps: Floats, loss: Floats, bleu: Floats, schedule: RunSchedule | None) -> Outlook:
    """Forecast from all evaluations of one validation set."""
    known = bleu[np.isfinite(bleu)]
    return Outlook(
        loss=forecast_of(steps, loss, "loss", schedule),
        bleu=forecast_of(steps, -bleu, "BLEU", schedule),
        is_at_ceiling=len(known) > 0 and float(np.median(known[-3:])) >= BLEU_CEILING.value,
    )


def forecast_of(
    steps: Floats, values: Floats, measure: Measure, schedule: RunSchedule | None
) -> Forecast | None:
    """Forecast a measure that falls as a model gets better; None with too few evaluations."""
    known = np.isfinite(values) & (steps > 0)
    if known.sum() < EVALUATIONS_NEEDED.value:
        return None
    return forecast(
        Curve(steps[known], values[known], MEANINGFUL[measure], *_LIMITS[measure]), schedule
    )


def gain_probability(
    steps: Floats, loss: Floats, bleu: Floats, schedule: RunSchedule
) -> float | None:
    """How likely more steps bring anything; None of a run that has hardly begun."""
    if len(steps) < EVALUATIONS_FOR_CONFIDENCE.value or steps[-1] <= schedule.peak_step:
        return None
    probability = look_ahead(steps, loss, bleu, schedule).probability
    return probability if math.isfinite(probability) else None
