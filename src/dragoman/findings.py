"""What a check found: the machines, the links, the predicted step, what is wrong, what to do."""

import math
import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from dragoman.cluster.links import Link
from dragoman.config import Config, DistributedSettings
from dragoman.report.whatif import (
    BACKWARD_SHARE,
    USUAL_LOCAL_STEPS,
    Calibration,
    Prediction,
    Scenario,
    predict,
)
from dragoman.report.wording import in_bits_per_second, in_bytes, in_percent, in_time

# A link this far below the others, or a host this far behind them, holds everyone up.
SLOW_LINK, SLOW_HOST = 0.5, 1.3
# Less than this of what an interface claims is a bad cable, a busy switch or a wrong setting.
POOR_GOODPUT = 0.5
CLOCK_SECONDS = 1.0
# Below this part of the step the network is not worth a remedy.
SMALL_SHARE = 0.1
# Weights and two moments in float32, and the outer momentum of local steps.
CHECKPOINT_BYTES_PER_PARAMETER = {"gradients": 12, "local": 16}


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


def problems(findings: Findings, config: Config) -> list[str]:
    """Everything that is wrong or holds the others up, each with its names and numbers."""
    return [
        *_slow_links(findings.links),
        *_poor_links(findings),
        *_slow_hosts(findings),
        *_different_gpus(findings.machines),
        *_full_disks(findings, config),
        *(
            f"the clock of {one.host} is {one.clock_lead_seconds:+.1f} s off that of "
            f"{findings.machines[0].host}: its lines in the report will be moved by that much"
            for one in findings.machines
            if abs(one.clock_lead_seconds) > CLOCK_SECONDS
        ),
    ]


def _slow_links(links: Sequence[Link]) -> list[str]:
    """Links well below the best one: the ring is as fast as its slowest link."""
    best = max((link.goodput_bytes_per_second for link in links), default=0.0)
    return [
        f"{link.hosts[0]} -> {link.hosts[1]} ({link.interface}) is slow: "
        f"{in_bits_per_second(link.goodput_bytes_per_second)}, "
        f"{link.goodput_bytes_per_second / best:.0%} of the best link; every step waits for it"
        for link in links
        if link.goodput_bytes_per_second < SLOW_LINK * best
    ]


def _poor_links(findings: Findings) -> list[str]:
    found = []
    interfaces = {one.host: one.interfaces for one in findings.machines}
    for host in dict.fromkeys(link.hosts[0] for link in findings.links):
        own = [link for link in findings.links if link.hosts[0] == host]
        link = max(own, key=lambda one: one.goodput_bytes_per_second)
        if link.speed_mbit is None:
            continue
        reached = 8e-6 * link.goodput_bytes_per_second / link.speed_mbit
        if reached < POOR_GOODPUT:
            found.append(
                f"{link.interface} of {host} claims {link.speed_mbit:,} Mb/s but carries "
                f"{reached:.0%} of it: look for a bad cable, a busy switch, a limit on the way"
            )
        faster = {
            name: speed
            for name, speed in interfaces[host].items()
            if (speed or 0) > link.speed_mbit and name != link.interface
        }
        found += [
            f"{host} uses {link.interface} ({link.speed_mbit:,} Mb/s) though {name} claims "
            f"{speed:,} Mb/s: if it leads to the others, set distributed.interface = {name!r}"
            for name, speed in faster.items()
        ]
    return found


def _slow_hosts(findings: Findings) -> list[str]:
    """Hosts whose workers are well behind the best host's."""
    seconds = {
        host: statistics.median(
            one
            for one, own in zip(
                findings.step.seconds_compute_by_worker, findings.hosts, strict=True
            )
            if own == host
        )
        for host in findings.hosts
    }
    best = min(seconds.values())
    return [
        f"{host} is slow: {in_time(one)} of computing a step, {one / best:.1f} times the best "
        "host's; every step waits for it"
        for host, one in seconds.items()
        if one > SLOW_HOST * best
    ]


