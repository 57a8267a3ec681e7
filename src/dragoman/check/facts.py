"""What a check has measured."""

from dataclasses import asdict, dataclass
from typing import Any

from dragoman.cluster.links import Link


@dataclass(frozen=True)
class MachineFacts:
    """What a machine has."""

    host: str
    cores: int
    memory_bytes: int
    gpus: list[str]
    gpu_memory_bytes: list[int]
    disk_free_bytes: int
    interfaces: dict[str, int | None]  # The speed that each claims, in Mb/s.
    clock_lead_seconds: float = 0.0


@dataclass(frozen=True)
class StepFacts:
    """What a step of this model takes."""

    parameters: int
    target_tokens: int
    seconds_compute_by_worker: list[float]
    seconds_optimizer: float
    seconds_exposed: float
    seconds_all_reduce: float | None
    device: str


@dataclass(frozen=True)
class Findings:
    """Everything that was measured."""

    hosts: tuple[str, ...]  # Of each worker, by rank.
    machines: list[MachineFacts]
    links: list[Link]
    step: StepFacts

    def to_json(self) -> dict[str, Any]:
        """As plain values."""
        return asdict(self)

    @staticmethod
    def from_json(values: dict[str, Any]) -> "Findings":
        """Read what `to_json` gave."""
        return Findings(
            hosts=tuple(values["hosts"]),
            machines=[MachineFacts(**one) for one in values["machines"]],
            links=[Link(**{**one, "hosts": tuple(one["hosts"])}) for one in values["links"]],
            step=StepFacts(**values["step"]),
        )
