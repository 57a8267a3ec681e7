"""Pictures of what the machines did, with the events of the run marked."""

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from dragoman.report.bottleneck import PHASES
from dragoman.report.canvas import (
    Picture,
    Shape,
    colour,
    legend,
    legend_columns,
    legend_space,
    place_axes,
    thousands,
)
from dragoman.report.downsample import envelope
from dragoman.report.events import (
    Interval,
    checkpoint_intervals,
    evaluation_intervals,
    restart_intervals,
)
from dragoman.report.evidence import Evidence
from dragoman.report.findings import Findings
from dragoman.report.intervals import Floats
from dragoman.report.machines import Machine
from dragoman.report.traffic import received_rates, sent_rates
from dragoman.report.wording import in_bits_per_second, in_percent

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

PHASE_COLOURS = {
    "data": "purple",
    "compute": "blue",
    "exposed communication": "orange",
    "optimizer": "green",
    "other": "slate",
}
_MOST_MACHINES = 16
_MOST_MARKS = 400
_STRETCHES = 400  # Points of a machine's curve, whatever the picture's width.


def step_time_picture(evidence: Evidence, findings: Findings) -> Picture | None:
    """Where each step's time went."""
    train, times = evidence.history.train, findings.times
    if times is None or not np.isfinite(train.seconds_compute).any():
        return None

    def draw(figure: "Figure", shape: Shape) -> None:
        axes = place_axes(figure, shape, top=legend_space(shape, 6))[0]
        stretches = min(shape.stretches, 160)
        base = np.zeros(0)
        for name in ("compute", "exposed communication", "optimizer", "data", "other"):
            values = np.nan_to_num(getattr(train, PHASES[name]))
            curve = envelope(train.step, values, stretches)
            base = base if len(base) else np.zeros(len(curve))
            axes.fill_between(
                curve.x,
                base,
                base + curve.mean,
                color=colour(PHASE_COLOURS[name]),
                alpha=0.75,
                lw=0,
                label=name,
            )
            base = base + curve.mean
        whole = envelope(train.step, train.seconds, stretches)
        axes.plot(whole.x, whole.high, color=colour("muted"), lw=0.8, label="slowest step")
        axes.set_ylim(0, min(float(whole.high.max()), 2.5 * times.high) * 1.04)
        axes.set_ylabel("seconds per step")
        axes.set_xlabel("step")
        thousands(axes, shape)
        legend(axes, "lower left", legend_columns(shape), bbox_to_anchor=(0, 1.0))

    exposed = times.phases["exposed communication"] / times.mean
    return Picture(
        key="step_time",
        title="Step time by phase",
        caption="Mean seconds of each phase, stacked; the thin line is the slowest step of each "
        "stretch."
        + (
            f" Exposed communication ({in_percent(exposed)} of the time) is what a faster network "
            "could remove."
            if exposed > 0 and len(evidence.hosts) > 1
            else ""
        ),
        height=300,
        draw=draw,
    )


def utilization_picture(evidence: Evidence, findings: Findings) -> Picture | None:
    """How busy the GPUs of each machine were, or its processors if it used no GPU."""
    machines = _shown(evidence)
    if not machines:
        return None
    on_gpus = bool(findings.gpus.gpus)
    scale, unit = _time_scale(evidence)
    curves = []
    for machine in machines:
        series = [(f"GPU {gpu.index}", gpu.utilization) for gpu in machine.gpus if on_gpus]
        hours = (machine.time - evidence.history.first_time) / scale
        curves.append(
            [
                (label, envelope(hours, values, _STRETCHES))
                for label, values in series or [("processors", machine.cpu_percent)]
            ]
        )

    def draw(figure: "Figure", shape: Shape) -> None:
        marks = _find_marks(evidence, scale)
        rows = _rows(figure, shape, len(machines))
        for axes, machine, own in zip(rows, machines, curves, strict=True):
            for number, (label, curve) in enumerate(own):
                tint = colour(("blue", "green", "purple", "orange")[number % 4])
                axes.fill_between(curve.x, curve.low, curve.high, color=tint, alpha=0.2, lw=0)
                axes.plot(curve.x, curve.mean, color=tint, lw=1.2, label=label)
            axes.set_ylim(0, 108)
            axes.set_yticks([0, 50, 100], ["0", "50", "100%"])
            _mark_events(axes, marks)
            _name(axes, machine.host)
        _finish(rows, shape, unit)

    what = "Each GPU's" if on_gpus else "The processors'"
    return Picture(
        key="utilization",
        title=f"{'GPU' if on_gpus else 'CPU'} utilisation per machine",
        caption=f"{what} mean utilisation and its range within each stretch. Marks along the "
        "bottom show evaluations and, below them, checkpoints: dips above a mark have that cause."
        + (" Waiting inside a collective counts as busy." if on_gpus else ""),
        height=_height(len(machines)),
        draw=draw,
    )