def _different_gpus(machines: Sequence[MachineFacts]) -> list[str]:
    kinds = {name for one in machines for name in one.gpus}
    if len(kinds) < 2:
        return []
    listed = ", ".join(f"{one.host} {'/'.join(dict.fromkeys(one.gpus))}" for one in machines)
    return [f"the GPUs differ ({listed}): every step waits for the slowest kind"]


def _full_disks(findings: Findings, config: Config) -> list[str]:
    needed = disk_needed(findings.step.parameters, config)
    return [
        f"{one.host} has {in_bytes(one.disk_free_bytes)} free where the check ran; the "
        f"checkpoints of this model take {in_bytes(needed)}"
        for one in findings.machines
        if one.disk_free_bytes < needed
    ]


def disk_needed(parameters: int, config: Config) -> int:
    """Bytes of all checkpoints that may lie there at a time, one being written included."""
    kept = config.checkpoints.keep_latest + 2 * config.checkpoints.keep_best + 1
    return kept * CHECKPOINT_BYTES_PER_PARAMETER[config.distributed.sync] * parameters


def calibration_of(findings: Findings) -> Calibration:
    """The findings as a prediction needs them."""
    step = findings.step
    compute = max(step.seconds_compute_by_worker)
    machines = len(findings.machines)
    goodput = min((link.goodput_bytes_per_second for link in findings.links), default=math.inf)
    latency = max((link.latency_seconds for link in findings.links), default=0.0)
    wire = 2 * (machines - 1) / machines * 4 * step.parameters / goodput
    exchange = step.seconds_all_reduce or 0.0
    could_hide = min(exchange, BACKWARD_SHARE * compute)
    hidden = max(0.0, exchange - step.seconds_exposed)
    return Calibration(
        machines=machines,
        workers=len(findings.hosts),
        gradient_bytes=4 * step.parameters,
        tokens_per_step=step.target_tokens,
        seconds_compute=compute,
        seconds_optimizer=step.seconds_optimizer,
        seconds_fixed=0.0,
        bytes_per_second=goodput,
        latency_seconds=latency,
        seconds_overhead=max(0.0, exchange - wire),
        overlap=min(1.0, hidden / could_hide) if could_hide else 0.0,
        device=step.device,
    )


def predictions(findings: Findings, config: Config) -> dict[str, Prediction]:
    """One worker alone, and all of them in the usual ways to meet and as configured."""
    calibration = calibration_of(findings)
    scenarios = {"one worker alone": Scenario(machines=1, workers=1)}
    if len(findings.hosts) > 1:
        ways = [
            Scenario(compression="none", local_steps=1, local_fragments=1),
            Scenario(compression="bf16", local_steps=1, local_fragments=1),
            Scenario(compression="bf16", local_steps=USUAL_LOCAL_STEPS, local_fragments=1),
            configured_way(config.distributed),
        ]
        scenarios |= {name_of(way): way for way in ways}
    return {
        name: predict(calibration, scenario, name, config.training.steps)
        for name, scenario in scenarios.items()
    }


def configured_way(settings: DistributedSettings) -> Scenario:
    """How the workers are to meet."""
    is_local = settings.sync == "local"
    return Scenario(
        compression=settings.compression,
        local_steps=settings.local_steps if is_local else 1,
        local_fragments=settings.local_fragments if is_local else 1,
    )


def name_of(way: Scenario) -> str:
    """A way to meet in words."""
    packed = "" if way.compression == "none" else f"{way.compression} "
    if way.local_steps == 1:
        return f"all, {packed}gradients"
    parts = "" if way.local_fragments == 1 else f" in {way.local_fragments} parts"
    return f"all, {way.local_steps} {packed}local steps{parts}"


