"""Long logs in seconds: numbers are cut out of JSON lines that look alike, a block at a time."""

import json
import math
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dragoman.documents import decode_object, number_or_none

FieldPath = tuple[str | int, ...]  # Such as ("gpus", 0, "utilization").

_BLOCK_BYTES = 1 << 21  # Small enough for the processor's cache.
_WIDEST_NUMBER = 28
_ROOM_TO_GROW = 8  # Digits that a number may have more than when its layout was learned.
_MOST_LAYOUTS = 8
_NEWLINE, _COLON, _POINT, _CLOSE = b"\n:.}"
_ENDS_NUMBER = np.zeros(256, dtype=bool)
_ENDS_NUMBER[list(b", }]\r\n")] = True
_ODD_NUMBER = re.compile(rb"([-+.\w]+)[, }\]\r\n]")
_WORDS = {b"true": 1.0, b"false": 0.0, b"null": math.nan}
_TOKEN = re.compile(rb'"(?:[^"\\]|\\.)*"|[{}\[\],:]|[^\s{}\[\],:"]+')

Floats = NDArray[np.float64]
Bools = NDArray[np.bool_]
Bytes = NDArray[np.uint8]
Places = NDArray[np.int64]


@dataclass(frozen=True)
class LineTable:
    """The wanted numbers of some lines of a log; all line numbers count from 1."""

    values: Floats  # A row for each wanted field, NaN where a line lacks it.
    lines: Places  # The line of each column.
    others: list[tuple[int, bytes]]  # Lines that begin otherwise, as they are.
    damaged: list[int]
    line_count: int
    is_cut_short: bool


@dataclass(frozen=True)
class _Layout:
    """Where the wanted values stand in all lines with the same keys in the same order."""

    colons: int
    keys: tuple[tuple[int, bytes], ...]  # Which colon, and the key before it with its quotes.
    values: dict[int, tuple[int, int, int]]  # Row -> which colon, bytes from there, bytes.


def read_table(path: Path, wanted: Sequence[FieldPath], prefix: bytes = b"{") -> LineTable:
    """Read the wanted fields of all lines that begin with `prefix`."""
    layouts: list[_Layout] = []
    parts: list[Floats] = [np.zeros((len(wanted), 0))]
    lines: list[Places] = [np.zeros(0, dtype=np.int64)]
    others: list[tuple[int, bytes]] = []
    damaged: list[int] = []
    count = 0
    is_cut_short = False
    for block in _blocks(path):
        is_cut_short = block[-1] != _NEWLINE
        starts, ends = _lines(block)
        begins_so = _begins_with(block, starts, ends, prefix)
        for line in np.flatnonzero(~begins_so).tolist():
            others.append((count + line + 1, block[starts[line] : ends[line]].tobytes()))
        places = np.flatnonzero(begins_so)
        values, bad = _read_lines(block, starts[places], ends[places], wanted, layouts)
        damaged += (places[bad] + count + 1).tolist()
        parts.append(values[:, ~bad] if bad.any() else values)
        lines.append(places[~bad] + count + 1)
        count += len(starts)
    return LineTable(
        np.concatenate(parts, axis=1), np.concatenate(lines), others, damaged, count, is_cut_short
    )


def numbers_of(value: Any, wanted: Sequence[FieldPath]) -> list[float]:
    """The wanted numbers of one object, NaN for those it lacks."""
    return [_number(_follow(value, path)) for path in wanted]


def _follow(value: Any, path: FieldPath) -> Any:
    for part in path:
        if isinstance(value, dict):
            value = value.get(part)
        elif isinstance(value, list) and isinstance(part, int) and part < len(value):
            value = value[part]
        else:
            return None
    return value


def _number(value: Any) -> float:
    number = float(value) if isinstance(value, bool) else number_or_none(value)
    return math.nan if number is None else number


