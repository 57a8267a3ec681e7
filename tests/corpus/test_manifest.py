"""A manifest is read by the definition it was written by, or refused in one line."""

import copy
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from dragoman.corpus.manifest import parse_manifest, read_manifest, write_manifest
from dragoman.corpus.store import PreparedCorpus
from dragoman.errors import UserError

NASTY: list[Any] = [
    *(None, True, -1, 1.5, 10**400, float("inf"), float("nan"), 1e308),
    *("", "text", "../up", "/etc/passwd", "O", "\ud800", "a\nb", [], {}, [[]], {"a": {}}),
]


@pytest.fixture
def written(prepared_once: Path) -> dict[str, Any]:
    written: dict[str, Any] = json.loads((prepared_once / "prepared/manifest.json").read_text())
    return written


def refusal(document: dict[str, Any]) -> str:
    with pytest.raises(UserError) as caught:
        parse_manifest(document, "manifest.json", "prepare again")
    message = str(caught.value)
    assert len(message.splitlines()) == 1
    assert message.endswith("; prepare again")
    return message


def places(value: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """Where the values of a document are; of a list the first alone."""
    if path:
        yield path
    if isinstance(value, dict):
        for key, inner in value.items():
            yield from places(inner, (*path, key))
    elif isinstance(value, list) and value:
        yield from places(value[0], (*path, 0))


def put(document: dict[str, Any], path: tuple[Any, ...], value: Any) -> dict[str, Any]:
    changed: Any = copy.deepcopy(document)
    inner = changed
    for key in path[:-1]:
        inner = inner[key]
    inner[path[-1]] = value
    return changed  # type: ignore[no-any-return]


def test_what_was_written_is_read_back(prepared: Path, written: dict[str, Any]) -> None:
    folder = prepared / "prepared"
    before = (folder / "manifest.json").read_bytes()
    manifest = read_manifest(folder)
    assert json.loads(json.dumps(manifest.to_json())) == written
    write_manifest(folder, manifest)
    assert (folder / "manifest.json").read_bytes() == before


def test_a_copy_is_read_without_the_files(written: dict[str, Any]) -> None:
    manifest = parse_manifest(written, "provenance.json", "restore it", "corpus.manifest")
    assert manifest.vocabulary_of("source") == manifest.vocabulary_of("target")
    del written["pairs"]["raw"]
    with pytest.raises(UserError, match=r"corpus\.manifest\.pairs\.raw is missing; restore it"):
        parse_manifest(written, "provenance.json", "restore it", "corpus.manifest")


def test_each_missing_key_is_named(written: dict[str, Any]) -> None:
    for path in places(written):
        if path[-1] == 0 or (path[0] == "settings" and len(path) > 2):
            continue  # Settings have their defaults, and a first item is none without it.
        changed: Any = put(written, path, None)
        inner = changed
        for key in path[:-1]:
            inner = inner[key]
        del inner[path[-1]]
        if path[0] == "sets" and len(path) == 3:
            parse_manifest(changed, "manifest.json", "")  # A corpus with fewer sets.
        elif path[0] == "files" and len(path) == 2:
            assert "identity does not match files" in refusal(changed)
        else:
            assert f"{'.'.join(path)} is missing" in refusal(changed)


def test_no_value_gets_through_that_does_not_belong(written: dict[str, Any]) -> None:
    for path in places(written):
        for value in NASTY:
            changed = put(written, path, value)
            try:
                manifest = parse_manifest(changed, "manifest.json", "prepare again")
            except UserError as error:
                assert len(str(error).splitlines()) == 1, error  # noqa: PT017 (some are right)
                continue
            # What is left is a name that users choose, a figure, or no set at all.
            assert json.dumps(manifest.to_json()), (path, value)
            free = path[0] in ("languages", "dragoman", "seconds", "settings", "data", "sets")
            assert free or path[0] == "length_histogram", (path, value)


@pytest.mark.parametrize("dtype", ["O", "uint8", "uint64", "int64", "<u2", "V8", None, 2])
def test_token_ids_are_read_as_what_is_written_alone(prepared: Path, dtype: object) -> None:
    """Any other type makes numpy read beyond the file, or follow pointers out of it."""
    path = prepared / "prepared" / "manifest.json"
    path.write_text(json.dumps(put(json.loads(path.read_text()), ("vocabulary", "dtype"), dtype)))
    with pytest.raises(UserError, match=r'vocabulary\.dtype is .*, not "uint16" or "uint32"; run'):
        PreparedCorpus(prepared / "prepared")


@pytest.mark.parametrize("name", ["../../../evil", "/evil", "..", ".evil", "a/b", "a b", "a\0"])
def test_a_set_has_a_name_that_leads_nowhere(written: dict[str, Any], name: str) -> None:
    sets = {"validation": {name: written["sets"]["validation"]["valid"]}, "test": {}}
    assert f"sets.validation has the key {json.dumps(name)}" in refusal(
        put(written, ("sets",), sets)
    )


def test_counts_must_fit_the_sizes_of_files(written: dict[str, Any]) -> None:
    name = "train.target.tokens"
    size, checksum = written["files"][name].values()
    more = put(written, ("tokens", "target"), written["tokens"]["target"] + 1)
    assert f"files.{name}.bytes is {size:,}, not {size + 2:,}" in refusal(more)
    wider = put(written, ("vocabulary", "dtype"), "uint32")
    assert "files.train.source.tokens.bytes is" in refusal(wider)
    assert "pairs.raw minus all filters" in refusal(put(written, ("filters", "duplicate"), 7))
    grown = put(written, ("files", name), {"bytes": size + 1, "sha256": checksum})
    assert "identity does not match files" in refusal(grown)


@pytest.mark.parametrize("text", ["", "{", "[" * 100_000, "\0", '{"a":' * 100_000])
def test_a_manifest_that_is_no_json_is_refused(prepared: Path, text: str) -> None:
    (prepared / "prepared" / "manifest.json").write_text(text)
    with pytest.raises(UserError, match=r"manifest\.json is damaged: not JSON; run `dragoman pr"):
        PreparedCorpus(prepared / "prepared")


def test_settings_nested_deeply_are_refused_in_one_line(written: dict[str, Any]) -> None:
    deep: Any = []
    for _ in range(900):
        deep = [deep]
    assert "settings.cleaning.max_tokens is" in refusal(
        put(written, ("settings", "cleaning", "max_tokens"), deep)
    )
