"""monitor/HOST.jsonl -> what each machine did, on the clock of worker 0."""

import os
from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from dragoman.documents import decode_object, number_or_none, parse_leniently
from dragoman.records import MachineSample
from dragoman.report.evidence.json_lines import describe_damage, repair_clock
from dragoman.report.evidence.series import Floats, fill_unknown
from dragoman.runs.line_table import FieldPath, read_table
from dragoman.wording import plural

_LOOPBACK = "lo"
_TAIL_BYTES = 1 << 16


@dataclass(frozen=True)
class Gpu:
    """How busy one GPU was, in per cent."""

    index: int
    name: str
    utilization: NDArray[np.float32]


@dataclass(frozen=True)
class Machine:
    """One machine's samples; counters of bytes only grow, whatever the machine did."""

    host: str
    time: Floats
    cpu_percent: NDArray[np.float32]
    gpus: tuple[Gpu, ...]
    interface: str
    speed_mbit: float | None
    sent_bytes: Floats
    received_bytes: Floats

    def __len__(self) -> int:
        return len(self.time)


def read_machines(
    folder: Path, hosts: Sequence[str], interfaces: Mapping[str, str], missing: list[str]
) -> tuple[Machine, ...]:
    """Read every monitor file; hosts of the run without one are named in `missing`."""
    paths = {path.stem: path for path in sorted(folder.glob("*.jsonl"))}
    for host in hosts:
        if host not in paths:
            missing.append(f"monitor/{host}.jsonl is missing: nothing is known about that machine")
    ordered = sorted(
        paths, key=lambda host: (hosts.index(host) if host in hosts else len(hosts), host)
    )
    notices: list[list[str]] = [[] for _ in ordered]
    with ThreadPoolExecutor(min(4, os.cpu_count() or 1)) as threads:
        machines = threads.map(
            lambda host, own: _read_machine(paths[host], interfaces.get(host, ""), own),
            ordered,
            notices,
        )
        found = tuple(machine for machine in machines if machine is not None)
    missing += [notice for own in notices for notice in own]
    return found


def _read_machine(path: Path, interface: str, missing: list[str]) -> Machine | None:
    name = f"monitor/{path.name}"
    first, last = _first_and_last(path)
    if first is None or last is None:
        missing.append(f"{name} contains no complete line")
        return None
    interface = _choose_interface(first, last, interface)
    gpus = last.gpus or first.gpus
    wanted: list[FieldPath] = [("time",), ("clock_offset",), ("cpu_percent",)]
    wanted += [("interfaces", interface, f"{way}_bytes") for way in ("sent", "received")]
    wanted += [("gpus", place, "utilization") for place in range(len(gpus))]
    table = read_table(path, wanted)
    damaged = sorted(table.damaged + [number for number, line in table.others if line.strip()])
    missing += describe_damage(name, damaged, table.line_count, cut_short=table.is_cut_short)
    clock, offset, cpu_percent, sent, received, *utilizations = table.values
    time = clock - fill_unknown(offset)
    typical = float(np.median(np.diff(time))) if len(time) > 1 else 1.0
    expected = np.full(len(time), max(typical, 0.0))
    sent_bytes, restarts = _continuous(sent)
    if restarts:
        missing.append(
            f"{name}: the byte counter of {interface} was reset {plural(restarts, 'time')} (a "
            "reboot); traffic in between is unknown"
        )
    return Machine(
        host=path.stem,
        time=repair_clock(name, "sample", time, expected, missing),
        cpu_percent=_percent(cpu_percent),
        gpus=tuple(
            Gpu(gpu.index, gpu.name or "GPU", _percent(utilization))
            for gpu, utilization in zip(gpus, utilizations, strict=True)
        ),
        interface=interface,
        speed_mbit=_speed(last, interface) or _speed(first, interface),
        sent_bytes=sent_bytes,
        received_bytes=_continuous(received)[0],
    )


def _first_and_last(path: Path) -> tuple[MachineSample | None, MachineSample | None]:
    """The first and the last whole line of a file, however long it is."""
    with open(path, "rb") as file:
        first = _first_sample(file.read(_TAIL_BYTES).split(b"\n"))
        file.seek(max(0, file.seek(0, 2) - _TAIL_BYTES))
        last = _first_sample(reversed(file.read().split(b"\n")))
    return first, last or first


def _first_sample(lines: Iterable[bytes]) -> MachineSample | None:
    for line in lines:
        value = decode_object(line) or {}
        if number_or_none(value.get("time")) is not None:
            return parse_leniently(MachineSample, value)
    return None


def _choose_interface(first: MachineSample, last: MachineSample, measured: str) -> str:
    """The interface that the run measured its links on, or else the busiest one."""
    known = {**first.interfaces, **last.interfaces}
    if measured in known:
        return measured

    def traffic(name: str) -> int:
        begin, end = (
            one.interfaces[name].sent_bytes if name in one.interfaces else 0
            for one in (first, last)
        )
        return end - begin

    return max((name for name in known if name != _LOOPBACK), key=traffic, default="")


def _speed(sample: MachineSample, interface: str) -> float | None:
    return sample.interfaces[interface].speed_mbit if interface in sample.interfaces else None


def _percent(values: Floats) -> NDArray[np.float32]:
    """Small numbers, whatever a damaged line says."""
    return np.clip(values, 0, 100).astype(np.float32)


def _continuous(counter: Floats) -> tuple[Floats, int]:
    """A counter that starts at zero and never falls, and how often the machine's own fell."""
    counter = fill_unknown(counter)
    growth = np.diff(counter, prepend=counter[:1])
    restarts = np.flatnonzero(growth < 0)
    growth[restarts] = counter[restarts]
    return np.cumsum(growth), len(restarts)
