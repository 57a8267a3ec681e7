"""What is sent between machines, and how much of it can be hidden: each formula in one place."""

import math
from collections.abc import Sequence
from typing import assert_never

from dragoman.config import POWERSGD_LEAST_GAIN, Compression, DistributedSettings

BACKWARD_SHARE = 2 / 3  # Of compute: the backward pass does twice the forward's arithmetic.
SCALES_PER_BYTE = 4 / 512  # Of numbers in 8 bits: a scale of 4 bytes for each block.
POWERSGD_SECONDS_PER_PARAMETER = 3.4e-9  # On a CPU: 0.2 s for 60.9 million parameters.
# An outer step with all packing and adding up, of one worker: on a CPU measured on one core, on an
# H200 as what two machines that share it lost in steps beside machines that never synchronize.
GPU_OUTER_SECONDS_PER_PARAMETER = 4e-11
CPU_OUTER_SECONDS_PER_PARAMETER = 8e-9
# The way from a GPU to the link and back, beyond the bytes' own time: nothing waits for it if an
# exchange has steps enough. On an H200, for links of 1 and 10 Gb/s.
GPU_STAGING_SECONDS_PER_PARAMETER = 2e-9


def ring_share(machines: int) -> float:
    """How often each of so many machines sends all of what is summed in a ring."""
    return 2 * (machines - 1) / machines


def ring_hops(machines: int) -> int:
    """Messages that a sum waits for, one after the other."""
    return 2 * (machines - 1)


def hideable_seconds(seconds_compute: float, micro_batches: float) -> float:
    """What runs beside an exchange of gradients: the last micro-batch's backward pass."""
    return BACKWARD_SHARE * seconds_compute / micro_batches


def travelling_steps(local_steps: int, fragments: int, delay: int | None) -> int:
    """Steps of a round beside which something may travel, each fragment having its delay."""
    return min(local_steps, fragments * (local_steps // fragments if delay is None else delay))


def outer_seconds(parameters: float, compression: Compression, device: str) -> float:
    """What an exchange of local steps takes from the computing: packing, adding up, applying."""
    if device != "cpu":
        return GPU_OUTER_SECONDS_PER_PARAMETER * parameters
    return (CPU_OUTER_SECONDS_PER_PARAMETER + _packing_seconds(compression)) * parameters


def staging_seconds(parameters: float, device: str) -> float:
    """What an exchange of local steps takes beside the computing, before and after the link."""
    return 0.0 if device == "cpu" else GPU_STAGING_SECONDS_PER_PARAMETER * parameters


def seconds_beside_link(parameters: float, compression: Compression, device: str) -> float:
    """What an exchange of local steps that is timed alone takes longer than the link."""
    if device == "cpu":
        return _packing_seconds(compression) * parameters
    return staging_seconds(parameters, device)


def _packing_seconds(compression: Compression) -> float:
    """Of one parameter on one core of a CPU."""
    match compression:
        case "none" | "powersgd":
            return 1e-9
        case "bf16" | "fp16":
            return 2.5e-9
        case "int8":
            return 8e-9
        case "int4":
            return 15e-9
        case "int2":
            return 20e-9
        case _:
            assert_never(compression)


def compressed_share(compression: Compression) -> float:
    """Bytes on the wire as part of float32 gradients; powersgd measured at rank 4."""
    match compression:
        case "none":
            return 1.0
        case "bf16" | "fp16":
            return 0.5
        case "powersgd":
            return 0.024
        case "int8":
            return 0.25 * (1 + SCALES_PER_BYTE)
        case "int4":
            return 0.125 * (1 + 2 * SCALES_PER_BYTE)
        case "int2":
            return 0.0625 * (1 + 4 * SCALES_PER_BYTE)
        case _:
            assert_never(compression)


def bytes_sent_per_step(
    shapes: Sequence[Sequence[int]], machines: int, settings: DistributedSettings
) -> float:
    """Bytes that each machine sends in a step, in theory: its part of a ring."""
    elements = sum(map(math.prod, shapes))
    if settings.compression == "powersgd":
        size = 4.0 * sum(_factor_elements(shape, settings.powersgd_rank) for shape in shapes)
    else:
        size = 4.0 * elements * compressed_share(settings.compression)
    if settings.sync == "local":
        size /= settings.local_steps
    return ring_share(machines) * size


def _factor_elements(shape: Sequence[int], rank: int) -> int:
    """A matrix travels as two thin ones, if that is less than half; anything else as it is."""
    elements = math.prod(shape)
    if len(shape) < 2:
        return elements
    rows, columns = shape[0], elements // shape[0]
    thin = (rows + columns) * min(rows, columns, rank)
    return thin if POWERSGD_LEAST_GAIN * thin < elements else elements
