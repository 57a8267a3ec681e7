"""The learning rate of each step: a pure function, so that a report can check the logged curve."""

import math

from dragoman.config import ScheduleSettings


def learning_rate(
    step: int, schedule: ScheduleSettings, d_model: int, total_steps: int | None
) -> float:
    """Learning rate of a step; the first step is 1."""
    warmup = schedule.warmup_steps
    if schedule.kind == "transformer":
        rise_or_fall = min(1 / math.sqrt(step), step / (warmup * math.sqrt(warmup)))
        return schedule.scale / math.sqrt(d_model) * rise_or_fall
    if step < warmup:
        return schedule.peak * step / warmup
    return schedule.peak * _fraction_of_peak(step, schedule, total_steps)


def peak_step(schedule: ScheduleSettings) -> int:
    """The step with the highest learning rate."""
    return schedule.warmup_steps


def _fraction_of_peak(step: int, schedule: ScheduleSettings, total_steps: int | None) -> float:
    final = schedule.final_fraction
    match schedule.kind:
        case "inverse_square_root":
            return math.sqrt(schedule.warmup_steps / step)
        case "cosine":
            assert total_steps, "the config's checks ask for it"
            done = (step - schedule.warmup_steps) / (total_steps - schedule.warmup_steps)
            return final + (1 - final) * (1 + math.cos(math.pi * min(done, 1.0))) / 2
        case "warmup_stable_decay":
            assert total_steps, "the config's checks ask for it"
            left = (total_steps - step) / schedule.decay_steps
            return final + (1 - final) * min(max(left, 0.0), 1.0)
        case _:
            return 1.0
