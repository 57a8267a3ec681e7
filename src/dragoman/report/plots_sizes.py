"""Pictures of where time and text went, and of what would be otherwise."""

from typing import TYPE_CHECKING

import numpy as np

from dragoman.report.answers_files import corpus_manifest, filter_words
from dragoman.report.canvas import (
    WIDE,
    Picture,
    Shape,
    colour,
    legend,
    legend_space,
    log_ticks,
    place_axes,
    thousands,
)
from dragoman.report.evidence import Evidence
from dragoman.report.findings import Findings
from dragoman.report.whatif import Scenario, predict
from dragoman.report.wording import in_bytes, in_percent, in_time

if TYPE_CHECKING:
    from matplotlib.figure import Figure


def time_split_picture(evidence: Evidence, findings: Findings) -> Picture | None:
    """The wall time as one bar."""
    found = findings.duration
    if not np.isfinite(found.wall) or found.wall <= 0:
        return None
    parts = (
        ("training", found.training, "blue"),
        ("evaluation", found.evaluation, "green"),
        ("checkpoints", found.checkpoints, "purple"),
        ("restarts", found.restarts, "red"),
        ("waiting", found.waiting, "slate"),
    )

    def draw(figure: "Figure", shape: Shape) -> None:
        columns = 5 if shape is WIDE else 2
        below = legend_space(shape, 1 if shape is WIDE else len(parts))
        axes = place_axes(figure, shape, left=4, right=4, top=4, bottom=below)[0]
        left = 0.0
        for name, seconds, tint in parts:
            label = f"{name} {in_time(seconds)}"
            axes.barh(0, seconds, left=left, height=1, color=colour(tint), label=label)
            left += seconds
        axes.set_xlim(0, left)
        axes.axis("off")
        legend(axes, "upper left", columns, bbox_to_anchor=(0, 0), handlelength=0.8)

    return Picture(
        key="time_split",
        title="Where the wall time went",
        caption="Training counts only steps that were kept; steps made in vain before a restart "
        "are in the restarts' part.",
        height=84,
        draw=draw,
        narrow_height=112,
    )


def cleaning_picture(evidence: Evidence, findings: Findings) -> Picture | None:
    """What each filter removed."""
    manifest = corpus_manifest(evidence)
    filters, pairs = manifest.get("filters"), manifest.get("pairs")
    if not isinstance(filters, dict) or not isinstance(pairs, dict) or not pairs.get("raw"):
        return None
    counts = {filter_words(name): int(count) for name, count in filters.items()}
    raw = int(pairs["raw"])
    if not any(counts.values()):
        return None

    def draw(figure: "Figure", shape: Shape) -> None:
        axes = place_axes(figure, shape, left=10.5 * shape.font, right=8 * shape.font)[0]
        names = list(counts)[::-1]
        values = [counts[name] for name in names]
        axes.barh(names, values, height=0.62, color=colour("orange"))
        for row, value in enumerate(values):
            text = f"{value:,} ({in_percent(value / raw)})" if value else "0"
            axes.annotate(
                text,
                (value, row),
                xytext=(5, 0),
                textcoords="offset points",
                va="center",
                color=colour("muted") if not value else colour("ink"),
            )
        axes.grid(axis="y", visible=False)
        axes.set_xlabel("pairs removed")
        thousands(axes, shape)

    sizes = manifest.get("bytes", {})
    cleaned = sum(side.get("cleaned", 0) for side in sizes.values())
    return Picture(
        key="cleaning",
        title="What cleaning removed",
        caption="Pairs caught by each filter, in the order in which they apply; "
        f"{in_bytes(cleaned)} of text were left.",
        height=70 + 22 * len(counts),
        draw=draw,
    )


