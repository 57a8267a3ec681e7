"""Predicted step time for other links, worker counts, compression and batch sizes."""

import math
import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Literal

from dragoman.errors import UserError
from dragoman.report.wording import in_bits_per_second, in_bytes, in_percent, in_time

Compression = Literal["none", "bf16", "fp16", "powersgd"]

# Bytes on the wire as part of float32 gradients; powersgd measured at rank 4.
COMPRESSED: dict[str, float] = {"none": 1.0, "bf16": 0.5, "fp16": 0.5, "powersgd": 0.024}
POWERSGD_SECONDS_PER_PARAMETER = 3.4e-9  # On a CPU: 0.2 s for 60.9 million parameters.
BACKWARD_SHARE = 2 / 3
MOST_WORKERS = 1024

ASSUMPTIONS = (
    "A step is the same global batch whatever the number of workers: twice the workers, half the "
    "arithmetic for each. Devices that are given too little to do are slower than this.",
    "Gradients meet in a ring: each of m machines sends 2(m-1)/m of them, in 2(m-1) hops of one "
    "latency each; workers of one machine add theirs up first, at no cost on the wire.",
    "Communication hides behind the backward pass (two thirds of compute) as well as it did in "
    "this run; with local steps nothing is hidden.",
    "The slowest link counts, and nobody else uses it. Data, optimizer and other time stay as "
    "they were.",
    "16-bit compression halves the bytes; PowerSGD (rank 4) leaves 2.4% of them and costs "
    "3.4 ns a parameter on a CPU.",
)


@dataclass(frozen=True)
class Calibration:
    """What a run has measured about itself; all that a prediction needs."""

    machines: int
    workers: int
    gradient_bytes: float  # Uncompressed: 4 bytes a parameter.
    tokens_per_step: float
    seconds_compute: float  # Forward and backward pass of one worker's share.
    seconds_optimizer: float
    seconds_fixed: float  # Waiting for data, and other.
    seconds_straggling: float = 0.0  # Waiting for the slowest worker.
    seconds_step: float | None = None  # As measured, to hold the prediction against.
    bytes_per_second: float = math.inf  # Goodput of the slowest link.
    latency_seconds: float = 0.0
    seconds_overhead: float = 0.0  # Of an exchange, beyond bytes and latency.
    overlap: float = 0.0  # Hidden communication as part of what could be hidden.
    compression: str = "none"
    local_steps: int = 1
    reduces_inside: bool = True
    micro_batches: int = 1
    device: str = "cuda"


@dataclass(frozen=True)
class Scenario:
    """What to change; None leaves it as it was in the run."""

    bytes_per_second: float | None = None
    latency_seconds: float | None = None
    machines: int | None = None
    workers: int | None = None
    compression: str | None = None
    local_steps: int | None = None
    accumulation: float = 1.0  # Times the tokens of a step.
    compute_speed: float = 1.0  # Times the speed of the devices.


@dataclass(frozen=True)
class Prediction:
    """One line of the table."""

    label: str
    machines: int
    workers: int
    bytes_per_second: float
    compression: str
    local_steps: int
    seconds_step: float
    seconds_compute: float
    seconds_exposed: float
    bytes_per_step: float  # Sent by one machine, on average over local steps.
    tokens_per_second: float
    efficiency: float  # Of one worker alone times the number of workers.
    hours: float | None
    cost: float | None


def ring_bytes(gradient_bytes: float, machines: int, workers: int, *, inside: bool) -> float:
    """Bytes that one machine sends in a ring all-reduce."""
    if machines < 2:
        return 0.0
    peers = machines if inside else workers
    return 2 * (peers - 1) / peers * gradient_bytes


