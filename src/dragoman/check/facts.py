"""What a check has measured."""

from collections.abc import Mapping
from dataclasses import dataclass

from dragoman.records import Link


@dataclass(frozen=True)
class MachineFacts:
    """What a machine has."""

    host: str
    cores: int
    memory_bytes: int
    gpus: tuple[str, ...]
    gpu_memory_bytes: tuple[int, ...]
    disk_free_bytes: int
    interfaces: Mapping[str, int | None]  # The speed that each claims, in Mb/s.
    clock_lead_seconds: float = 0.0


@dataclass(frozen=True)
class StepFacts:
    """What a step of this model takes."""

    parameters: int
    target_tokens: int
    seconds_compute_by_worker: tuple[float, ...]
    seconds_optimizer: float
    seconds_exposed: float
    seconds_all_reduce: float | None
    device: str


@dataclass(frozen=True)
class Findings:
    """Everything that was measured."""

    hosts: tuple[str, ...]  # Of each worker, by rank.
    machines: tuple[MachineFacts, ...]
    links: tuple[Link, ...]
    step: StepFacts
