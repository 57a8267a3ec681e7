"""The run's history: metrics.jsonl, samples.jsonl and trackers."""

import json
import math
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from dragoman.documents import encode
from dragoman.records import (
    BEGINNINGS,
    EVENTS,
    End,
    Evaluation,
    Event,
    EventKind,
    Link,
    MachineSample,
    SampleTranslation,
    TrainStep,
)
from dragoman.runs.folder import RunFolder
from dragoman.runs.metrics_reader import highest_steps, read_metrics
from dragoman.runs.trackers import Trackers

SECONDS_BETWEEN_FLUSHES = 1.0

# Trackers' names for what metrics.jsonl says, so that old dashboards find their curves.
TRAIN_SCALARS = {
    "loss": "train_loss",
    "nll": "train_nll",
    "learning_rate": "learning_rate",
    "gradient_norm": "global_gradient_norm",
    "seconds": "seconds_per_step",
    "tokens_per_second": "tokens_per_second",
    "epoch": "epoch",
    "loss_scale": "loss_scale",
}
EVAL_SCALARS = {
    "loss": "eval_loss",
    "nll": "eval_nll",
    "perplexity": "eval_perplexity",
    "bleu": "eval_BLEU",
    "chrf": "eval_chrF",
    "train_sample_loss": "train_sample_loss",
}


class MetricsLog:
    """Appends events to a run folder, for the one worker that writes it."""

    def __init__(self, run: RunFolder, trackers: Trackers, warn: Callable[[str], None]) -> None:
        self.has_history = run.metrics.exists() and run.metrics.stat().st_size > 0
        self._highest_steps = highest_steps(run.metrics)
        self._run = run
        self._warn = warn
        self._shown: dict[str, MachineSample] = {}  # The last sample of each machine.
        self._metrics = LineFile(run.metrics)
        self._samples = LineFile(run.samples)
        self._others: dict[str, LineFile] = {}  # Monitors of other machines.
        threading.excepthook = _without_tensorboard
        self._trackers = trackers
        self._first_set: str | None = None
        self._last_flush = 0.0
        self._has_warned = False

    def write(self, kind: EventKind, step: int, event: Event, moment: float | None = None) -> None:
        """Append one event; it happened now, unless told otherwise."""
        assert type(event) is EVENTS[kind], f"{kind} is not a {type(event).__name__}"
        moment = time.time() if moment is None else moment
        line = {"kind": kind, "time": moment, "step": step, **encode(event)}
        if 0 < step <= self._highest_steps.get(kind, -1):
            line["repeated"] = True
        self._metrics.append(line)
        self._show(step, event)
        if kind != "train" or time.monotonic() - self._last_flush > SECONDS_BETWEEN_FLUSHES:
            self.flush()

    def end_if_missing(self, step: int, end: End) -> None:
        """Append a run's end, at the time of the last line, unless the log has one."""
        logged = read_metrics(self._run.metrics, [("step",), ("time",)])
        last = [one for one in logged.events if one.kind in ("stop", *BEGINNINGS)][-1:]
        if not any(isinstance(one.event, End) and one.event.is_finish for one in last):
            times = [*logged.steps[1], *(one.time for one in logged.events)]
            self.write("stop", step, end, float(np.nanmax(times)) if times else None)

    def write_samples(self, step: int, samples: Sequence[SampleTranslation]) -> None:
        """Append the sample translations of one evaluation, and show them to trackers."""
        for sample in samples:
            self._samples.append(encode(sample))
        lines = [f"{one.source}\n  -> {one.translation}\n   = {one.reference}" for one in samples]
        if lines:
            self._trackers.text("samples", "\n\n".join(lines), step)

    def write_samples_of_machine(self, host: str, samples: Sequence[MachineSample]) -> None:
        """Append what the monitor of another machine saw."""
        try:
            file = self._others[host] = self._others.get(host) or LineFile(
                self._run.monitor_of(host)
            )
        except OSError as error:
            self._warn_once(f"the monitor of {host} cannot be written: {error.strerror}")
            return
        for sample in samples:
            file.append(encode(sample))
        self.flush()

    def show_machine(self, host: str, samples: Sequence[MachineSample]) -> None:
        """Show what a machine did to trackers, under system/HOST."""
        for before, sample in zip([self._shown.get(host), *samples[:-1]], samples, strict=True):
            for name, value in machine_scalars(before, sample).items():
                self._trackers.scalar(f"system/{host}/{name}", value, sample.step, sample.time)
        self._shown[host] = samples[-1]

    def _show(self, step: int, event: Event) -> None:
        """Show an event to trackers, if there is a curve for it."""
        match event:
            case TrainStep():
                rate = event.target_tokens / event.seconds if event.seconds else 0.0
                self._scalars(TRAIN_SCALARS, {**vars(event), "tokens_per_second": rate}, step)
            case Evaluation():
                self._first_set = self._first_set or event.set
                suffix = "" if event.set == self._first_set else f"/{event.set}"
                nll = math.inf if event.nll is None else event.nll
                perplexity = math.exp(nll) if nll < 100 else None
                self._scalars(EVAL_SCALARS, {**vars(event), "perplexity": perplexity}, step, suffix)
            case Link(hosts=(sender, receiver)):
                for name, value in link_scalars(event).items():
                    where = f"system/{sender}/link_to_{receiver}/{name}"
                    self._trackers.scalar(where, value, step)

    def flush(self) -> None:
        """Hand everything to the operating system; a full disk is told once, and waited out."""
        self._last_flush = time.monotonic()
        failures = [file.flush() for file in (self._metrics, self._samples, *self._others.values())]
        if any(failures):
            reason = next(filter(None, failures))
            self._warn_once(
                f"metrics cannot be written: {reason}; keeping them in memory until there is space"
            )

    def close(self) -> None:
        """Finish all files."""
        self.flush()
        for file in (self._metrics, self._samples, *self._others.values()):
            file.close()
        self._trackers.close()

    def _warn_once(self, message: str) -> None:
        if not self._has_warned:
            self._has_warned = True
            self._warn(message)

    def _scalars(
        self, names: Mapping[str, str], values: Mapping[str, Any], step: int, suffix: str = ""
    ) -> None:
        for key, name in names.items():
            if (value := values.get(key)) is not None:
                self._trackers.scalar(name + suffix, value, step)


