"""A document is read as values that are checked, or refused in one line that names the place."""

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from dragoman.errors import UserError
from dragoman.validation import HASH, Fields, load_json, parse_json

FIX = "make it again"
WORDS = ("text", "", "../up", "\ud800", "a\nb")
NUMBERS = (-1, 1.5, 10**400, -(10**400), 2**63, 1e308, *map(float, ("inf", "-inf", "nan")))
NASTY: tuple[Any, ...] = (None, True, *WORDS, *NUMBERS, [], {}, [[]])


def fields(value: Any) -> Fields:
    return Fields({"key": value}, "a file", FIX)


def accepted(read: Callable[[Fields], Any]) -> list[Any]:
    """The nasty values that a reader lets pass; the others must be refused in one line."""
    passed, refusals = [], []
    for value in NASTY:
        try:
            passed.append(read(fields(value)))
        except UserError as error:
            refusals.append(str(error))
    for refusal in refusals:
        assert re.fullmatch(f"a file is damaged: key must be .{{1,120}}; {FIX}", refusal)
    return passed


def test_each_kind_of_value_takes_its_own_and_no_other() -> None:
    assert accepted(lambda one: one.count("key")) == []
    assert accepted(lambda one: one.count("key", minimum=-1)) == [-1]
    assert accepted(lambda one: one.number("key")) == [-1.0, 1.5, 1e308]
    assert accepted(lambda one: one.number("key", 0, 2)) == [1.5]
    assert accepted(lambda one: one.flag("key")) == [True]
    assert accepted(lambda one: one.text("key")) == ["text", "", "../up", "a\nb"]
    assert accepted(lambda one: one.line("key")) == ["text", "", "../up"]
    assert accepted(lambda one: one.text("key", re.compile("t.*"))) == ["text"]
    assert accepted(lambda one: one.file_name("key")) == ["text"]
    assert accepted(lambda one: one.one_of("key", ["text", "other"])) == ["text"]
    assert accepted(lambda one: one.one_of("key", [1, -1])) == [-1]
    assert accepted(lambda one: len(one.fields("key"))) == [0]
    assert accepted(lambda one: len(one.list("key"))) == [0, 1]


@pytest.mark.parametrize("name", ["/a", "a/b", "..", ".", ".a", "", "a\\b", "a\0", " a", "a" * 300])
def test_a_file_name_leads_to_no_other_folder(name: str) -> None:
    with pytest.raises(UserError, match="a file name without folders"):
        fields(name).file_name("key")


def test_the_place_of_a_problem_is_named() -> None:
    document = Fields({"a": {"b": [{"c": "x"}]}}, "a file", FIX)
    entry = document.fields("a").list("b").fields(0)
    with pytest.raises(UserError, match=r'a\.b\[0\]\.c must be a whole number .*, not "x"'):
        entry.count("c")
    with pytest.raises(UserError, match=r"a\.b\[0\]\.d is missing"):
        entry.text("d")
    with pytest.raises(UserError, match=r"a\.b\[0\]\.c is unknown"):
        entry.refuse_others(["d"])
    with pytest.raises(UserError, match=r"a\.b is no checksum"):
        document.fields("a").keys(HASH, "checksum")


def test_another_format_is_no_damage() -> None:
    Fields({"format": 1}, "a file", FIX).require_format(1)
    with pytest.raises(UserError, match=f"^a file has format 2, this Dragoman reads 1; {FIX}$"):
        Fields({"format": 2}, "a file", FIX).require_format(1)
    with pytest.raises(UserError, match="a file is damaged: format must be a whole number"):
        Fields({"format": [2]}, "a file", FIX).require_format(1)


def test_items_of_a_list_are_read_by_their_places() -> None:
    names = fields(["one", "two"]).list("key")
    assert [names.text(place) for place in names] == ["one", "two"]
    assert fields(None).has("key") is False
    assert fields(0).has("key") is True


@pytest.mark.parametrize(
    "document",
    [b"", b"{", b"\xff", b"[" * 100_000, b'{"a":' * 100_000, b"9" * 5000, b'"text"', b"NaN"],
)
def test_what_is_no_document_is_refused_in_one_line(document: bytes, tmp_path: Path) -> None:
    path = tmp_path / "file.json"
    path.write_bytes(document)
    with pytest.raises(UserError) as refusal:
        load_json(path, FIX)
    assert str(refusal.value).startswith(f"{path} is damaged: ")
    assert str(refusal.value).endswith(f"; {FIX}")


def test_a_file_too_large_for_a_document_is_not_read(tmp_path: Path) -> None:
    path = tmp_path / "file.json"
    with open(path, "wb") as file:
        file.truncate(1 << 40)
    with pytest.raises(UserError, match=r"larger than 67,108,864 bytes"):
        load_json(path, FIX)
    with pytest.raises(UserError, match="is not a file"):
        load_json(tmp_path, FIX)
    with pytest.raises(FileNotFoundError):
        load_json(tmp_path / "none.json", FIX)


def test_what_was_written_is_read_back() -> None:
    written = {"name": "größe", "count": 3, "numbers": [1, 2.5]}
    document = parse_json(json.dumps(written).encode(), "a file", FIX)
    document.refuse_others(list(written))
    assert document.text("name") == "größe"
    assert document.count("count") == 3
    numbers = document.list("numbers")
    assert [numbers.number(place) for place in numbers] == [1.0, 2.5]