def _blocks(path: Path) -> Iterator[Bytes]:
    """A file in pieces that end with a line; each piece is overwritten by the next."""
    buffer = bytearray(2 * _BLOCK_BYTES)
    kept = 0
    with open(path, "rb", buffering=0) as file:
        while read := file.readinto(memoryview(buffer)[kept:]):
            filled = kept + read
            whole = buffer.rfind(b"\n", 0, filled) + 1
            if whole:
                yield np.frombuffer(buffer, np.uint8, whole)
                buffer[: filled - whole] = buffer[whole:filled]
            elif filled == len(buffer):
                buffer = buffer + bytearray(len(buffer))  # A line longer than any buffer.
            kept = filled - whole
    if buffer[:kept].strip():
        yield np.frombuffer(buffer, np.uint8, kept)


def _lines(block: Bytes) -> tuple[Places, Places]:
    """Where each line begins, and where its newline stands."""
    ends = np.flatnonzero(block == _NEWLINE)
    if block[-1] != _NEWLINE:
        ends = np.append(ends, len(block))
    return np.concatenate(([0], ends[:-1] + 1)), ends


def _begins_with(block: Bytes, starts: Places, ends: Places, prefix: bytes) -> Bools:
    begins: Bools = ends - starts >= len(prefix)
    begins[begins] = _cells(block, starts[begins], len(prefix)).view(f"S{len(prefix)}") == prefix
    return begins


def _read_lines(
    block: Bytes,
    starts: Places,
    ends: Places,
    wanted: Sequence[FieldPath],
    layouts: list[_Layout],
) -> tuple[Floats, Bools]:
    """Values of lines, and which of them are damaged."""
    values = np.full((len(wanted), len(starts)), np.nan)
    colons = np.flatnonzero(block == _COLON)
    first_colons = np.searchsorted(colons, starts)
    counts = np.searchsorted(colons, ends) - first_colons
    # Numbers are looked for in more bytes than they have, so the last lines are read slowly.
    regular = (block[ends - 1] == _CLOSE) & (ends + _WIDEST_NUMBER < len(block))
    unread = np.ones(len(starts), dtype=bool)
    untried = list(layouts)  # The newest is tried first.
    while (unread & regular).any() and (untried or len(layouts) < _MOST_LAYOUTS):
        if untried:
            layout = untried.pop()
        else:
            odd_one = int(np.argmax(unread & regular))
            learned = _learn_layout(block[starts[odd_one] : ends[odd_one]].tobytes(), wanted)
            if learned is None:
                regular[odd_one] = False
                continue
            layout = learned
            layouts.append(layout)
        alike = np.flatnonzero(unread & regular & (counts == layout.colons))
        if len(alike):
            rows, follows = _cut_values(block, colons, first_colons[alike], layout)
            alike = alike[follows]
            for row, numbers in rows.items():
                values[row, alike] = numbers[follows]
            unread[alike] = False
    for line in np.flatnonzero(unread).tolist():
        decoded = decode_object(block[starts[line] : ends[line]].tobytes())
        if decoded is not None:
            values[:, line] = numbers_of(decoded, wanted)
            unread[line] = False
    return values, unread


def _cut_values(
    block: Bytes, colons: Places, first_colons: Places, layout: _Layout
) -> tuple[dict[int, Floats], Bools]:
    """Values of lines by row, and which of the lines do follow the layout."""
    follows = np.ones(len(first_colons), dtype=bool)
    for colon, key in layout.keys:
        cells = _cells(block, colons[first_colons + colon] - len(key), len(key))
        follows &= cells.view(f"S{len(key)}") == key
    rows = {}
    for row, (colon, distance, width) in layout.values.items():
        starts = colons[first_colons + colon] + distance
        rows[row], is_number = _numbers(block, starts, width)
        follows &= is_number
    return rows, follows


