"""What is wrong with machines and links, or slows the others down."""

import statistics
from collections.abc import Sequence

from dragoman.check.facts import Findings, MachineFacts
from dragoman.config import Config, moments_kept, shape_of
from dragoman.prediction.step_model import UNEQUAL
from dragoman.records import Link
from dragoman.report.answers.time_and_sizes import kept_by_local_steps
from dragoman.wording import in_bits_per_second, in_bytes, in_percent, in_time

# A link this far below the others, or a host this far behind them, holds everyone up.
SLOW_LINK, SLOW_HOST = 0.5, UNEQUAL
# Less than this of what an interface claims is a bad cable, a busy switch or a wrong setting.
POOR_GOODPUT = 0.5
CLOCK_SECONDS = 1.0
FLOAT32_BYTES = 4


def problems(findings: Findings, config: Config) -> list[str]:
    """Everything that is wrong or holds the others up, each with its names and numbers."""
    return [
        *_slow_links(findings.links),
        *_poor_links(findings),
        *([] if config.distributed.balance else _slow_hosts(findings)),
        *_different_gpus(findings.machines),
        *_full_disks(findings, config),
        *(
            f"the clock of {one.host} is {abs(one.clock_lead_seconds):.1f} s "
            f"{'ahead of' if one.clock_lead_seconds > 0 else 'behind'} that of "
            f"{findings.machines[0].host}: the report will shift its samples by that much"
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
        f"{in_percent(link.goodput_bytes_per_second / best)} of the best link; "
        "every step waits for it"
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
                f"{link.interface} of {host} advertises {link.speed_mbit:,} Mb/s but carries "
                f"{in_percent(reached)} of it: look for a bad cable, a busy switch or a rate limit"
            )
        faster = {
            name: speed
            for name, speed in interfaces[host].items()
            if (speed or 0) > link.speed_mbit and name != link.interface
        }
        found += [
            f"{host} uses {link.interface} ({link.speed_mbit:,} Mb/s) although {name} has "
            f"{speed:,} Mb/s: if it reaches the other hosts, set distributed.interface = {name!r}"
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
        f"{host} is slow: {in_time(one)} of compute per step, {one / best:.1f} times the fastest "
        "host's; every step waits for it, unless distributed.balance gives it fewer rows"
        for host, one in seconds.items()
        if one > SLOW_HOST * best
    ]


def _different_gpus(machines: Sequence[MachineFacts]) -> list[str]:
    kinds = {name for one in machines for name in one.gpus}
    if len(kinds) < 2:
        return []
    listed = ", ".join(f"{one.host} {'/'.join(dict.fromkeys(one.gpus))}" for one in machines)
    return [f"the GPUs differ ({listed}): every step waits for the slowest"]


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
    moments = moments_kept(config.optimizer.kind, parameters, shape_of(config.model))
    sync, compression = config.distributed.sync, config.distributed.compression
    if sync == "auto":
        sync, compression = "local", "int8"  # The most that it may choose.
    of_local_steps = len(kept_by_local_steps(sync, compression))
    return kept * FLOAT32_BYTES * (parameters + moments + of_local_steps * parameters)
