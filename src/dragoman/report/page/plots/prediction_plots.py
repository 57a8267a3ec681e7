"""Plots of predicted runs."""

from typing import TYPE_CHECKING

import numpy as np

from dragoman.prediction.questions import MOST_WORKERS
from dragoman.prediction.step_model import (
    ALONE,
    GIGABIT,
    MeasuredRun,
    Scenario,
    predict,
)
from dragoman.prediction.sync_choice import GRADIENTS, choose_local_steps
from dragoman.report.evidence import Evidence
from dragoman.report.findings.analysis import Findings
from dragoman.report.page.plots.canvas import WIDE, Panel, Picture, Shape, colour, dashed, log_ticks
from dragoman.wording import in_bits_per_second

if TYPE_CHECKING:
    from matplotlib.axes import Axes

_LINKS = {0.1: "100 Mb/s", 1: "1 Gb/s", 10: "10 Gb/s", 100: "100 Gb/s"}


def bandwidth_picture(evidence: Evidence, findings: Findings) -> Picture | None:
    """Predicted step time against bandwidth, with the run's own point on it."""
    calibration = findings.calibration
    if calibration is None:
        return None
    machines = max(2, calibration.machines)
    variants = (
        (GRADIENTS[0], "float32 gradients", "orange"),
        (GRADIENTS[1], "16-bit gradients", "blue"),
        (None, "local steps to suit the link", "green"),
    )

    def draw(axes: "Axes", shape: Shape) -> None:
        gigabits = np.geomspace(0.05, 200, 80)
        links = [
            Scenario(machines=machines, bytes_per_second=speed * GIGABIT).apply_to(calibration)
            for speed in gigabits.tolist()
        ]
        for scenario, label, tint in variants:
            seconds = [
                predict(link, scenario or choose_local_steps(link)).seconds_step for link in links
            ]
            axes.plot(gigabits, seconds, color=colour(tint), label=label)
        own = calibration.bytes_per_second / GIGABIT
        if calibration.seconds_step and np.isfinite(own):
            point = ([own], [calibration.seconds_step])
            axes.plot(*point, "o", markersize=8, color=colour("ink"), label="this run, measured")
        axes.set_xscale("log")
        log_ticks(axes, lambda value: f"{value:g} s")
        axes.set_xticks(list(_LINKS), list(_LINKS.values()))
        axes.xaxis.set_minor_formatter(lambda value, _: "")

    return Picture(
        key="whatif_bandwidth",
        title="Predicted step time against bandwidth",
        caption=f"Predicted for {machines} machines from this run's own calibration. Where a "
        "curve is flat, a faster network does not help.",
        panels=(Panel(draw),),
        x_label="bandwidth between the machines",
        y_label="step time",
    )


def workers_picture(evidence: Evidence, findings: Findings) -> Picture | None:
    """Predicted throughput out to a thousand workers, or to one for every row of a step."""
    calibration = findings.calibration
    if calibration is None:
        return None
    most = int(min(calibration.rows_per_step, MOST_WORKERS))
    counts = [2**power for power in range(most.bit_length())]
    if len(counts) < 2:
        return None

    def draw(axes: "Axes", shape: Shape) -> None:
        for bytes_per_second, label, tint in _links_drawn(calibration):
            scenarios = [
                Scenario(bytes_per_second=bytes_per_second, workers=count) for count in counts
            ]
            rates = [predict(calibration, each).tokens_per_second for each in scenarios]
            axes.plot(counts, rates, "o-", color=colour(tint), label=label, markersize=3)
        alone = predict(calibration, ALONE).tokens_per_second
        devices = [Scenario(workers=count).apply_to(calibration).devices for count in counts]
        perfect = [alone * each for each in devices]
        axes.plot(counts, perfect, **dashed("muted", label="perfect scaling"))
        axes.set_xscale("log", base=2)
        log_ticks(axes, _compact)
        shown = counts if shape is WIDE else counts[::2]
        axes.set_xticks(shown, [f"{count:,}" for count in shown])
        axes.xaxis.set_minor_formatter(lambda value, _: "")

    return Picture(
        key="whatif_workers",
        title="Predicted tokens per second against workers",
        caption="The same global batch split among more workers: the compute per worker "
        "shrinks, the bytes do not. Where a curve flattens, more workers only wait for each "
        "other. Every worker needs a row of each step.",
        panels=(Panel(draw),),
        x_label="workers",
        y_label="tokens per second",
        legend="upper left",
    )


def _links_drawn(run: MeasuredRun) -> list[tuple[float, str, str]]:
    """Bytes per second, name and colour of the usual links, and of the run's own."""
    links = list(zip(list(_LINKS.items())[1:], ("orange", "blue", "green"), strict=True))
    drawn = [(gigabits * GIGABIT, label, tint) for (gigabits, label), tint in links]
    own = run.bytes_per_second
    if np.isfinite(own):
        drawn.append((own, f"this run's, {in_bits_per_second(own)}", "purple"))
    return drawn


def _compact(value: float) -> str:
    """1,000 as 1k, 1,000,000 as 1M."""
    for unit, divisor in (("G", 1e9), ("M", 1e6), ("k", 1e3)):
        if value >= divisor:
            return f"{value / divisor:g}{unit}"
    return f"{value:g}"
