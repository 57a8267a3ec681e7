"""Predicted step time: a function of what one run measured and of what would be different."""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

from dragoman.config import FEW_BITS, Compression
from dragoman.errors import UserError
from dragoman.prediction.network import (
    POWERSGD_SECONDS_PER_PARAMETER,
    compressed_share,
    hideable_seconds,
    outer_seconds,
    ring_hops,
    ring_share,
    staging_seconds,
    travelling_steps,
)
from dragoman.records import Link

GIGABIT = 1e9 / 8  # Bytes per second.
# What hosts may take for an exchange beside the link: busy ones for any, slow ones for a byte.
HOST_SECONDS, HOST_SECONDS_PER_BYTE = 0.01, 1e-8
LEAST_LINK_SHARE = 0.5
# Workers and machines this many times slower than the fastest are so by more than chance.
UNEQUAL = 1.3
# Of a link that nobody measured: ordinary Ethernet through a switch.
USUAL_BYTES_PER_SECOND, USUAL_LATENCY_SECONDS = GIGABIT, 1e-4


@dataclass(frozen=True)
class MeasuredRun:
    """How a run was set up and what it has measured; all that a prediction needs."""

    machines: int
    workers: int
    gradient_bytes: float  # Uncompressed: 4 bytes a parameter.
    tokens_per_step: float
    seconds_compute: float  # Forward and backward pass of one worker's share.
    seconds_optimizer: float
    seconds_fixed: float  # Waiting for data, and other.
    seconds_straggling: float = 0.0  # Waiting for the slowest worker.
    seconds_overhead: float = 0.0  # Of an uncompressed exchange, whatever the link.
    link_share: float = 1.0  # Of the links' goodput, what an exchange reached.
    seconds_step: float | None = None  # As measured, to hold the prediction against.
    overlap: float = 0.0  # Hidden communication as part of what could be hidden.
    bytes_per_second: float = math.inf  # Goodput of the slowest link.
    latency_seconds: float = 0.0
    compression: Compression = "none"
    local_steps: int = 1  # From one exchange to the next.
    local_fragments: int = 1  # Parts of an exchange, spread over the local steps.
    local_delay: int | None = None  # Steps that a part may travel; None: until the next sets out.
    micro_batches: float = 1.0
    rows_per_step: float = math.inf  # Of all workers together; each needs one.
    device: str = "cuda"
    fastest: float = 1.0  # What the fastest worker takes for an equal share, in seconds_compute.

    @property
    def devices(self) -> int:
        """What computes side by side: on CPUs the workers of a machine share its cores."""
        return self.machines if self.device == "cpu" else self.workers

    @property
    def has_no_link(self) -> bool:
        """Whether nothing is known of links, because there was no second machine."""
        return self.machines == 1 and math.isinf(self.bytes_per_second)

    @property
    def sent_bytes(self) -> float:
        """Bytes that one machine sends in one exchange."""
        share = ring_share(self.machines) * compressed_share(self.compression)
        return share * self.gradient_bytes

    @property
    def exchange_seconds(self) -> float:
        """One exchange, nothing hidden."""
        if self.local_steps == 1 or self.workers < 2:
            return self.link_seconds
        return self.link_seconds + staging_seconds(self.gradient_bytes / 4, self.device)

    @property
    def link_seconds(self) -> float:
        """The time for which one exchange keeps the link busy."""
        if self.workers < 2:
            return 0.0
        hops = ring_hops(self.machines) * self.local_fragments
        seconds = self.sent_bytes / (self.bytes_per_second * self.link_share)
        seconds += hops * self.latency_seconds
        seconds += compressed_share(self.compression) * self.seconds_overhead
        if self.compression == "powersgd" and self.device == "cpu":
            seconds += self.gradient_bytes / 4 * POWERSGD_SECONDS_PER_PARAMETER
        return seconds

    @property
    def hidden_seconds(self) -> float:
        """The part of an exchange that runs beside the computing."""
        exchange = self.exchange_seconds
        if self.local_steps == 1:
            backward = hideable_seconds(self.seconds_compute, self.micro_batches)
            return self.overlap * min(exchange, backward)
        steps = travelling_steps(self.local_steps, self.local_fragments, self.local_delay)
        return min(exchange, steps * self.seconds_alone)

    @property
    def seconds_compute_alone(self) -> float:
        """What the fastest device takes for all of a step."""
        fastest = self.fastest if self.devices > 1 else 1.0
        return self.devices * self.seconds_compute * fastest

    @property
    def seconds_alone(self) -> float:
        """A step without synchronizing."""
        return self.seconds_compute + self.seconds_optimizer + self.seconds_fixed

    @property
    def outer_seconds(self) -> float:
        """What one exchange of local steps takes from the computing."""
        if self.local_steps == 1 or self.workers < 2:
            return 0.0
        return outer_seconds(self.gradient_bytes / 4, self.compression, self.device)


