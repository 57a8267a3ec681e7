"""Bytes seen at the network interfaces, aligned to the steps of the run."""

from dataclasses import dataclass
from typing import Literal

import numpy as np

from dragoman.report.evidence import Evidence
from dragoman.report.evidence.monitor_logs import Machine
from dragoman.report.evidence.series import NAN, Floats
from dragoman.report.evidence.step_series import TrainSteps
from dragoman.report.findings.intervals import Correlation, correlate
from dragoman.thresholds import TRAFFIC_AGREEMENT, WINDOW_TRAINING_SHARE, WINDOWS_NEEDED

TrafficReason = Literal[
    "single machine",
    "no samples",
    "no windows",
    "few windows",
    "nothing varies",
    "slower with more traffic",
    "slower with less traffic",
    "no relation",
]

_SHORTEST_WINDOW, _LONGEST_WINDOW = 5.0, 60.0  # Seconds.
_STEPS_PER_WINDOW = 5
_WINDOWS_WANTED = 200


@dataclass(frozen=True)
class Windows:
    """Stretches of about equal length in which the run did little else but train."""

    start: Floats
    lengths: Floats  # Seconds.
    training_seconds: Floats
    steps: Floats
    sent_bytes: Floats

    def __len__(self) -> int:
        return len(self.start)

    @property
    def seconds(self) -> float:
        """The mean length of a window."""
        return float(self.lengths.mean())

    @property
    def seconds_per_step(self) -> Floats:
        """Mean step time in each window."""
        return self.training_seconds / self.steps

    @property
    def bytes_per_step(self) -> Floats:
        """What was sent for each step, and by others meanwhile."""
        return self.sent_bytes / self.steps

    @property
    def bytes_per_second(self) -> Floats:
        """Mean rate in each window while it trained, for that is when steps send."""
        return self.sent_bytes / self.training_seconds


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

    reason: TrafficReason
    host: str = ""
    windows: Windows | None = None
    correlation: Correlation | None = None
    # With the bytes a second beyond those of the run's own steps; None if hardly any are.
    with_other_traffic: Correlation | None = None


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
        found.append(
            Traffic(
                host=machine.host,
                interface=machine.interface,
                bytes_per_step=float(windows.sent_bytes.sum() / windows.steps.sum()),
                bytes_per_second=float(windows.sent_bytes.sum() / windows.training_seconds.sum()),
                peak_bytes_per_second=float(np.nanmax(rates, initial=0.0)),
                capacity=capacity,
                capacity_source=source,
            )
        )
    return tuple(found)


def correlate_with_steps(evidence: Evidence) -> TrafficCorrelation:
    """Use the machine of worker 0, whose step times these are, or the next that has samples."""
    if len(evidence.hosts) == 1:
        return TrafficCorrelation("single machine")
    for machine in evidence.machines if evidence.hosts else ():
        windows = training_windows(evidence, machine)
        if windows is None:
            continue
        if len(windows) < WINDOWS_NEEDED.value:
            return TrafficCorrelation("few windows", machine.host, windows)
        correlation = correlate(windows.bytes_per_second, windows.seconds_per_step)
        other = _correlate_other_traffic(evidence, windows)
        return TrafficCorrelation(_relation(correlation), machine.host, windows, correlation, other)
    are_sampled = any(len(machine) > 1 and machine.interface for machine in evidence.machines)
    return TrafficCorrelation("no windows" if are_sampled else "no samples")


def _relation(correlation: Correlation | None) -> TrafficReason:
    if correlation is None:
        return "nothing varies"
    if correlation.low > 0:
        return "slower with more traffic"
    return "slower with less traffic" if correlation.high < 0 else "no relation"


def _correlate_other_traffic(evidence: Evidence, windows: Windows) -> Correlation | None:
    """Take the run's own bytes out: those of a step are always the same, however long it takes."""
    calibration = evidence.history.calibration
    own = calibration.bytes_per_step if calibration else None
    if not own:
        return None
    # A window more or less full than its steps explain is the sampling's doing; all together not.
    if windows.sent_bytes.sum() <= (1 + TRAFFIC_AGREEMENT.value) * own * windows.steps.sum():
        return None
    others = (windows.sent_bytes - own * windows.steps) / windows.lengths
    return correlate(others, windows.seconds_per_step)


def rates_of(time: Floats, counter: Floats) -> Floats:
    """Growth per second of a counter between each sample and the one before it."""
    seconds = np.diff(time, prepend=NAN)
    # Two samples in the same instant say nothing about a rate.
    seconds[~(seconds > 0.1)] = NAN
    rates: Floats = np.diff(counter, prepend=0) / seconds
    return rates


def training_windows(evidence: Evidence, machine: Machine) -> Windows | None:
    """Cut the run into windows and keep those in which the latest workers mostly trained."""
    train = evidence.history.latest_steps
    if len(train) < _STEPS_PER_WINDOW or not np.nansum(train.seconds):
        return None
    if len(machine) < 2 or not machine.interface:
        return None
    begins, ends = _spans(train)
    # A sample before the first step counts what was sent to measure the links, too.
    sampled = machine.time[machine.time >= begins[0]]
    if not len(sampled):
        return None
    first, last = sampled[0], min(ends[-1], machine.time[-1])
    edges = _window_edges(evidence, train, first, last)
    if len(edges) < 2:
        return None
    knots = np.column_stack((begins, ends)).ravel()
    trained = np.repeat(np.cumsum(ends - begins), 2)
    trained[::2] -= ends - begins
    counted = np.repeat(np.arange(1.0, len(train) + 1), 2)
    counted[::2] -= 1
    training_seconds = np.diff(np.interp(edges, knots, trained))
    steps = np.diff(np.interp(edges, knots, counted))
    sent = np.diff(np.interp(edges, machine.time, machine.sent_bytes))
    samples = np.diff(np.searchsorted(machine.time, edges))
    lengths = np.diff(edges)
    typical = max(float(np.median(np.diff(machine.time))), 1e-3)
    good = (
        (training_seconds >= WINDOW_TRAINING_SHARE.value * lengths)
        & (steps > 0)
        & (samples >= 0.5 * lengths / typical)
    )
    if not good.any():
        return None
    columns = (edges[:-1], lengths, training_seconds, steps, sent)
    return Windows(*(column[good] for column in columns))


def _window_edges(evidence: Evidence, train: TrainSteps, first: float, last: float) -> Floats:
    """Windows long enough for several steps and samples, short enough to be many."""
    local_steps, seconds = evidence.local_steps, np.nan_to_num(train.seconds)
    typical = float(np.median(seconds) if local_steps == 1 else seconds.mean() * local_steps)
    least = max(_SHORTEST_WINDOW, _STEPS_PER_WINDOW * typical)
    width = max(least, min(_LONGEST_WINDOW, float(seconds.sum()) / _WINDOWS_WANTED))
    if local_steps == 1:
        return np.arange(first, last, width)
    # Whole rounds, cut where nothing is on its way: a synchronization more or less would be a jump.
    is_middle = train.step % local_steps == local_steps // 2
    middles: Floats = train.time[is_middle & (train.time >= first) & (train.time <= last)]
    return middles[:: round(width / typical)]


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
        if link.goodput_bytes_per_second and machine.host == link.hosts[0]
    ]
    if measured:
        return min(measured), "measured"
    if machine.speed_mbit and machine.speed_mbit > 0:
        return machine.speed_mbit * 1e6 / 8, "nominal"
    return None, ""
