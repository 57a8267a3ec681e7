"""Pictures of what the machines did, with the events of the run marked."""

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from dragoman.report.evidence import Evidence
from dragoman.report.evidence.monitor_logs import Machine
from dragoman.report.evidence.series import NAN, Floats, envelope
from dragoman.report.findings.analysis import Findings
from dragoman.report.findings.step_times import PHASES
from dragoman.report.findings.timeline import (
    Interval,
    checkpoint_intervals,
    evaluation_intervals,
    restart_intervals,
)
from dragoman.report.findings.traffic import rates_of
from dragoman.report.page.plots.canvas import Panel, Picture, Shape, band, beyond, colour, dashed
from dragoman.wording import in_bits_per_second, in_percent

if TYPE_CHECKING:
    from matplotlib.axes import Axes

PHASE_COLOURS = {
    "compute": "blue",
    "exposed communication": "orange",
    "optimizer": "green",
    "data": "purple",
    "other": "slate",
}
_TINTS = ("blue", "green", "purple", "orange")
_MOST_MACHINES = 16
_MOST_MARKS = 400
_MOST_DOTS = 400
_STRETCHES = 400  # Points of a machine's curve, whatever the picture's width.
_MEGABITS = 8e-6  # Of a byte.


def step_time_picture(evidence: Evidence, findings: Findings) -> Picture | None:
    """Where each step's time went."""
    train, times = evidence.history.train, findings.times
    if times is None or not np.isfinite(train.seconds_compute).any():
        return None
    highest = float(np.nanmax(train.seconds))
    top = min(1.04 * highest, 2.5 * float(np.nanpercentile(train.seconds, 95)))

    def draw(axes: "Axes", shape: Shape) -> None:
        stretches = min(shape.stretches, 160)
        curves = [
            envelope(train.step, np.nan_to_num(getattr(train, PHASES[name])), stretches)
            for name in PHASE_COLOURS
        ]
        axes.stackplot(
            curves[0].x,
            [curve.mean for curve in curves],
            colors=[colour(tint) for tint in PHASE_COLOURS.values()],
            labels=list(PHASE_COLOURS),
            alpha=0.75,
            lw=0,
        )
        whole = envelope(train.step, train.seconds, stretches)
        axes.plot(whole.x, whole.high, color=colour("muted"), lw=0.8, label="slowest step")
        axes.set_ylim(0, top)

    found = findings.network
    network = ""
    if found is not None and found.machines > 1 and found.network_share > 0:
        whose = " of the latest workers" if evidence.history.have_workers_changed else ""
        network = (
            f" Of the exposed communication{whose}, a faster network could remove at most "
            f"{in_percent(found.network_share)} of the step time; the rest is waiting for the "
            "slowest worker."
        )
    return Picture(
        key="step_time",
        title="Step time by phase",
        caption="Mean seconds of each phase, stacked; the thin line is the slowest step of each "
        "group." + network + beyond(highest, top, "seconds per step"),
        panels=(Panel(draw),),
        y_label="seconds per step",
        legend="above",
        height=310,
    )


def utilization_picture(evidence: Evidence, findings: Findings) -> Picture | None:
    """How busy the GPUs of each machine were, or its processors if it used no GPU."""
    on_gpus = bool(findings.gpus.gpus)

    def series(machine: Machine) -> list[tuple[str, NDArray[np.floating]]]:
        gpus = [(f"GPU {gpu.index}", gpu.utilization) for gpu in machine.gpus if on_gpus]
        return [*gpus] or [("processors", machine.cpu_percent)]

    def finish(axes: "Axes", machine: Machine) -> None:
        axes.set_ylim(0, 108)
        axes.set_yticks([0, 50, 100], ["0", "50", "100%"])

    what = "Each GPU's" if on_gpus else "The processors'"
    return _machine_picture(
        evidence,
        [machine for machine in evidence.machines if len(machine) > 1],
        series,
        finish,
        key="utilization",
        title=f"{'GPU' if on_gpus else 'CPU'} utilisation per machine",
        caption=f"{what} mean utilisation and its range within each interval. Marks along the "
        "bottom show evaluations and, below them, checkpoints: they explain a dip or peak "
        "above them." + (" Waiting inside a collective counts as busy." if on_gpus else ""),
    )


def network_picture(evidence: Evidence, findings: Findings) -> Picture | None:
    """What each machine sent and received."""
    if len(evidence.hosts) < 2:
        return None
    traffic = findings.network.traffic if findings.network else ()
    capacities = {item.host: item.capacity for item in traffic if item.capacity}

    def series(machine: Machine) -> list[tuple[str, NDArray[np.floating]]]:
        counters = {"sent": machine.sent_bytes, "received": machine.received_bytes}
        return [
            (label, _MEGABITS * rates_of(machine.time, counter))
            for label, counter in counters.items()
        ]

    def finish(axes: "Axes", machine: Machine) -> None:
        if machine.host in capacities:
            axes.axhline(_MEGABITS * capacities[machine.host], **dashed("ink", label="capacity"))
        axes.set_ylim(bottom=0)
        axes.yaxis.set_major_formatter(lambda value, _: f"{value:,.0f}")
        axes.set_ylabel("Mb/s")

    links = sorted({in_bits_per_second(capacity) for capacity in capacities.values()})
    limit = f" (dashed, {' or '.join(links)})" if links else ""
    return _machine_picture(
        evidence,
        [machine for machine in evidence.machines if len(machine) > 1 and machine.interface],
        series,
        finish,
        key="network",
        title="Network traffic per machine",
        caption="Mean and range of the traffic per second, against the capacity of the "
        f"link{limit}. Traffic far below capacity does not rule out the network as the "
        "bottleneck: a step may still wait for each exchange.",
    )


