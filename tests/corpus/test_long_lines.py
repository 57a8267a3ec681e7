"""Text is read in bounded memory, however long its lines are."""

import gzip
import lzma
import tracemalloc
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import zstandard

from dragoman.corpus.text import BYTES_PER_CHUNK, LONGEST_LINE_BYTES, TextFiles, read_chunks
from dragoman.errors import UserError

PACKERS: dict[str, Callable[[Path], Any]] = {
    "": lambda path: open(path, "wb"),
    ".gz": lambda path: gzip.open(path, "wb", compresslevel=1),
    ".xz": lambda path: lzma.open(path, "wb", preset=0),
    ".zst": lambda path: zstandard.open(path, "wb"),
}


@pytest.mark.parametrize("suffix", PACKERS)
def test_a_line_without_end_is_named_and_never_held(tmp_path: Path, suffix: str) -> None:
    path, other = tmp_path / f"train.en{suffix}", tmp_path / "train.de"
    with PACKERS[suffix](path) as file:
        file.write(b"one\ntwo\n")
        for _ in range(192):
            file.write(bytes(1 << 20))
    other.write_text("eins\nzwei\ndrei\n")
    tracemalloc.start()
    try:
        with pytest.raises(UserError, match=rf"train\.en{suffix}, line 3: longer than 1,048,576"):
            list(read_chunks(TextFiles(path, other), 100))
        # zstandard makes up to 128 MiB of the few bytes that it is given at once.
        assert tracemalloc.get_traced_memory()[1] < (160 if suffix == ".zst" else 16) << 20
    finally:
        tracemalloc.stop()


def test_many_long_lines_come_in_small_chunks_and_in_step(tmp_path: Path) -> None:
    path, other = tmp_path / "train.en", tmp_path / "train.de"
    lines = 3 * BYTES_PER_CHUNK // LONGEST_LINE_BYTES
    long = b"x" * (LONGEST_LINE_BYTES - 1) + b"\n"
    with open(path, "wb") as file:
        file.writelines([long] * lines)
    other.write_text("".join(f"{number}\n" for number in range(lines)))
    chunks = list(read_chunks(TextFiles(path, other), 10 * lines))
    assert len(chunks) > 2
    assert [line for chunk in chunks for line in chunk.target] == [
        b"%d\n" % number for number in range(lines)
    ]
    assert all(len(chunk.source) == len(chunk.target) for chunk in chunks)
    assert [chunk.first_line for chunk in chunks][:2] == [1, 1 + len(chunks[0].source)]


@pytest.mark.parametrize("counts", [(3, 4), (4, 3), (0, 1), (250, 250_000)])
def test_sides_of_other_lengths_are_counted(tmp_path: Path, counts: tuple[int, int]) -> None:
    paths = tmp_path / "train.en", tmp_path / "train.de"
    for path, count in zip(paths, counts, strict=True):
        path.write_text("a\n" * count)
    with pytest.raises(UserError, match=f"has {counts[1]:,} lines but .* has {counts[0]:,}: par"):
        list(read_chunks(TextFiles(*paths), 100))
