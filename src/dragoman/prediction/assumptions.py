"""What predictions assume, and which of it the run did not measure."""

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
    "A step is the same global batch for any number of workers: twice the workers, half the "
    "compute for each. Devices with too little work are slower than this.",
    "Ring all-reduce: each of m machines sends 2(m-1)/m of the gradients in 2(m-1) hops of one "
    "latency each.",
    "Overlap: an exchange hides behind the backward pass (two thirds of compute, of the last "
    "micro-batch) as well as it did in this run.",
    "Local steps: one exchange every distributed.local_steps steps, in one or more fragments, "
    "hidden behind the steps that run meanwhile (distributed.local_delay). Packing it and the "
    "outer step take 0.04 ns per parameter on a GPU and 9 to 28 ns on a CPU, more with fewer bits; "
    "from a GPU to the link and back is another 2 ns, which can hide too.",
    "16-bit compression halves the bytes; 8, 4 and 2 bits cut them to a quarter, an eighth and a "
    "sixteenth; PowerSGD (rank 4) leaves 2.4% of them and costs 3.4 ns per parameter on a CPU.",
    "The slowest link counts, and nothing else uses it. Waiting for data stays the same, and so "
    "does waiting for the slowest worker, unless devices are faster.",
)


def assumptions_of(run: MeasuredRun, rows: Sequence[Prediction]) -> list[str]:
    """What the rows rest on; first what this run did not measure, and they need."""
    found = []
    if run.has_no_link and any(row.machines > 1 for row in rows):
        found.append(
            "Not measured: links, because this run had one machine. Rows with several machines "
            f"assume {in_bits_per_second(USUAL_BYTES_PER_SECOND)} and "
            f"{in_time(USUAL_LATENCY_SECONDS)} per hop unless they say otherwise."
        )
    if run.machines > 1 and math.isinf(run.bytes_per_second):
        found.append(
            "Not measured: the links of this run. An exchange is assumed to take as long as the "
            "run waited for one, for any number of machines."
        )
    if run.workers == 1 and any(row.workers > 1 for row in rows):
        found.append(
            "Not measured: an exchange, because this run had one worker. It is assumed to cost "
            "only its bytes and hops, and to overlap with nothing."
        )
    crowded = [row for row in rows if row.workers > row.machines]
    if crowded:
        words = "Gradients are summed inside each machine before anything is sent"
        if run.workers == run.machines:
            words += (
                ". That cost was not measured, because no machine had two workers; it is "
                "assumed to be zero"
            )
        if any(row.machines > 1 for row in crowded) and (
            run.device == "cuda" or "powersgd" in {row.compression for row in crowded}
        ):
            words += (
                ". Plain kernels on GPUs and PowerSGD leave this to PyTorch, whose rings may "
                "send up to twice as much"
            )
        found.append(f"{words}.")
    if run.device == "cpu" and (crowded or run.workers > run.machines):
        found.append(
            "On CPUs the workers of a machine share its cores: a single worker uses them all, "
            "and more workers on one machine compute no faster."
        )
    return [*found, *_ALWAYS]
