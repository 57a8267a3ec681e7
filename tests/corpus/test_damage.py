"""A prepared corpus that is not as it was prepared."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from dragoman.config_file import load_config
from dragoman.corpus.prepare import prepare
from dragoman.corpus.store import MANIFEST_SHAPE, PreparedCorpus
from dragoman.errors import UserError
from support import SMALL


def opened(folder: Path) -> PreparedCorpus:
    return PreparedCorpus(folder / "prepared")


def repaired(folder: Path) -> PreparedCorpus:
    prepare(load_config(folder / "config.toml", SMALL), processes=1)
    return opened(folder)


def test_a_file_cut_short_is_refused_then_repaired(prepared: Path) -> None:
    corpus = opened(prepared)
    with open(corpus.folder / corpus.manifest["data"] / "train.target.tokens", "r+b") as file:
        file.truncate(100)
    with pytest.raises(UserError, match=r"train\.target\.tokens has 100 bytes, not .*; run `dr"):
        opened(prepared)
    assert repaired(prepared).identity == corpus.identity


@pytest.mark.parametrize(
    ("name", "read"),
    [
        ("train.source.tokens", PreparedCorpus.check_contents),
        ("train.target.offsets", PreparedCorpus.check_contents),
        ("subwords.model", PreparedCorpus.subwords),
        ("test.test.target.txt", lambda corpus: corpus.evaluation_sets("test")),
    ],
)
def test_a_flipped_bit_is_refused_then_repaired(
    prepared: Path, name: str, read: Callable[[PreparedCorpus], object]
) -> None:
    corpus = opened(prepared)
    path = corpus.folder / corpus.manifest["data"] / name
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(content)
    with pytest.raises(UserError, match=f"the checksum of {name} does not match; run `dragoman pr"):
        read(opened(prepared))
    assert repaired(prepared).identity == corpus.identity
    read(opened(prepared))


@pytest.mark.parametrize("text", ["", "{", "[]", "[" * 100_000, "\0"])
def test_a_manifest_that_is_no_json_object_is_refused(prepared: Path, text: str) -> None:
    (prepared / "prepared" / "manifest.json").write_text(text)
    with pytest.raises(UserError, match=r"manifest\.json is damaged: not JSON; run `dragoman pr"):
        opened(prepared)


def without(manifest: dict[str, Any], name: str) -> dict[str, Any]:
    first, _, rest = name.partition(".")
    return {
        key: without(value, rest) if key == first else value
        for key, value in manifest.items()
        if rest or key != first
    }


@pytest.mark.parametrize("name", [*MANIFEST_SHAPE, "settings.corpus.seed", "vocabulary.dtype"])
def test_a_manifest_that_lacks_something_is_refused(prepared: Path, name: str) -> None:
    path = prepared / "prepared" / "manifest.json"
    path.write_text(json.dumps(without(json.loads(path.read_text()), name)))
    with pytest.raises(UserError, match=rf"manifest\.json is damaged: no {name}; run `dragoman pr"):
        opened(prepared)


def test_a_manifest_that_lacks_something_is_made_again(prepared: Path) -> None:
    identity = opened(prepared).identity
    path = prepared / "prepared" / "manifest.json"
    path.write_text(json.dumps(without(json.loads(path.read_text()), "fingerprint")))
    assert repaired(prepared).identity == identity


def test_files_without_their_checksums_are_refused(prepared: Path) -> None:
    path = prepared / "prepared" / "manifest.json"
    manifest = json.loads(path.read_text())
    del manifest["files"]["train.source.tokens"]["sha256"]
    path.write_text(json.dumps(manifest))
    with pytest.raises(UserError, match="is damaged: identity is not that of files; run `dragoman"):
        opened(prepared)