def _without_tensorboard(failure: threading.ExceptHookArgs) -> None:
    """Leave the failures of TensorBoard's thread to its tracker, which meets them too."""
    if type(failure.thread).__name__ != "_AsyncWriterThread":
        threading.__excepthook__(failure)


def link_scalars(link: Link) -> dict[str, float]:
    """What a link was measured to carry, in the units of `machine_scalars`."""
    return {
        "megabits_per_second": 8 * link.goodput_bytes_per_second / 1e6,
        "latency_milliseconds": 1e3 * link.latency_seconds,
    }


def machine_scalars(before: MachineSample | None, sample: MachineSample) -> dict[str, float]:
    """Curves of a monitor's sample; rates need the sample before it."""
    scalars = {
        "cpu_percent": sample.cpu_percent,
        "memory_gigabytes": sample.memory_bytes / 1e9,
    }
    for gpu in sample.gpus:
        for name in ("utilization", "power_watts", "sm_clock_mhz"):
            if (value := getattr(gpu, name)) is not None:
                scalars[f"gpu{gpu.index}/{name}"] = value
        if gpu.memory_bytes is not None:
            scalars[f"gpu{gpu.index}/memory_gigabytes"] = gpu.memory_bytes / 1e9
    seconds = sample.time - before.time if before else 0.0
    if before is None or seconds <= 0:
        return scalars
    for name in ("disk_read", "disk_written"):
        now, then = (getattr(one, f"{name}_bytes") for one in (sample, before))
        if now is not None and then is not None:
            scalars[f"{name}_megabytes_per_second"] = (now - then) / seconds / 1e6
    for interface, counters in sample.interfaces.items():
        if interface == "lo":
            continue  # What a machine sends to itself is not on the network.
        earlier = before.interfaces.get(interface, counters)
        for name in ("received", "sent"):
            grown = getattr(counters, f"{name}_bytes") - getattr(earlier, f"{name}_bytes")
            scalars[f"{interface}/{name}_megabits_per_second"] = 8 * grown / seconds / 1e6
    return scalars


class LineFile:
    """Appends lines to a file; on a full disk they wait in memory for room."""

    def __init__(self, path: Path) -> None:
        self._file = open(path, "ab+", buffering=0)
        self._waiting = bytearray()
        # A kill may have cut the last line short; the next one starts on a fresh line.
        if self._file.tell():
            self._file.seek(-1, 2)
            if self._file.read(1) != b"\n":
                self._waiting += b"\n"

    def append(self, values: Mapping[str, Any]) -> None:
        """Add one JSON object."""
        self._waiting += (json.dumps(values, ensure_ascii=False) + "\n").encode()

    def flush(self) -> str | None:
        """Write what waits; return the reason if it could not be written."""
        try:
            while self._waiting:
                written = self._file.write(self._waiting)
                del self._waiting[:written]
        except OSError as error:
            return error.strerror
        return None

    def close(self) -> None:
        """Write what waits, if there is room, and close."""
        self.flush()
        self._file.close()