def _machine_picture(
    evidence: Evidence,
    machines: Sequence[Machine],
    series: Callable[[Machine], list[tuple[str, NDArray[np.floating]]]],
    finish: Callable[["Axes", Machine], None],
    *,
    key: str,
    title: str,
    caption: str,
) -> Picture | None:
    """A panel for each machine, with the curves of its series and the events of the run."""
    if not machines:
        return None
    shown = machines[:_MOST_MACHINES]
    unit_seconds, unit = _time_unit(evidence)
    marks = _find_marks(evidence, unit_seconds)

    def panel(machine: Machine) -> Panel:
        since_start = (machine.time - evidence.history.first_time) / unit_seconds
        curves = [
            (label, envelope(since_start, values, _STRETCHES)) for label, values in series(machine)
        ]

        def draw(axes: "Axes", shape: Shape) -> None:
            for number, (label, curve) in enumerate(curves):
                # What is sent and what is received is often the same: let both be seen.
                width = (2.6, 1.0)[number] if key == "network" else 1.2
                band(axes, curve, _TINTS[number % len(_TINTS)], label, lw=width)
            finish(axes, machine)
            _mark_events(axes, marks)

        return Panel(draw, f"{machine.host} {machine.interface if key == 'network' else ''}")

    left_out = len(machines) - len(shown)
    return Picture(
        key=key,
        title=title,
        caption=caption + (f" {left_out} more machines are not shown." if left_out else ""),
        panels=[panel(machine) for machine in shown],
        x_label=f"{unit} since the start",
        legend="above",
        height=80 + (150 if len(shown) < 3 else 104) * len(shown),
    )


def correlation_picture(evidence: Evidence, findings: Findings) -> Picture | None:
    """Step time against traffic, a dot for each window."""
    found = findings.correlation
    windows = found.windows
    if windows is None or found.correlation is None:
        return None

    def draw(axes: "Axes", shape: Shape) -> None:
        chosen = _few_and_extreme(windows.bytes_per_second, windows.seconds_per_step)
        x, y = _MEGABITS * windows.bytes_per_second[chosen], windows.seconds_per_step[chosen]
        axes.plot(x, y, "o", color=colour("blue"), markersize=4, markeredgewidth=0, alpha=0.5)
        axes.xaxis.set_major_formatter(lambda value, _: f"{value:,.0f}")

    return Picture(
        key="correlation",
        title="Step time against traffic",
        caption=f"Each dot is {windows.seconds:.0f} s of almost only training. A cloud rising to "
        "the right would mean that traffic slows the steps; since every step sends the same "
        "bytes, a falling one says nothing about the network.",
        panels=(Panel(draw),),
        x_label=f"sent by {found.host}, Mb/s",
        y_label="seconds per step",
        height=280,
    )


def _few_and_extreme(x: Floats, y: Floats) -> list[int]:
    """At most so many points, the outermost among them."""
    step = max(1, len(x) // _MOST_DOTS)
    outermost = {int(choose(values)) for values in (x, y) for choose in (np.argmin, np.argmax)}
    return sorted(outermost | set(range(0, len(x), step)))


def _time_unit(evidence: Evidence) -> tuple[float, str]:
    """Seconds of a unit of the x axis, and its name."""
    seconds = evidence.history.last_time - evidence.history.first_time
    if seconds > 4 * 86_400:
        return 86_400.0, "days"
    return (3_600.0, "hours") if seconds > 7_200 else (60.0, "minutes")


def _find_marks(evidence: Evidence, unit_seconds: float) -> dict[str, Floats]:
    """Where on the x axis something else than training began."""
    history = evidence.history

    def places(intervals: Sequence[Interval]) -> Floats:
        begins = np.array([begin for begin, _ in intervals])
        few = begins[:: max(1, len(begins) // _MOST_MARKS)]
        return (few - history.first_time) / unit_seconds

    return {
        "checkpoint": places(checkpoint_intervals(history)),
        "evaluation": places(evaluation_intervals(history)),
        "restart": places(restart_intervals(history)),
    }


def _mark_events(axes: "Axes", marks: dict[str, Floats]) -> None:
    """Ticks for evaluations and checkpoints at the bottom, lines for restarts."""
    bottom, top = axes.get_ylim()
    height = 0.055 * (top - bottom)
    looks = {
        "checkpoint": (bottom, bottom + height, {"color": colour("purple")}),
        "evaluation": (bottom + height, bottom + 2 * height, {"color": colour("orange")}),
        "restart": (bottom, top, dashed("red")),
    }
    for label, (low, high, look) in looks.items():
        places = marks[label]
        if len(places):
            look = {"lw": min(1.0, 100 / len(places)), **look}  # Many stay apart if they are thin.
            # One path with gaps draws much faster than a path for each.
            axes.plot(np.repeat(places, 3), [low, high, NAN] * len(places), label=label, **look)
    axes.set_ylim(bottom, top)
