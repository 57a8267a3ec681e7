"""`dragoman whatif RUN`: predictions as a table, for a terminal and for the report."""

import math
import re
import shutil
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from textwrap import fill, wrap

from dragoman.config import Compression
from dragoman.errors import UserError
from dragoman.prediction.assumptions import assumptions_of
from dragoman.prediction.questions import gradients_instead, usual_questions
from dragoman.prediction.step_model import (
    OF_SYNC,
    USUAL_BYTES_PER_SECOND,
    MeasuredRun,
    Prediction,
    Scenario,
    whatif_table,
)
from dragoman.prediction.sync_choice import choose_local_steps
from dragoman.report.evidence import load_evidence
from dragoman.report.findings.analysis import Findings, analyse
from dragoman.report.findings.measured_run import demand_calibration, describe_fit
from dragoman.wording import in_bits_per_second, in_bytes, in_percent, in_time, plural


@dataclass(frozen=True)
class WhatifOptions:
    """What the user wants to be different; None and 1 leave it as it was in the run."""

    bandwidth: str | None = None  # Between machines, such as 10Gbit; inf for no limit.
    latency_milliseconds: float | None = None
    machines: int | None = None
    workers: int | None = None
    compression: Compression | None = None
    local_steps: int | None = None
    local_fragments: int | None = None
    local_delay: int | None = None
    batch_factor: float = 1.0  # Times the tokens of a step.
    device_speed: float = 1.0  # Times the speed of the devices.
    steps: int | None = None  # For hours and cost; default: as many as the run made.
    price_per_hour: float | None = None  # Of one machine.


# What is asked beyond these is a slip, and its table would be unreadable.
_LEAST, _MOST = 1e-6, 10**9
_COUNTS = ("machines", "workers", "local_steps", "local_fragments", "steps")
_FACTORS = ("batch_factor", "device_speed")
_RANGES = {
    **dict.fromkeys(_COUNTS, (1, f"a whole number from 1 to {_MOST:,}")),
    **dict.fromkeys(_FACTORS, (_LEAST, f"a number from {_LEAST:g} to {_MOST:,}")),
    "local_delay": (0, f"a whole number from 0 to {_MOST:,}"),
    **dict.fromkeys(
        ("latency_milliseconds", "price_per_hour"), (0, f"a number from 0 to {_MOST:,}")
    ),
}


def whatif_command(run: Path, options: WhatifOptions, now: float | None = None) -> None:
    """Print what the run would be like, and what that prediction rests on."""
    scenario = scenario_of(options)
    evidence = load_evidence(run, time.time() if now is None else now)
    findings = analyse(evidence)
    calibration = demand_calibration(run, findings.calibration)
    steps = options.steps or evidence.history.train.last_step
    questions = questions_of(scenario, calibration)
    rows = whatif_table(calibration, questions, steps, options.price_per_hour)
    print(f"{evidence.name}: {_describe(calibration)}")
    print(_wrapped(trust_words(findings, rows)))
    # Nobody reads a pipe or a file by its width.
    columns = shutil.get_terminal_size((10_000, 24)).columns
    print(f"\n{text_table(prediction_cells(rows, steps), columns)}\n\nThis assumes:")
    for assumption in assumptions_of(calibration, rows):
        print(_wrapped(f"- {assumption}", "  "))


def trust_words(findings: Findings, rows: Sequence[Prediction]) -> str:
    """How far the rows can be trusted, the first of them being the run itself."""
    times, network, run = findings.latest_times, findings.network, findings.calibration
    if times is None or network is None or run is None:
        return ""
    words = describe_fit(times, network, rows[0].seconds_step)
    if run.has_no_link and any(row.machines > 1 for row in rows):
        words += (
            " This run had one machine: rows with several assume links of "
            f"{in_bits_per_second(USUAL_BYTES_PER_SECOND)} unless they say otherwise."
        )
    return words


def _wrapped(text: str, indent: str = "") -> str:
    width = min(100, shutil.get_terminal_size((100, 24)).columns)
    return fill(text, width, subsequent_indent=indent, break_on_hyphens=False)


def scenario_of(options: WhatifOptions) -> Scenario:
    """Check what the user asks for; all problems are reported at once."""
    problems = [
        f"--{name.replace('_', '-')} {value:g}: must be {words}"
        for name, (least, words) in _RANGES.items()
        if (value := getattr(options, name)) is not None and not least <= value <= _MOST
    ]
    bandwidth = None
    try:
        bandwidth = parse_bandwidth(options.bandwidth) if options.bandwidth else None
    except UserError as error:
        problems.append(str(error))
    if problems:
        raise UserError("\n".join(problems))
    latency = options.latency_milliseconds
    return Scenario(
        bytes_per_second=bandwidth,
        latency_seconds=None if latency is None else latency / 1e3,
        compression=options.compression,
        local_delay=options.local_delay,
        **{name: getattr(options, name) for name in (*_COUNTS, *_FACTORS) if name != "steps"},
    )


