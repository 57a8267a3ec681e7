"""Bytes seen at the network interfaces, aligned to the steps of the run."""

from dataclasses import dataclass

import numpy as np

from dragoman.report.evidence import Evidence
from dragoman.report.evidence.machines import Machine
from dragoman.report.evidence.records import TrainSteps
from dragoman.report.intervals import Correlation, correlate
from dragoman.report.series import NAN, Floats
from dragoman.report.thresholds import WINDOW_TRAINING_SHARE, WINDOWS_NEEDED

_SHORTEST_WINDOW, _LONGEST_WINDOW = 5.0, 60.0  # Seconds.
_STEPS_PER_WINDOW = 5
_WINDOWS_WANTED = 200


@dataclass(frozen=True)
class Windows:
    """Stretches of equal length in which the run did nothing but train."""

    seconds: float
    start: Floats
    seconds_per_step: Floats
    bytes_per_second: Floats

    def __len__(self) -> int:
        return len(self.start)


@dataclass(frozen=True)
class Traffic:
    """What one machine sent while the run trained."""

    host: str
    interface: str
    bytes_per_step: float
    bytes_per_second: float
    peak_bytes_per_second: float
    capacity: float | None  # Bytes per second.
    capacity_source: str  # "measured", "nominal" or "".


@dataclass(frozen=True)
class TrafficCorrelation:
    """Step time against traffic over windows of one machine."""

    host: str
    windows: Windows
    correlation: Correlation | None


def measure_traffic(evidence: Evidence) -> tuple[Traffic, ...]:
    """Traffic of every machine with samples while the latest workers trained."""
    train = evidence.history.latest_steps
    found = []
    for machine in evidence.machines:
        windows = training_windows(evidence, machine)
        if windows is None:
            continue
        capacity, source = _capacity(evidence, machine)
        during = (machine.time >= train.time[0]) & (machine.time <= train.time[-1])
        rates = rates_of(machine.time, machine.sent_bytes)[during]
        steps_per_second = (1 / windows.seconds_per_step).sum()
        found.append(
            Traffic(
                host=machine.host,
                interface=machine.interface,
                bytes_per_step=float(windows.bytes_per_second.sum() / steps_per_second),
                bytes_per_second=float(windows.bytes_per_second.mean()),
                peak_bytes_per_second=float(np.nanmax(rates, initial=0.0)),
                capacity=capacity,
                capacity_source=source,
            )
        )
    return tuple(found)


def correlate_with_steps(evidence: Evidence) -> TrafficCorrelation | None:
    """Use the machine of worker 0, whose step times these are, or the next that has samples."""
    for machine in evidence.machines:
        windows = training_windows(evidence, machine)
        if windows is not None:
            enough = len(windows) >= WINDOWS_NEEDED.value
            correlation = (
                correlate(windows.bytes_per_second, windows.seconds_per_step) if enough else None
            )
            return TrafficCorrelation(machine.host, windows, correlation)
    return None


def rates_of(time: Floats, counter: Floats) -> Floats:
    """Growth per second of a counter between each sample and the one before it."""
    seconds = np.diff(time, prepend=NAN)
    # Two samples in the same instant say nothing about a rate.
    seconds[~(seconds > 0.1)] = NAN
    rates: Floats = np.diff(counter, prepend=0) / seconds
    return rates


def training_windows(evidence: Evidence, machine: Machine) -> Windows | None:
    """Cut the run into windows and keep those in which the latest workers only trained."""
    train = evidence.history.latest_steps
    if len(train) < _STEPS_PER_WINDOW or len(machine) < 2 or not machine.interface:
        return None
    width = _window_seconds(evidence, train)
    begins, ends = _spans(train)
    first, last = max(begins[0], machine.time[0]), min(ends[-1], machine.time[-1])
    edges = np.arange(first, last, width)
    if len(edges) < 2:
        return None
    knots = np.column_stack((begins, ends)).ravel()
    lengths = ends - begins
    trained = np.repeat(np.cumsum(lengths), 2)
    trained[::2] -= lengths
    counted = np.repeat(np.arange(1.0, len(train) + 1), 2)
    counted[::2] -= 1
    training_seconds = np.diff(np.interp(edges, knots, trained))
    steps = np.diff(np.interp(edges, knots, counted))
    sent = np.diff(np.interp(edges, machine.time, machine.sent_bytes))
    samples = np.diff(np.searchsorted(machine.time, edges))
    typical = max(float(np.median(np.diff(machine.time))), 1e-3)
    good = (
        (training_seconds >= WINDOW_TRAINING_SHARE.value * width)
        & (steps > 0)
        & (samples >= 0.5 * width / typical)
    )
    if not good.any():
        return None
    return Windows(
        seconds=width,
        start=edges[:-1][good],
        seconds_per_step=(training_seconds / np.where(good, steps, 1))[good],
        bytes_per_second=sent[good] / width,
    )


def _window_seconds(evidence: Evidence, train: TrainSteps) -> float:
    """Long enough for several steps and samples, short enough for many windows."""
    typical = float(np.nanmedian(train.seconds))
    least = max(_SHORTEST_WINDOW, _STEPS_PER_WINDOW * typical * evidence.local_steps)
    return max(least, min(_LONGEST_WINDOW, float(np.nansum(train.seconds)) / _WINDOWS_WANTED))


def _spans(train: TrainSteps) -> tuple[Floats, Floats]:
    """Beginning and end of every step, never overlapping."""
    ends = np.maximum.accumulate(train.time)
    begins = ends - np.nan_to_num(train.seconds)
    begins[1:] = np.maximum(begins[1:], ends[:-1])
    return begins, ends


def _capacity(evidence: Evidence, machine: Machine) -> tuple[float | None, str]:
    """Bytes per second that the machine's link can carry."""
    measured = [
        link.goodput_bytes_per_second
        for link in evidence.history.links
        if link.goodput_bytes_per_second and machine.host in link.hosts
    ]
    if measured:
        return min(measured), "measured"
    if machine.speed_mbit and machine.speed_mbit > 0:
        return machine.speed_mbit * 1e6 / 8, "nominal"
    return None, ""