def predict(
    calibration: Calibration,
    scenario: Scenario,
    label: str = "",
    steps: float | None = None,
    price_per_machine_hour: float | None = None,
) -> Prediction:
    """Predict one step; `steps` and a price give hours and cost of as many tokens."""
    machines, workers = _placement(calibration, scenario)
    compression = scenario.compression or calibration.compression
    local_steps = scenario.local_steps or calibration.local_steps
    bandwidth = scenario.bytes_per_second or calibration.bytes_per_second
    alone = calibration.workers * calibration.seconds_compute * scenario.accumulation
    alone /= scenario.compute_speed
    compute = alone / workers
    wire_bytes = COMPRESSED[compression] * ring_bytes(
        calibration.gradient_bytes, machines, workers, inside=calibration.reduces_inside
    )
    peers = machines if calibration.reduces_inside else workers
    exchange = _exchange_seconds(calibration, scenario, peers, wire_bytes, workers)
    # Only the last micro-batch's backward pass runs beside the exchange.
    share = BACKWARD_SHARE / max(1.0, calibration.micro_batches * scenario.accumulation)
    hidden = calibration.overlap * min(exchange, share * compute) if local_steps == 1 else 0.0
    exposed = (exchange - hidden) / local_steps
    fixed = calibration.seconds_fixed + calibration.seconds_optimizer / scenario.compute_speed
    straggling = calibration.seconds_straggling / scenario.compute_speed if workers > 1 else 0.0
    seconds = compute + fixed + straggling + exposed
    hours = None if steps is None else steps / scenario.accumulation * seconds / 3600
    priced = hours is not None and price_per_machine_hour is not None
    return Prediction(
        label=label,
        machines=machines,
        workers=workers,
        bytes_per_second=bandwidth,
        compression=compression,
        local_steps=local_steps,
        seconds_step=seconds,
        seconds_compute=compute,
        seconds_exposed=exposed,
        bytes_per_step=wire_bytes / local_steps,
        tokens_per_second=calibration.tokens_per_step * scenario.accumulation / seconds,
        efficiency=(alone + fixed) / (workers * seconds),
        hours=hours,
        cost=(hours or 0.0) * machines * (price_per_machine_hour or 0.0) if priced else None,
    )


def _exchange_seconds(
    calibration: Calibration, scenario: Scenario, peers: int, wire_bytes: float, workers: int
) -> float:
    """One all-reduce of the gradients, nothing hidden."""
    if workers < 2:
        return 0.0
    compression = scenario.compression or calibration.compression
    seconds = COMPRESSED[compression] * calibration.seconds_overhead
    if wire_bytes:
        bandwidth = scenario.bytes_per_second or calibration.bytes_per_second
        latency = scenario.latency_seconds
        latency = calibration.latency_seconds if latency is None else latency
        seconds += wire_bytes / bandwidth + 2 * (peers - 1) * latency
    if compression == "powersgd" and calibration.device == "cpu":
        seconds += calibration.gradient_bytes / 4 * POWERSGD_SECONDS_PER_PARAMETER
    return seconds


def _placement(calibration: Calibration, scenario: Scenario) -> tuple[int, int]:
    """Machines and workers of a scenario; machines are filled as they were in the run."""
    per_machine = max(1, round(calibration.workers / calibration.machines))
    if scenario.workers is None:
        machines = scenario.machines or calibration.machines
        unchanged = machines == calibration.machines
        return machines, calibration.workers if unchanged else machines * per_machine
    machines = scenario.machines or max(
        1 if calibration.machines == 1 and scenario.workers <= per_machine else 0,
        math.ceil(scenario.workers / per_machine),
    )
    if machines > scenario.workers:
        raise UserError(
            f"{machines} machines for {scenario.workers} workers: every machine needs a worker"
        )
    return machines, scenario.workers


def whatif_table(
    calibration: Calibration,
    scenarios: Sequence[tuple[str, Scenario]],
    steps: float | None = None,
    price_per_machine_hour: float | None = None,
) -> tuple[Prediction, ...]:
    """Predict the run as it was, then every labelled scenario."""
    as_it_was = ("this run", Scenario())
    return tuple(
        predict(calibration, scenario, label, steps, price_per_machine_hour)
        for label, scenario in (as_it_was, *scenarios)
    )


