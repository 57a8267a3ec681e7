import json
import random
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from dragoman.runs import line_table
from dragoman.runs.line_table import FieldPath, read_table

WANTED: list[FieldPath] = [
    ("time",),
    ("cpu",),
    ("gpus", 0, "busy"),
    ("gpus", 1, "busy"),
    ("interfaces", "eth0", "sent"),
    ("flag",),
    ("absent",),
]


def _line(generator: random.Random) -> dict[str, Any]:
    line: dict[str, Any] = {
        "time": 1.7e9 + generator.random() * 1e6,
        "name": 'a: tricky, "quoted" {name}',
        "cpu": generator.choice([0, 5, 99.5, 1e-5, -3.25, 1e22, None, float("nan")]),
        "gpus": [{"busy": generator.randint(0, 100)} for _ in range(generator.choice([1, 2]))],
    }
    names = ["eth0", "eth1"]
    generator.shuffle(names)
    line["interfaces"] = {name: {"sent": generator.randint(0, 10**13)} for name in names}
    if generator.random() < 0.3:
        line["flag"] = generator.choice([True, False])
    return line


def _expected(line: dict[str, Any]) -> list[float]:
    gpus = [gpu["busy"] for gpu in line["gpus"]] + [None, None]
    values = [line["time"], line["cpu"], *gpus[:2], line["interfaces"]["eth0"]["sent"]]
    values += [line.get("flag"), None]
    return [float("nan") if value is None else float(value) for value in values]


@pytest.mark.parametrize("block_bytes", [200, 5_000, 1 << 21])
@pytest.mark.parametrize("separators", [(", ", ": "), (",", ":")])
def test_the_same_numbers_as_json(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    block_bytes: int,
    separators: tuple[str, str],
) -> None:
    monkeypatch.setattr(line_table, "_BLOCK_BYTES", block_bytes)
    generator = random.Random(7)
    lines = [_line(generator) for _ in range(300)]
    path = tmp_path / "log.jsonl"
    path.write_text("".join(json.dumps(line, separators=separators) + "\n" for line in lines))
    table = read_table(path, WANTED)
    expected = np.array([_expected(line) for line in lines]).T
    np.testing.assert_allclose(table.values, expected, rtol=1e-14)
    assert table.lines.tolist() == list(range(1, 301))
    assert not table.damaged
    assert not table.is_cut_short


def test_damaged_lines_are_left_out_and_named(tmp_path: Path) -> None:
    path = tmp_path / "log.jsonl"
    whole = '{"time": 1.5, "cpu": 2}\n'
    path.write_text(
        whole + '{"time": 7, "cp\n' + whole + "\n" + '{"time": 9, "cpu": 3' + "\n" + whole
    )
    table = read_table(path, [("time",), ("cpu",)])
    assert table.values.tolist() == [[1.5, 1.5, 1.5], [2, 2, 2]]
    assert table.lines.tolist() == [1, 3, 6]
    assert table.damaged == [2, 5]
    assert table.others == [(4, b"")]


def test_a_last_line_that_is_cut_short(tmp_path: Path) -> None:
    path = tmp_path / "log.jsonl"
    path.write_text('{"time": 1, "cpu": 2}\n{"time": 2, "cpu": 1')
    table = read_table(path, [("time",), ("cpu",)])
    assert table.values.tolist() == [[1], [2]]
    assert table.is_cut_short
    assert table.damaged == [2]


def test_lines_that_begin_otherwise_are_handed_over(tmp_path: Path) -> None:
    path = tmp_path / "log.jsonl"
    path.write_text(
        '{"kind": "train", "step": 1}\n{"kind": "eval"}\n{}\n{"kind": "train", "step": 2}\n'
    )
    table = read_table(path, [("step",)], b'{"kind": "train"')
    assert table.values.tolist() == [[1, 2]]
    assert table.lines.tolist() == [1, 4]
    assert table.others == [(2, b'{"kind": "eval"}'), (3, b"{}")]


def test_an_empty_file(tmp_path: Path) -> None:
    path = tmp_path / "log.jsonl"
    path.touch()
    assert read_table(path, WANTED).values.shape == (len(WANTED), 0)


def test_swapped_interfaces_are_not_mistaken(tmp_path: Path) -> None:
    path = tmp_path / "log.jsonl"
    one = '{"interfaces": {"eth0": {"sent": 11}, "eth1": {"sent": 22}}}\n'
    other = '{"interfaces": {"eth1": {"sent": 22}, "eth0": {"sent": 11}}}\n'
    path.write_text((one + other) * 20)
    table = read_table(path, [("interfaces", "eth0", "sent")])
    assert set(table.values[0].tolist()) == {11.0}
