"""Tolerant reading of logs: damaged lines are skipped, clock jumps repaired."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from dragoman.documents import decode, decode_object, number_or_none
from dragoman.report.evidence.series import Floats, fill_unknown
from dragoman.thresholds import CLOCK_STEP_BACK


def read_json_lines(path: Path, missing: list[str]) -> Iterator[dict[str, Any]]:
    """Every whole object of a log; what could not be read is added to `missing`."""
    damaged: list[int] = []
    line, number = b"\n", 0
    with open(path, "rb") as lines:
        for number, line in enumerate(lines, 1):
            value = decode_object(line)
            if value is not None:
                yield value
            elif line.strip():
                damaged.append(number)
    missing += describe_damage(path.name, damaged, number, cut_short=not line.endswith(b"\n"))


def describe_damage(name: str, damaged: list[int], last: int, *, cut_short: bool) -> list[str]:
    """Say which lines were passed over."""
    notices = []
    if cut_short and damaged and damaged[-1] == last:
        damaged = damaged[:-1]
        notices.append(
            f"{name}: the last line is incomplete and was skipped (the run is still writing, or "
            "was killed while writing it)"
        )
    if damaged:
        shown = ", ".join(f"{number:,}" for number in damaged[:5])
        more = f" and {len(damaged) - 5:,} more" if len(damaged) > 5 else ""
        plural = "s" if len(damaged) > 1 else ""
        notices.append(f"{name}: skipped {len(damaged):,} damaged line{plural} ({shown}{more})")
    return notices


def repair_clock(
    name: str, unit: str, times: Floats, expected: Floats, missing: list[str]
) -> Floats:
    """Make times go forward: after a step back, go on as if `expected` seconds had passed."""
    times = fill_unknown(times)
    differences = np.diff(times)
    jumps = np.flatnonzero(differences < -CLOCK_STEP_BACK.value) + 1
    shift = np.zeros_like(times)
    shift[jumps] = expected[jumps] - differences[jumps - 1]
    missing += [
        f"{name}: the clock went back by {-differences[jump - 1]:,.0f} s at {unit} {jump + 1:,}; "
        "later times were shifted forward to continue from there"
        for jump in jumps
    ]
    repaired: Floats = np.maximum.accumulate(times + np.cumsum(shift))
    return repaired


def read_json(path: Path, missing: list[str]) -> Any:
    """What one file holds, or nothing and a word about it."""
    try:
        return decode(path.read_bytes())
    except FileNotFoundError:
        missing.append(f"{path.name} is missing")
    except (OSError, ValueError) as error:
        missing.append(f"{path.name} cannot be read: {error}")
    return None


def whole_number(value: Any) -> int:
    """A JSON number as an int, zero if it is none."""
    return int(number_or_none(value) or 0)


def table_of(value: Any) -> dict[str, Any]:
    """A JSON object or a TOML table, empty if it is something else."""
    return value if isinstance(value, dict) else {}