def network_picture(evidence: Evidence, findings: Findings) -> Picture | None:
    """What each machine sent and received."""
    machines = [machine for machine in _shown(evidence) if machine.interface]
    if not machines or len(evidence.hosts) < 2:
        return None
    traffic = {item.host: item for item in (findings.network.traffic if findings.network else ())}
    goodput = next((item.capacity for item in traffic.values() if item.capacity), None)
    scale, unit = _time_scale(evidence)
    curves = []
    for machine in machines:
        hours = (machine.time - evidence.history.first_time) / scale
        received, sent = received_rates(machine), sent_rates(machine)
        curves.append(
            (
                ("received", "green", envelope(hours, 8e-6 * received, _STRETCHES)),
                ("sent", "blue", envelope(hours, 8e-6 * sent, _STRETCHES)),
            )
        )

    def draw(figure: "Figure", shape: Shape) -> None:
        marks = _find_marks(evidence, scale)
        rows = _rows(figure, shape, len(machines))
        for axes, machine, own in zip(rows, machines, curves, strict=True):
            for label, tint, curve in own:
                tone = colour(tint)
                axes.fill_between(curve.x, curve.low, curve.high, color=tone, alpha=0.15, lw=0)
                axes.plot(curve.x, curve.mean, color=tone, lw=1.2, label=label)
            capacity = traffic[machine.host].capacity if machine.host in traffic else None
            if capacity:
                axes.axhline(
                    8e-6 * capacity, color=colour("ink"), lw=1, ls=(0, (4, 3)), label="capacity"
                )
            axes.set_ylim(bottom=0)
            axes.yaxis.set_major_formatter(lambda value, _: f"{value:,.0f}")
            axes.set_ylabel("Mb/s")
            _mark_events(axes, marks)
            _name(axes, f"{machine.host} {machine.interface}")
        _finish(rows, shape, unit)

    limit = f" (dashed, {in_bits_per_second(goodput)})" if goodput else ""
    return Picture(
        key="network",
        title="Network traffic per machine",
        caption=f"Mean and range of what flowed each second, against what the link can carry"
        f"{limit}. Traffic far below the link does not clear the network: a step may still wait "
        "for each exchange in turn.",
        height=_height(len(machines)),
        draw=draw,
    )


def correlation_picture(evidence: Evidence, findings: Findings) -> Picture | None:
    """Step time against traffic, a dot for each window."""
    found = findings.correlation
    if found is None or found.correlation is None:
        return None
    windows = found.windows

    def draw(figure: "Figure", shape: Shape) -> None:
        axes = place_axes(figure, shape)[0]
        chosen = _few_and_extreme(windows.bytes_per_second, windows.seconds_per_step)
        axes.plot(
            8e-6 * windows.bytes_per_second[chosen],
            windows.seconds_per_step[chosen],
            linestyle="none",
            marker="o",
            markersize=4,
            markeredgewidth=0,
            color=colour("blue"),
            alpha=0.5,
        )
        axes.set_xlabel(f"sent by {found.host}, Mb/s")
        axes.set_ylabel("seconds per step")
        axes.xaxis.set_major_formatter(lambda value, _: f"{value:,.0f}")

    return Picture(
        key="correlation",
        title="Step time against traffic",
        caption=f"Each dot is {windows.seconds:.0f} s in which the run did nothing but train. "
        "A cloud that rises to the right would mean that traffic slows the steps.",
        height=280,
        draw=draw,
    )


def _few_and_extreme(x: Floats, y: Floats, most: int = 400) -> list[int]:
    """At most so many points, the outermost among them."""
    step = max(1, len(x) // most)
    outermost = {int(choose(values)) for values in (x, y) for choose in (np.argmin, np.argmax)}
    return sorted(outermost | set(range(0, len(x), step)))


def _shown(evidence: Evidence) -> list[Machine]:
    known = [machine for machine in evidence.machines if len(machine) > 1]
    return known[:_MOST_MACHINES]


def _height(rows: int) -> int:
    return 70 + (150 if rows < 3 else 104) * rows


def _rows(figure: "Figure", shape: Shape, count: int) -> list["Axes"]:
    return place_axes(figure, shape, count, top=legend_space(shape, 6) + shape.font)


def _time_scale(evidence: Evidence) -> tuple[float, str]:
    """Seconds of a unit of the x axis, and its name."""
    seconds = evidence.history.last_time - evidence.history.first_time
    if seconds > 4 * 86_400:
        return 86_400.0, "days"
    return (3_600.0, "hours") if seconds > 7_200 else (60.0, "minutes")


@dataclass(frozen=True)
class _Marks:
    """Where on the x axis something else than training began."""

    checkpoints: Floats
    evaluations: Floats
    restarts: Floats


def _find_marks(evidence: Evidence, scale: float) -> _Marks:
    def places(intervals: list[Interval]) -> Floats:
        begins = np.array([begin for begin, _ in intervals])
        few = begins[:: max(1, len(begins) // _MOST_MARKS)]
        return (few - evidence.history.first_time) / scale

    return _Marks(
        places(checkpoint_intervals(evidence)),
        places(evaluation_intervals(evidence)),
        places(restart_intervals(evidence)),
    )


def _mark_events(axes: "Axes", marks: _Marks) -> None:
    """Ticks for evaluations and checkpoints at the bottom, lines for restarts."""
    bottom, top = axes.get_ylim()
    height = 0.055 * (top - bottom)
    for level, (places, tint, label) in enumerate(
        ((marks.checkpoints, "purple", "checkpoint"), (marks.evaluations, "orange", "evaluation"))
    ):
        if len(places):
            floor = bottom + level * height
            width = min(1.0, 100 / len(places))  # Many marks stay apart if they are thin.
            axes.vlines(places, floor, floor + height, color=colour(tint), lw=width, label=label)
    if len(marks.restarts):
        axes.vlines(
            marks.restarts, bottom, top, color=colour("red"), lw=1, ls=(0, (3, 3)), label="restart"
        )
    axes.set_ylim(bottom, top)


def _name(axes: "Axes", text: str) -> None:
    axes.annotate(
        text,
        (1, 1),
        xytext=(0, 3),
        xycoords="axes fraction",
        textcoords="offset points",
        ha="right",
    )


def _finish(rows: list["Axes"], shape: Shape, unit: str) -> None:
    for axes in rows[:-1]:
        axes.tick_params(labelbottom=False)
    rows[-1].set_xlabel(f"{unit} since the start")
    offset = 1 + 1.2 * shape.font / rows[0].get_window_extent().height
    legend(rows[0], "lower left", legend_columns(shape), bbox_to_anchor=(0, offset))
