"""Pictures of where time and text went."""

from typing import TYPE_CHECKING

import numpy as np

from dragoman.report.answers.time_and_sizes import filter_words
from dragoman.report.evidence import Evidence
from dragoman.report.findings.analysis import Findings
from dragoman.report.page.plots.canvas import Panel, Picture, Shape, colour, thousands
from dragoman.wording import in_percent, in_time

if TYPE_CHECKING:
    from matplotlib.axes import Axes

_PART_COLOURS = {
    "training": "blue",
    "evaluation": "green",
    "checkpoints": "purple",
    "restarts": "red",
    "waiting": "slate",
}


def time_split_picture(evidence: Evidence, findings: Findings) -> Picture | None:
    """The wall time as one bar."""
    found = findings.duration
    if not np.isfinite(found.wall) or found.wall <= 0:
        return None

    def draw(axes: "Axes", shape: Shape) -> None:
        left = 0.0
        for name, seconds in found.parts.items():
            label, tint = f"{name} {in_time(seconds)}", colour(_PART_COLOURS[name])
            axes.barh(0, seconds, left=left, height=1, color=tint, label=label)
            left += seconds
        axes.set_xlim(0, left)
        axes.axis("off")

    return Picture(
        key="time_split",
        title="Where the wall time went",
        caption="Training counts only steps that were kept; steps lost to a restart count as "
        "restarts.",
        panels=(Panel(draw),),
        x_label="",
        legend="below",
        height=104,
        left=0.3,
        right=0.3,
    )


def cleaning_picture(evidence: Evidence, findings: Findings) -> Picture | None:
    """What each filter removed."""
    raw = evidence.corpus.pairs.raw
    counts = {filter_words(name): count for name, count in evidence.corpus.filters.items()}
    if not raw or not any(counts.values()):
        return None

    def draw(axes: "Axes", shape: Shape) -> None:
        names = list(counts)[::-1]
        axes.barh(names, [counts[name] for name in names], height=0.62, color=colour("orange"))
        for row, name in enumerate(names):
            axes.annotate(
                f"{counts[name]:,} ({in_percent(counts[name] / raw)})" if counts[name] else "0",
                (counts[name], row),
                xytext=(5, 0),
                textcoords="offset points",
                va="center",
                color=colour("ink" if counts[name] else "muted"),
            )
        axes.grid(axis="y", visible=False)
        thousands(axes, shape)

    return Picture(
        key="cleaning",
        title="What cleaning removed",
        caption=f"Pairs removed by each filter, in the order applied, out of {raw:,} raw pairs.",
        panels=(Panel(draw),),
        x_label="pairs removed",
        height=70 + 22 * len(counts),
        left=10.5,
        right=8.0,
    )
