"""What people ask about after a run: other links, other settings, more machines."""

import math
from dataclasses import replace

from dragoman.config import FEW_BITS, Compression
from dragoman.prediction.step_model import ALONE, GIGABIT, MeasuredRun, Scenario
from dragoman.prediction.sync_choice import choose_local_steps

MOST_WORKERS = 1024


def gradients_instead(scenario: Scenario, run: MeasuredRun) -> Scenario:
    """A scenario of single steps: in one piece, and in bits that gradients can be sent in."""
    bits: Compression | None = "bf16" if run.compression in FEW_BITS else None
    return replace(
        scenario,
        local_fragments=scenario.local_fragments or 1,
        compression=scenario.compression or bits,
    )


def usual_questions(run: MeasuredRun) -> list[tuple[str, Scenario]]:
    """What people ask about after a run; how to synchronize, of at least two machines."""
    faster = [
        ("4 times the batch", Scenario(batch_factor=4)),
        ("devices twice as fast", Scenario(device_speed=2)),
    ]
    several = Scenario(machines=max(2, run.machines))
    if several.workers_of(run) > run.rows_per_step:
        return faster
    links = {"100 Mb/s": 0.1, "1 Gb/s": 1, "10 Gb/s": 10, "100 Gb/s": 100}
    questions = [("1 worker", ALONE)] if run.workers > 1 else []
    questions += [
        (f"network of {name}", replace(several, bytes_per_second=gigabits * GIGABIT))
        for name, gigabits in links.items()
    ]
    questions.append(("infinite bandwidth", replace(several, bytes_per_second=math.inf)))
    other: Compression = "bf16" if run.compression == "none" else "none"
    questions.append(
        (f"{other} compression".replace("none", "no"), replace(several, compression=other))
    )
    if run.local_steps > 1:
        every_step = gradients_instead(replace(several, local_steps=1), run)
        bits = every_step.compression
        questions.append((f"an exchange every step{f', {bits}' if bits else ''}", every_step))
    else:
        local = choose_local_steps(several.apply_to(run))
        words = f"{local.local_steps} local steps, {local.compression}"
        questions.append((words, replace(local, machines=several.machines)))
    usual = several.apply_to(run)
    more = [
        (f"{workers:,} workers", Scenario(workers=workers))
        for workers in (4, 16, 64, 256, MOST_WORKERS)
        if usual.workers / usual.machines < workers <= run.rows_per_step
        and workers != usual.workers
    ]
    return [*questions, *faster, *more]