def bandwidth_picture(evidence: Evidence, findings: Findings) -> Picture | None:
    """Predicted step time against bandwidth, with the run's own point on it."""
    calibration = findings.calibration
    if calibration is None:
        return None
    machines = max(2, calibration.machines)
    variants = (
        ("none", 1, "float32 gradients", "orange"),
        ("bf16", 1, "16-bit gradients", "blue"),
        ("none", 8, "8 local steps", "green"),
    )

    def seconds(megabits: float, compression: str, local_steps: int) -> float:
        scenario = Scenario(
            bytes_per_second=megabits * 1e6 / 8,
            machines=machines,
            compression=compression,
            local_steps=local_steps,
        )
        return predict(calibration, scenario).seconds_step

    def draw(figure: "Figure", shape: Shape) -> None:
        axes = place_axes(figure, shape)[0]
        speeds = np.geomspace(50, 200_000, 80).tolist()
        for compression, local_steps, label, tint in variants:
            curve = [seconds(speed, compression, local_steps) for speed in speeds]
            axes.plot(speeds, curve, color=colour(tint), label=label)
        own = 8e-6 * calibration.bytes_per_second
        if calibration.seconds_step and np.isfinite(own):
            point = [own], [calibration.seconds_step]
            axes.plot(*point, "o", markersize=8, color=colour("ink"), label="this run, measured")
        axes.set_xscale("log")
        log_ticks(axes, lambda value: f"{value:g} s")
        links = {100: "100 Mb/s", 1_000: "1 Gb/s", 10_000: "10 Gb/s", 100_000: "100 Gb/s"}
        axes.set_xticks(list(links), list(links.values()))
        axes.xaxis.set_minor_formatter(lambda value, _: "")
        axes.set_ylabel("step time")
        axes.set_xlabel("bandwidth between the machines")
        legend(axes, "upper right")

    return Picture(
        key="whatif_bandwidth",
        title="Predicted step time against bandwidth",
        caption=f"Predicted for {machines} machines from this run's own calibration. Where a "
        "curve is flat, a faster network buys nothing.",
        height=300,
        draw=draw,
    )


def workers_picture(evidence: Evidence, findings: Findings) -> Picture | None:
    """Predicted efficiency out to a thousand workers."""
    calibration = findings.calibration
    if calibration is None:
        return None
    links = (("1 Gb/s", 1e9, "orange"), ("10 Gb/s", 1e10, "blue"), ("100 Gb/s", 1e11, "green"))

    def draw(figure: "Figure", shape: Shape) -> None:
        axes = place_axes(figure, shape)[0]
        counts = [2**power for power in range(11)]
        for label, bits, tint in links:
            scenarios = [Scenario(bytes_per_second=bits / 8, workers=count) for count in counts]
            rates = [predict(calibration, each).tokens_per_second for each in scenarios]
            axes.plot(counts, rates, color=colour(tint), label=label, marker="o", markersize=3)
        alone = predict(calibration, Scenario(workers=1)).tokens_per_second
        axes.plot(
            counts,
            [alone * count for count in counts],
            color=colour("muted"),
            lw=1,
            ls=(0, (4, 3)),
            label="perfect scaling",
        )
        axes.set_xscale("log", base=2)
        log_ticks(axes, _compact)
        shown = counts if shape is WIDE else counts[::2]
        axes.set_xticks(shown, [f"{count:,}" for count in shown])
        axes.xaxis.set_minor_formatter(lambda value, _: "")
        axes.set_ylabel("tokens per second")
        axes.set_xlabel("workers")
        legend(axes, "upper left")

    return Picture(
        key="whatif_workers",
        title="Predicted tokens per second against workers",
        caption="The same global batch shared among more workers: the arithmetic for each "
        "shrinks, the bytes do not. Where a curve bends, more workers only wait for each other.",
        height=300,
        draw=draw,
    )


def _compact(value: float) -> str:
    """1,000 as 1k, 1,000,000 as 1M."""
    for unit, divisor in (("G", 1e9), ("M", 1e6), ("k", 1e3)):
        if value >= divisor:
            return f"{value / divisor:g}{unit}"
    return f"{value:g}"
