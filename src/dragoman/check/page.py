"""What `dragoman check` prints."""

from collections.abc import Iterable, Sequence

from dragoman.check.advice import (
    automatic_choice,
    calibration_of,
    configured_way,
    name_of,
    predictions,
    recommend,
)
from dragoman.check.facts import Findings
from dragoman.check.problems import problems
from dragoman.config import Config
from dragoman.prediction.step_model import Prediction
from dragoman.records import Link
from dragoman.wording import in_bits_per_second, in_bytes, in_percent, in_time


def page(findings: Findings, config: Config) -> str:
    """Everything a person wants to read before a run."""
    predicted = predictions(findings, config)
    calibration = calibration_of(findings, config)
    way = configured_way(config.distributed, calibration)
    configured = name_of(way)
    lines = ["machines", *_table(_machine_rows(findings))]
    if findings.links:
        lines += ["links", *_table(_link_rows(findings.links))]
    lines += [
        f"predicted for {findings.step.parameters:,} parameters, {findings.step.target_tokens:,} "
        "target tokens per step",
        *_table(_prediction_rows(predicted.values(), configured, config.training.steps)),
    ]
    if findings.step.device == "cpu" and len(set(findings.hosts)) < len(findings.hosts):
        lines.append(
            "on CPUs the workers of a machine share its cores: a single worker uses them all, "
            "and more workers on one machine compute no faster"
        )
    lines += [f"problem: {one}" for one in problems(findings, config)]
    if choice := automatic_choice(findings, config):
        lines.append(f"sync = \"auto\" chooses '{name_of(choice.way)}': {choice.reason}")
    could_balance = calibration.fastest < 1 and not config.distributed.balance
    advice = recommend(predicted, configured, could_balance=could_balance)
    lines.append(f"advice: {advice}")
    if way.local_steps != 1 and len(findings.hosts) > 1 and config.optimizer.kind != "muon":
        lines.append(
            'advice: with local steps, optimizer.kind = "muon" loses far less than '
            f'"{config.optimizer.kind}": see "Slow links" in docs/distributed.md'
        )
    return "\n".join(lines)


def _machine_rows(findings: Findings) -> list[list[str]]:
    rows = [["host", "workers", "devices", "compute per step", "memory", "disk free", "clock"]]
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
    rows = [["from", "to", "interface", "advertised", "goodput", "latency"]]
    rows += [
        [
            *link.hosts,
            link.interface,
            f"{link.speed_mbit:,} Mb/s" if link.speed_mbit else "unknown",
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
            in_percent(one.network_share),
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