@dataclass(frozen=True)
class StepFacts:
    """What was measured before any training, of workers that sum plain gradients at every step."""

    parameters: int
    target_tokens: int
    seconds_compute_by_worker: tuple[float, ...]  # Of equal shares.
    seconds_optimizer: float
    seconds_exposed: float
    seconds_all_reduce: float | None
    device: str

    def seconds_compute(self, *, is_balanced: bool) -> float:
        """What the slowest worker takes, or all of them if each has what suits its speed."""
        seconds = self.seconds_compute_by_worker
        if is_balanced:
            return len(seconds) / sum(1 / one for one in seconds)
        return max(seconds)


def before_training(
    step: StepFacts, machines: int, links: Sequence[Link], *, is_balanced: bool
) -> MeasuredRun:
    """A run that has yet to begin, as far as it is known."""
    parameters, seconds_compute = step.parameters, step.seconds_compute(is_balanced=is_balanced)
    goodput = min((link.goodput_bytes_per_second for link in links), default=math.inf)
    wire = ring_share(machines) * 4 * parameters / goodput
    exchange = step.seconds_all_reduce or 0.0
    could_hide = min(exchange, hideable_seconds(seconds_compute, micro_batches=1))
    hidden = max(0.0, exchange - step.seconds_exposed)
    overhead, link_share = split_excess(exchange - wire, wire, 4 * parameters)
    seconds = step.seconds_compute_by_worker
    return MeasuredRun(
        machines=machines,
        workers=len(seconds),
        gradient_bytes=4 * parameters,
        tokens_per_step=step.target_tokens,
        seconds_compute=seconds_compute,
        seconds_optimizer=step.seconds_optimizer,
        seconds_fixed=0.0,
        bytes_per_second=goodput,
        latency_seconds=max((link.latency_seconds for link in links), default=0.0),
        seconds_overhead=overhead,
        link_share=link_share,
        overlap=min(1.0, hidden / could_hide) if could_hide else 0.0,
        device=step.device,
        fastest=share_of_fastest(seconds, seconds_compute),
    )


def split_excess(seconds: float, on_link: float, sent_bytes: float) -> tuple[float, float]:
    """What an exchange took too long: seconds of the hosts, and the share of the link it reached.

    Only as much is put down to hosts as they can take; the rest would shrink with a faster link.
    """
    of_hosts = min(max(0.0, seconds), max(HOST_SECONDS, HOST_SECONDS_PER_BYTE * sent_bytes))
    rest = max(0.0, seconds - of_hosts)
    link_share = max(LEAST_LINK_SHARE, on_link / (on_link + rest)) if on_link > 0 else 1.0
    return max(0.0, seconds - on_link * (1 / link_share - 1)), link_share


def share_of_fastest(seconds: Sequence[float], own: float) -> float:
    """What the fastest worker takes, in that of `own`, if they differ by more than chance."""
    return min(seconds) / own if max(seconds) > UNEQUAL * min(seconds) > 0 else 1.0


_OF_LINKS = ("bytes_per_second", "latency_seconds")
OF_SYNC = ("compression", "local_steps", "local_fragments", "local_delay")


