"""What predictions rest on, and what of it the run did not measure."""

import math
from collections.abc import Sequence

from dragoman.prediction.step_model import (
    USUAL_BYTES_PER_SECOND,
    USUAL_LATENCY_SECONDS,
    MeasuredRun,
    Prediction,
)
from dragoman.wording import in_bits_per_second, in_time

_ALWAYS = (
    "A step is the same global batch whatever the number of workers: twice the workers, half the "
    "arithmetic for each. Devices that are given too little to do are slower than this.",
    "Ring: each of m machines sends 2(m-1)/m of the gradients in 2(m-1) hops of one latency each.",
    "Overlap: an exchange hides behind the backward pass (two thirds of compute, of the last "
    "micro-batch) as well as it did in this run.",
    "Local steps: one exchange every so many steps, in one or more fragments, which hides behind "
    "the steps that it may travel beside (distributed.local_delay). Packing it and the outer step "
    "take 0.04 ns a parameter on a GPU, on a CPU 9 to 23 ns as the bits get fewer.",
    "16 bits halve the bytes, 8 and 4 bits leave a quarter and an eighth; PowerSGD (rank 4) leaves "
    "2.4% of them and costs 3.4 ns a parameter on a CPU.",
    "The slowest link counts, and nobody else uses it. Waiting for data stays as it was, and so "
    "does waiting for the slowest worker, unless devices are faster.",
)


def assumptions_of(run: MeasuredRun, rows: Sequence[Prediction]) -> list[str]:
    """What the rows rest on; first what this run did not measure, and they need."""
    found = []
    if run.has_no_link and any(row.machines > 1 for row in rows):
        found.append(
            "Not measured: links, as this run had one machine. Lines with several take "
            f"{in_bits_per_second(USUAL_BYTES_PER_SECOND)} and {in_time(USUAL_LATENCY_SECONDS)} a "
            "hop where they do not say otherwise."
        )
    if run.machines > 1 and math.isinf(run.bytes_per_second):
        found.append(
            "Not measured: the links of this run. An exchange takes as long as the run waited for "
            "one, whatever the number of machines."
        )
    if run.workers == 1 and any(row.workers > 1 for row in rows):
        found.append(
            "Not measured: an exchange, as this run had one worker. It is taken to cost its bytes "
            "and hops, nothing else, and to hide behind nothing."
        )
    crowded = [row for row in rows if row.workers > row.machines]
    if crowded:
        words = "Reduction inside a machine first: its workers add up before anything is sent"
        if run.workers == run.machines:
            words += (
                ". What that costs was not measured, as no machine had two; it is taken as free"
            )
        if any(row.machines > 1 for row in crowded) and (
            run.device == "cuda" or "powersgd" in {row.compression for row in crowded}
        ):
            words += (
                ". Plain kernels on GPUs and PowerSGD leave it to the engine's rings instead, "
                "which may send up to twice as much"
            )
        found.append(f"{words}.")
    if run.device == "cpu" and (crowded or run.workers > run.machines):
        found.append(
            "On CPUs the workers of a machine share its cores: one alone has all of them, and "
            "more of them on one machine compute no faster."
        )
    return [*found, *_ALWAYS]