def questions_of(scenario: Scenario, run: MeasuredRun) -> list[tuple[str, Scenario]]:
    """What was asked, and how sending less would change it; the usual questions if nothing was."""
    if scenario == Scenario():
        return usual_questions(run)
    scenario = scenario.between_machines(run)
    if scenario.local_steps == 1:
        scenario = gradients_instead(scenario, run)
    questions = [(_label(scenario), scenario)]
    asked, half = scenario.apply_to(run), replace(scenario, compression="bf16")
    if asked.workers > asked.rows_per_step:
        rows = plural(math.floor(asked.rows_per_step), "row")
        raise UserError(
            f"{plural(asked.workers, 'worker')} for {rows} of a step: every worker needs a row; "
            "ask for fewer, or for a larger --batch-factor"
        )
    if asked.exchange_seconds == 0:
        return questions
    if asked.compression == "none":
        questions.append(("... and bf16", half))
    if asked.local_steps == 1:
        way = choose_local_steps(asked)
        local = replace(scenario, **{name: getattr(way, name) for name in OF_SYNC})
        questions.append((f"... and {way.local_steps} local steps, {way.compression}", local))
    return questions


def _label(scenario: Scenario) -> str:
    speed, latency = scenario.bytes_per_second, scenario.latency_seconds
    parts = [
        f"{in_bits_per_second(speed)}{' bandwidth' * math.isinf(speed)}" if speed else "",
        f"{in_time(latency)} latency" if latency is not None else "",
        plural(scenario.machines, "machine") if scenario.machines else "",
        plural(scenario.workers, "worker") if scenario.workers else "",
        scenario.compression or "",
        plural(scenario.local_steps, "local step") if scenario.local_steps else "",
        plural(scenario.local_fragments, "fragment") if scenario.local_fragments else "",
        f"delay {scenario.local_delay}" if scenario.local_delay is not None else "",
        f"{scenario.batch_factor:g} x batch" if scenario.batch_factor != 1 else "",
        f"{scenario.device_speed:g} x device speed" if scenario.device_speed != 1 else "",
    ]
    return ", ".join(part for part in parts if part)


def _describe(run: MeasuredRun) -> str:
    words = f"{plural(run.workers, 'worker')} on {plural(run.machines, 'machine')}"
    if run.machines > 1 and math.isinf(run.bytes_per_second):
        words += ", links not measured"
    elif run.machines > 1:
        words += f", {in_bits_per_second(run.bytes_per_second)} between them"
    if run.compression != "none":
        words += f", {'gradients' if run.local_steps == 1 else 'differences'} in {run.compression}"
    if run.local_steps > 1:
        words += f", an exchange every {run.local_steps} steps"
    return f"{words}."


def prediction_cells(predictions: Sequence[Prediction], steps: int) -> list[list[str]]:
    """A header and a row for each prediction."""
    header = [
        "",
        "step",
        "waiting",
        "tokens/s",
        "efficiency",
        f"tokens of {steps:,} steps take",
    ]
    header += ["sent / step", "network", "machines", "workers"]
    has_cost = any(row.cost is not None for row in predictions)
    cells = [header + ["cost"] * has_cost]
    for row in predictions:
        cells.append(
            [
                row.label,
                in_time(row.seconds_step),
                in_time(row.seconds_exposed),
                f"{row.tokens_per_second:,.0f}",
                in_percent(row.efficiency),
                in_time(3600 * row.hours) if row.hours is not None else "",
                in_bytes(row.bytes_per_step),
                in_bits_per_second(row.bytes_per_second) if row.machines > 1 else "none",
                f"{row.machines:,}",
                f"{row.workers:,}",
            ]
            + [f"{row.cost:,.2f}" if row.cost is not None else ""] * has_cost
        )
    return cells


def text_table(cells: Sequence[Sequence[str]], columns: int) -> str:
    """Cells for a terminal of so many columns; what is too wide follows in a table below.

    The first cells of all rows are to the left, and begin every table; the others to the right.
    """
    by_column = [(title, texts) for title, *texts in zip(*cells, strict=True)]
    titles = [wrap(title, max(map(len, [*title.split(), *texts]))) for title, texts in by_column]
    height = max(map(len, titles))
    stripes: list[list[str]] = []
    for title, (_, texts) in zip(titles, by_column, strict=True):
        lines = [""] * (height - len(title)) + title + texts
        width = max(map(len, lines))
        stripes.append([line.rjust(width) if stripes else line.ljust(width) for line in lines])
    tables = [stripes[:1]]
    for stripe in stripes[1:]:
        if sum(len(each[0]) + 2 for each in tables[-1]) + len(stripe[0]) > columns:
            tables.append(stripes[:1])
        tables[-1].append(stripe)
    return "\n\n".join(
        "\n".join("  ".join(line).rstrip() for line in zip(*table, strict=True)) for table in tables
    )


def parse_bandwidth(text: str) -> float:
    """Bytes per second of a bandwidth such as 10Gbit, 100 Mb/s, 1.25GB/s or inf."""
    if text.strip().lower() in ("inf", "infinite"):
        return math.inf
    match = re.fullmatch(r"\s*(\d+\.?\d*)\s*([kKMGT]?)(bit|b|B)(?:/s|ps)?\s*", text)
    amount = float(match.group(1)) if match else 0.0
    if match is None or amount <= 0:
        raise UserError(
            f"--bandwidth {text}: must be a number above 0 and a unit, such as 10Gbit or 100Mbit"
        )
    factor = {"": 1, "k": 1e3, "K": 1e3, "M": 1e6, "G": 1e9, "T": 1e12}[match.group(2)]
    return amount * factor / (1 if match.group(3) == "B" else 8)