def recommend(predicted: Mapping[str, Prediction], configured: str) -> str:
    """What to set, and why; `configured` names the prediction for what is set now."""
    if len(predicted) == 1:
        return "one worker: nothing travels; add --workers or --hosts to check more"
    alone, plain, half, local, *_ = predicted.values()
    own = predicted[configured]
    best = next((one for one in (plain, half) if _share(one) <= SMALL_SHARE), local)
    if _gives_up(own) == _gives_up(best) and _share(own) <= max(SMALL_SHARE, _share(best)):
        best = own
        advice = f"keep what is configured: the network takes {in_percent(_share(own))} of a step"
    elif best is local:
        advice = (
            f"set distributed.sync = 'local' and local_steps = {USUAL_LOCAL_STEPS} with bf16: "
            f"gradients would spend {in_percent(_share(plain))} of every step on the network, "
            f"in bf16 {in_percent(_share(half))}, local steps {in_percent(_share(local))}; "
            "or make the batch larger"
        )
    else:
        together = " and sync = 'gradients'" if own.local_steps > 1 else ""
        advice = (
            f"set distributed.compression = '{best.compression}'{together}: the network would "
            f"take {in_percent(_share(best))} of a step, without compression "
            f"{in_percent(_share(plain))}"
        )
    for one in (plain, half):
        if one.tokens_per_second < alone.tokens_per_second:
            advice += f". As {one.label}, the run would be slower than one worker alone"
            break
    if best.tokens_per_second < alone.tokens_per_second:
        advice += ". Even so one worker alone would be faster: train on one machine"
    return advice


def _share(one: Prediction) -> float:
    """The network's part of a step."""
    return one.seconds_exposed / one.seconds_step


def _gives_up(one: Prediction) -> int:
    """What a way to meet costs beside time: nothing, bits of the gradients, meeting every step."""
    return 2 if one.local_steps > 1 else int(one.compression != "none")


def page(findings: Findings, config: Config) -> str:
    """Everything a person wants to read before a run."""
    predicted = predictions(findings, config)
    configured = name_of(configured_way(config.distributed))
    lines = ["machines", *_table(_machine_rows(findings))]
    if findings.links:
        lines += ["links", *_table(_link_rows(findings.links))]
    lines += [
        f"predicted for {findings.step.parameters:,} parameters, "
        f"{findings.step.target_tokens:,} target tokens a step",
        *_table(_prediction_rows(predicted.values(), configured, config.training.steps)),
    ]
    lines += [f"problem: {one}" for one in problems(findings, config)]
    lines.append(f"advice: {recommend(predicted, configured)}")
    return "\n".join(lines)


def _machine_rows(findings: Findings) -> list[list[str]]:
    rows = [["host", "workers", "devices", "computes a step in", "memory", "disk free", "clock"]]
    for one in findings.machines:
        seconds = [
            seconds
            for seconds, host in zip(
                findings.step.seconds_compute_by_worker, findings.hosts, strict=True
            )
            if host == one.host
        ]
        memory = min(one.gpu_memory_bytes, default=one.memory_bytes)
        rows.append(
            [
                one.host,
                str(findings.hosts.count(one.host)),
                ", ".join(dict.fromkeys(one.gpus)) or f"{one.cores} cores",
                in_time(max(seconds)),
                in_bytes(memory),
                in_bytes(one.disk_free_bytes),
                f"{one.clock_lead_seconds:+.2f} s",
            ]
        )
    return rows


def _link_rows(links: Sequence[Link]) -> list[list[str]]:
    rows = [["from", "to", "interface", "claims", "goodput", "latency"]]
    rows += [
        [
            *link.hosts,
            link.interface,
            f"{link.speed_mbit:,} Mb/s" if link.speed_mbit else "nothing",
            in_bits_per_second(link.goodput_bytes_per_second),
            in_time(link.latency_seconds),
        ]
        for link in links
    ]
    return rows


def _prediction_rows(
    predicted: Iterable[Prediction], configured: str, steps: int | None
) -> list[list[str]]:
    rows = [["", "step", "network", "tokens/s", "efficiency"]]
    rows[0] += [f"{steps:,} steps"] if steps else []
    for one in predicted:
        row = [
            one.label + " (configured)" * (one.label == configured),
            in_time(one.seconds_step),
            in_percent(_share(one)),
            f"{one.tokens_per_second:,.0f}",
            in_percent(one.efficiency),
        ]
        rows.append(row + ([in_time(3600 * one.hours)] if one.hours is not None else []))
    return rows


def _table(rows: Sequence[Sequence[str]]) -> list[str]:
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return [
        "  "
        + "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip()
        for row in rows
    ]
