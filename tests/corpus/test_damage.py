"""A prepared corpus that is not as it was prepared."""

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from dragoman.config_file import load_config
from dragoman.corpus.prepare import prepare
from dragoman.corpus.store import PreparedCorpus
from dragoman.errors import UserError
from support import SMALL


def opened(folder: Path) -> PreparedCorpus:
    return PreparedCorpus(folder / "prepared")


def repaired(folder: Path) -> PreparedCorpus:
    prepare(load_config(folder / "config.toml", SMALL), processes=1)
    return opened(folder)


def test_a_file_cut_short_is_refused_then_repaired(prepared: Path) -> None:
    corpus = opened(prepared)
    with open(corpus.folder / corpus.manifest.data / "train.target.tokens", "r+b") as file:
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
    path = corpus.folder / corpus.manifest.data / name
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(content)
    with pytest.raises(UserError, match=f"the checksum of {name} does not match; run `dragoman pr"):
        read(opened(prepared))
    assert repaired(prepared).identity == corpus.identity
    read(opened(prepared))


def test_a_manifest_that_lacks_something_is_made_again(prepared: Path) -> None:
    identity = opened(prepared).identity
    path = prepared / "prepared" / "manifest.json"
    manifest = json.loads(path.read_text())
    del manifest["fingerprint"]
    path.write_text(json.dumps(manifest))
    assert repaired(prepared).identity == identity
