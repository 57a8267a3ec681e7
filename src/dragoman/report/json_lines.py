"""Append-only logs, read with forgiveness: damaged lines are counted and passed over."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any


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


def decode_object(line: bytes) -> dict[str, Any] | None:
    """The object on a line, or None if the line is damaged."""
    try:
        value = json.loads(line)
    except (ValueError, RecursionError):
        return None
    return value if isinstance(value, dict) else None


def describe_damage(name: str, damaged: list[int], last: int, *, cut_short: bool) -> list[str]:
    """Say which lines were passed over."""
    notices = []
    if cut_short and damaged and damaged[-1] == last:
        damaged = damaged[:-1]
        notices.append(
            f"{name}: the last line is cut short and was passed over "
            "(the run is being written, or was killed in the middle of it)"
        )
    if damaged:
        shown = ", ".join(f"{number:,}" for number in damaged[:5])
        more = f" and {len(damaged) - 5:,} more" if len(damaged) > 5 else ""
        plural = "s" if len(damaged) > 1 else ""
        notices.append(f"{name}: {len(damaged):,} damaged line{plural} passed over ({shown}{more})")
    return notices


def read_json(path: Path, missing: list[str]) -> dict[str, Any]:
    """One object from one file, or nothing and a word about it."""
    try:
        value = json.loads(path.read_bytes())
    except FileNotFoundError:
        missing.append(f"{path.name} is missing")
    except (OSError, ValueError, RecursionError) as error:
        missing.append(f"{path.name} cannot be read: {error}")
    else:
        if isinstance(value, dict):
            return value
        missing.append(f"{path.name} does not hold an object")
    return {}


def number_or_none(value: Any) -> float | None:
    """A JSON number as a float; null, text and truth values are no numbers."""
    if isinstance(value, (int, float)) and not isinstance(value, bool):
        return float(value)
    return None


def number_or_nan(value: Any) -> float:
    """A JSON number as a float, anything else as NaN."""
    number = number_or_none(value)
    return float("nan") if number is None else number
