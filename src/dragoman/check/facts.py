"""What a check has measured."""

from collections.abc import Mapping
from dataclasses import dataclass

from dragoman.prediction.step_model import StepFacts
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
class Findings:
    """Everything that was measured."""

    hosts: tuple[str, ...]  # Of each worker, by rank.
    machines: tuple[MachineFacts, ...]
    links: tuple[Link, ...]
    step: StepFacts