@dataclass(frozen=True)
class Scenario:
    """What to change; None leaves it as it was in the run."""

    bytes_per_second: float | None = None
    latency_seconds: float | None = None
    machines: int | None = None
    workers: int | None = None
    compression: Compression | None = None
    local_steps: int | None = None
    local_fragments: int | None = None
    local_delay: int | None = None
    batch_factor: float = 1.0  # Times the tokens of a step.
    device_speed: float = 1.0  # Times the speed of the devices.

    def apply_to(self, run: MeasuredRun) -> MeasuredRun:
        """The run as it would measure itself; machines are filled as they were."""
        machines, workers = self._placement(run)
        placed = replace(run, machines=machines, workers=workers)
        if self.local_steps is not None or self.local_fragments is not None:
            placed = replace(placed, local_delay=None)  # It was meant for other rounds.
        if run.has_no_link and machines > 1:
            placed = replace(
                placed,
                bytes_per_second=USUAL_BYTES_PER_SECOND,
                latency_seconds=USUAL_LATENCY_SECONDS,
            )
        own = replace(
            placed,
            tokens_per_step=run.tokens_per_step * self.batch_factor,
            rows_per_step=run.rows_per_step * self.batch_factor,
            seconds_compute=(
                run.seconds_compute_alone
                if placed.devices == 1
                else run.seconds_compute * run.devices / placed.devices
            )
            * (self.batch_factor / self.device_speed),
            fastest=1.0 if placed.devices == 1 else run.fastest,
            seconds_optimizer=run.seconds_optimizer / self.device_speed,
            seconds_straggling=run.seconds_straggling / self.device_speed if workers > 1 else 0.0,
            micro_batches=max(1.0, run.micro_batches * self.batch_factor * run.workers / workers),
            **{
                name: value
                for name in _OF_LINKS + OF_SYNC
                if (value := getattr(self, name)) is not None
            },
        )
        _check(own)
        if (self.local_delay or 0) > own.local_steps:
            raise UserError(
                f"a delay of {self.local_delay} is more than {own.local_steps} local steps: the "
                "next exchange would start before it arrives"
            )
        return own

    def between_machines(self, run: MeasuredRun) -> "Scenario":
        """The same, of two machines if it asks how they synchronize and the run had but one."""
        asked = [name for name in _OF_LINKS + OF_SYNC if getattr(self, name) is not None]
        if asked and run.machines == 1 and self.machines is None and self.workers is None:
            return replace(self, machines=2)
        if set(asked) & set(_OF_LINKS) and self._placement(run)[0] == 1:
            raise UserError("one machine has no links: use --machines 2 or more")
        return self

    def workers_of(self, run: MeasuredRun) -> int:
        """How many workers there would be."""
        return self._placement(run)[1]

    def _placement(self, run: MeasuredRun) -> tuple[int, int]:
        per_machine = max(1, round(run.workers / run.machines))
        if self.workers is None:
            machines = self.machines or run.machines
            return machines, run.workers if machines == run.machines else machines * per_machine
        if self.workers == run.workers:
            return self.machines or run.machines, run.workers
        return self.machines or -(-self.workers // per_machine), self.workers


ALONE = Scenario(machines=1, workers=1)


def _check(run: MeasuredRun) -> None:
    if run.machines > run.workers:
        raise UserError(
            f"{run.machines} machines for {run.workers} workers: every machine needs a worker"
        )
    if run.local_fragments > run.local_steps:
        raise UserError(f"{run.local_fragments} fragments need at least as many local steps")
    if run.local_steps > 1 and run.compression == "powersgd":
        raise UserError("powersgd only works on gradients: use int8, int4 or int2 with local steps")
    if run.local_steps == 1 and run.compression in FEW_BITS:
        raise UserError(f"{run.compression} needs local steps: gradients need 16 bits or more")


@dataclass(frozen=True)
class Prediction:
    """One line of the table."""

    label: str
    machines: int
    workers: int
    bytes_per_second: float
    compression: Compression
    local_steps: int
    seconds_step: float
    seconds_compute: float
    seconds_exposed: float
    bytes_per_step: float  # Sent by one machine, on average over local steps.
    tokens_per_second: float
    efficiency: float  # Of one worker alone times the number of devices.
    hours: float | None
    cost: float | None

    @property
    def network_share(self) -> float:
        """Waiting as part of the step."""
        return self.seconds_exposed / self.seconds_step


def predict(
    calibration: MeasuredRun,
    scenario: Scenario,
    label: str = "",
    steps: float | None = None,
    price_per_machine_hour: float | None = None,
) -> Prediction:
    """Predict one step; `steps` and a price give hours and cost of as many tokens."""
    run = scenario.apply_to(calibration)
    exposed = (run.exchange_seconds - run.hidden_seconds) / run.local_steps
    fixed = run.seconds_fixed + run.seconds_optimizer + run.outer_seconds / run.local_steps
    seconds = run.seconds_compute + fixed + run.seconds_straggling + exposed
    hours = None if steps is None else steps / scenario.batch_factor * seconds / 3600
    price = price_per_machine_hour
    return Prediction(
        label=label,
        machines=run.machines,
        workers=run.workers,
        bytes_per_second=run.bytes_per_second,
        compression=run.compression,
        local_steps=run.local_steps,
        seconds_step=seconds,
        seconds_compute=run.seconds_compute,
        seconds_exposed=exposed,
        bytes_per_step=run.sent_bytes / run.local_steps,
        tokens_per_second=run.tokens_per_step / seconds,
        efficiency=(run.seconds_compute_alone + run.seconds_fixed + run.seconds_optimizer)
        / (run.devices * seconds),
        hours=hours,
        cost=None if hours is None or price is None else hours * run.machines * price,
    )


def whatif_table(
    calibration: MeasuredRun,
    scenarios: Sequence[tuple[str, Scenario]],
    steps: float | None = None,
    price_per_machine_hour: float | None = None,
) -> tuple[Prediction, ...]:
    """Predict the run as it was, then every labelled scenario."""
    return tuple(
        predict(calibration, scenario, label, steps, price_per_machine_hour)
        for label, scenario in (("this run", Scenario()), *scenarios)
    )