def _numbers(block: Bytes, starts: Places, width: int) -> tuple[Floats, Bools]:
    """Numbers and where there is one; true is 1, false is 0 and null is NaN."""
    cells = _cells(block, starts, width).view(np.uint8).reshape(-1, width)
    letters = np.ascontiguousarray(cells.T)  # Across the lines is the fast direction.
    digits = letters - 48  # Anything but a digit wraps around to more than 9.
    is_digit, is_point = digits < 10, letters == _POINT
    before_point = _until_false(is_digit)
    inside = _until_false(is_digit | is_point)
    points = before_point.sum(axis=0, dtype=np.uint8)
    lengths = inside.sum(axis=0, dtype=np.uint8)
    longest = int(lengths.max(initial=1))
    weights = np.power(10.0, np.arange(longest - 1.0, -1.0, -1.0))
    values: Floats = weights @ (digits * before_point)[:longest].astype(np.float64)
    behind_point = inside & is_digit & ~before_point
    if behind_point.any():
        values += 10 * weights @ (digits * behind_point)[:longest].astype(np.float64)
    values /= np.power(10.0, longest - points.astype(np.float64))
    ends = cells[np.arange(len(cells)), np.minimum(lengths, width - 1)]
    one_point = points + behind_point.sum(axis=0, dtype=np.uint8) + 1 >= lengths
    is_number = (points > 0) & _ENDS_NUMBER[ends] & one_point
    for odd in np.flatnonzero(~is_number).tolist():
        number = _odd_number(cells[odd].tobytes())
        is_number[odd] = number is not None
        values[odd] = np.nan if number is None else number
    return values, is_number


def _odd_number(cell: bytes) -> float | None:
    """A number with a sign or an exponent, or a word that stands for one."""
    match = _ODD_NUMBER.match(cell)
    token = match.group(1) if match else b""
    if token in _WORDS:
        return _WORDS[token]
    try:
        number = float(token)
    except ValueError:
        return None
    return number if math.isfinite(number) else math.nan


def _until_false(rows: Bools) -> Bools:
    """True in each column down to the first row that is not (accumulate() is slower)."""
    result = rows.copy()
    for above, row in pairwise(result):
        row &= above
    return result


def _cells(block: Bytes, starts: Places, width: int) -> NDArray[np.void]:
    """Copy so many bytes from each start, in one sweep."""
    overlapping = np.ndarray((max(0, len(block) - width + 1),), f"V{width}", block, strides=(1,))
    return overlapping[starts]


def _learn_layout(line: bytes, wanted: Sequence[FieldPath]) -> _Layout | None:
    """Find the places of the wanted values in one line; None if it is damaged."""
    if decode_object(line) is None:
        return None
    rows = {path: row for row, path in enumerate(wanted)}
    keys: dict[int, bytes] = {}
    values: dict[int, tuple[int, int, int]] = {}
    path: list[Any] = []  # The key or the index at each depth.
    path_keys: list[tuple[int, bytes]] = []  # The colon behind each key, and the key.
    text, colons, last_colon = b"", -1, 0
    for token in _TOKEN.finditer(line):
        word = token.group()
        if word.startswith(b'"'):
            text = word
            colons += word.count(b":")
        elif word in b"{[":
            path.append(0 if word == b"[" else None)
            path_keys.append((-1, b""))
        elif word in b"}]":
            path.pop()
            path_keys.pop()
        elif word == b":":
            colons, last_colon = colons + 1, token.start()
            path[-1] = json.loads(text)
            path_keys[-1] = (colons, text)
        elif word == b",":
            path[-1] = path[-1] + 1 if isinstance(path[-1], int) else None
        elif (row := rows.get(tuple(path))) is not None:
            width = min(len(word) + _ROOM_TO_GROW, _WIDEST_NUMBER)
            values[row] = (colons, token.start() - last_colon, width)
            # The key itself, and the one above it: two interfaces differ in nothing else.
            keys |= {colon: key for colon, key in path_keys[-2:] if key}
    return _Layout(colons + 1, tuple(keys.items()), values)
