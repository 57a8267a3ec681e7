"""monitor/HOST.jsonl -> what each machine did, on the clock of worker 0."""

import json
import os
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dragoman.report.clock import repair_clock
from dragoman.report.intervals import Floats
from dragoman.report.json_lines import describe_damage, number_or_none
from dragoman.report.line_table import FieldPath, read_table

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
            missing.append(f"monitor/{host}.jsonl is missing: nothing is known of that machine")
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
    first, last = _first_and_last(path)
    if not first:
        missing.append(f"monitor/{path.name} holds no whole line")
        return None
    interface = _choose_interface(first, last, interface)
    names = _gpu_names(last) or _gpu_names(first)
    wanted: list[FieldPath] = [("time",), ("clock_offset",), ("cpu_percent",)]
    wanted += [("interfaces", interface, f"{way}_bytes") for way in ("sent", "received")]
    wanted += [("gpus", place, "utilization") for place in range(len(names))]
    table = read_table(path, wanted)
    damaged = sorted(table.damaged + [number for number, line in table.others if line.strip()])
    missing += describe_damage(
        f"monitor/{path.name}", damaged, table.line_count, cut_short=table.is_cut_short
    )
    columns = table.values
    time = columns[0] - _known_so_far(columns[1])
    typical = float(np.median(np.diff(time))) if len(time) > 1 else 1.0
    time, jumps = repair_clock(time, np.full(len(time), max(typical, 0.0)))
    missing += [
        f"monitor/{path.name}: the clock went back by {jump.seconds:,.0f} s at sample "
        f"{jump.index + 1:,}; later samples were moved forward"
        for jump in jumps
    ]
    return Machine(
        host=path.stem,
        time=time,
        cpu_percent=columns[2].astype(np.float32),
        gpus=tuple(
            Gpu(index, name, columns[5 + place].astype(np.float32))
            for place, (index, name) in enumerate(names)
        ),
        interface=interface,
        speed_mbit=_speed(last, interface) or _speed(first, interface),
        sent_bytes=_continuous(columns[3], f"monitor/{path.name}", interface, missing),
        received_bytes=_continuous(columns[4], "", interface, missing),
    )


def _first_and_last(path: Path) -> tuple[dict[str, Any], dict[str, Any]]:
    """The first and the last whole line of a file, however long it is."""
    with open(path, "rb") as file:
        first = _first_object(file.read(_TAIL_BYTES).split(b"\n"))
        file.seek(max(0, file.seek(0, 2) - _TAIL_BYTES))
        last = _first_object(reversed(file.read().split(b"\n")))
    return first, last or first


def _first_object(lines: Any) -> dict[str, Any]:
    for line in lines:
        try:
            value = json.loads(line)
        except (ValueError, RecursionError):
            continue
        if isinstance(value, dict) and number_or_none(value.get("time")) is not None:
            return value
    return {}


def _interfaces(line: Mapping[str, Any]) -> dict[str, dict[str, Any]]:
    interfaces = line.get("interfaces")
    if not isinstance(interfaces, dict):
        return {}
    return {name: value for name, value in interfaces.items() if isinstance(value, dict)}


def _choose_interface(first: Mapping[str, Any], last: Mapping[str, Any], measured: str) -> str:
    """The interface that the run measured its links on, or else the busiest one."""
    known = _interfaces(first) | _interfaces(last)
    if measured in known:
        return measured

    def traffic(name: str) -> float:
        ends = [_interfaces(line).get(name, {}).get("sent_bytes", 0) for line in (first, last)]
        return float(ends[1] or 0) - float(ends[0] or 0)

    candidates = [name for name in known if name != _LOOPBACK]
    return max(candidates, key=traffic, default="")


def _speed(line: Mapping[str, Any], interface: str) -> float | None:
    return number_or_none(_interfaces(line).get(interface, {}).get("speed_mbit"))


def _gpu_names(line: Mapping[str, Any]) -> list[tuple[int, str]]:
    gpus = line.get("gpus")
    return [
        (int(number_or_none(gpu.get("index")) or 0), str(gpu.get("name", "GPU")))
        for gpu in (gpus if isinstance(gpus, list) else [])
        if isinstance(gpu, dict)
    ]


def _known_so_far(values: Floats) -> Floats:
    """Each value, or the last known one before it, or zero."""
    known = np.isfinite(values)
    if not known.any():
        return np.zeros_like(values)
    places = np.maximum.accumulate(np.where(known, np.arange(len(values)), -1))
    return np.where(places >= 0, values[np.maximum(places, 0)], values[int(np.argmax(known))])


def _continuous(counter: Floats, name: str, interface: str, missing: list[str]) -> Floats:
    """A counter that starts at zero and never falls, though the machine may have rebooted."""
    counter = _known_so_far(counter)
    growth = np.diff(counter, prepend=counter[:1])
    restarts = np.flatnonzero(growth < 0)
    growth[restarts] = counter[restarts]
    if len(restarts) and name:
        missing.append(
            f"{name}: the byte counter of {interface} started again {len(restarts)} times "
            "(a reboot); what flowed in between is not known"
        )
    total: Floats = np.cumsum(growth)
    return total