def usual_questions(calibration: Calibration) -> list[tuple[str, Scenario]]:
    """The scenarios that people ask about after a run."""
    several = calibration if calibration.machines > 1 else replace(calibration, machines=2)
    machines = several.machines
    here = Scenario(machines=machines)
    speeds = [(f"{name} network", 1e6 / 8 * mbit) for name, mbit in _LINKS]
    questions = [
        (label, replace(here, bytes_per_second=speed))
        for label, speed in [*speeds, ("infinite network", math.inf)]
    ]
    if math.isinf(calibration.bytes_per_second):
        here = replace(here, bytes_per_second=1e9 / 8)
    at = "" if here.bytes_per_second is None else " at 1 Gb/s"
    other = "bf16" if calibration.compression == "none" else "none"
    questions += [
        (f"{other} compression{at}".replace("none", "no"), replace(here, compression=other)),
        (f"8 local steps{at}", replace(here, local_steps=8)),
        (f"4 times the batch{at}", replace(here, accumulation=4)),
        (f"devices twice as fast{at}", replace(here, compute_speed=2)),
    ]
    per_machine = max(1, round(calibration.workers / calibration.machines))
    counts = [workers for workers in (4, 16, 64, 256, MOST_WORKERS) if workers > per_machine]
    questions += [
        (f"{workers:,} workers{at}", replace(here, machines=None, workers=workers))
        for workers in counts
        if workers != calibration.workers
    ]
    return questions


_LINKS = (("100 Mb/s", 100), ("1 Gb/s", 1_000), ("10 Gb/s", 10_000), ("100 Gb/s", 100_000))


def render_table(predictions: Sequence[Prediction]) -> str:
    """The table as text for a terminal."""
    header = ["", "workers", "network", "step", "exposed", "sent", "tokens/s", "efficiency"]
    has_hours = any(row.hours is not None for row in predictions)
    has_cost = any(row.cost is not None for row in predictions)
    header += ["hours"] * has_hours + ["cost"] * has_cost
    rows = [header]
    for row in predictions:
        cells = [
            row.label,
            f"{row.workers:,}",
            in_bits_per_second(row.bytes_per_second) if row.machines > 1 else "none",
            in_time(row.seconds_step),
            in_time(row.seconds_exposed),
            in_bytes(row.bytes_per_step),
            f"{row.tokens_per_second:,.0f}",
            in_percent(row.efficiency),
        ]
        cells += [f"{row.hours:,.1f}" if row.hours is not None else ""] * has_hours
        cells += [f"{row.cost:,.2f}" if row.cost is not None else ""] * has_cost
        rows.append(cells)
    widths = [max(len(row[column]) for row in rows) for column in range(len(header))]
    return "\n".join(
        "  ".join(
            cell.ljust(width) if column == 0 else cell.rjust(width)
            for column, (cell, width) in enumerate(zip(row, widths, strict=True))
        ).rstrip()
        for row in rows
    )


def parse_bandwidth(text: str) -> float:
    """Bytes per second of a bandwidth such as 10Gbit, 100 Mb/s or 1.25GB/s."""
    match = re.fullmatch(r"\s*([\d.]+)\s*([kKMGT]?)(bit|b|B)(?:/s|ps)?\s*", text)
    try:
        amount = float(match.group(1)) if match else 0.0
    except ValueError:
        amount = 0.0
    if match is None or amount <= 0:
        raise UserError(f"bandwidth {text!r}: write a number and a unit, as in 10Gbit or 100Mbit")
    factor = {"": 1, "k": 1e3, "K": 1e3, "M": 1e6, "G": 1e9, "T": 1e12}[match.group(2)]
    return amount * factor / (1 if match.group(3) == "B" else 8)
