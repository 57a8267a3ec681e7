import gzip
import lzma
import tracemalloc
from collections.abc import Callable
from pathlib import Path
from random import Random

import pytest
import zstandard

from dragoman.config import ParallelText
from dragoman.corpus.text import (
    PACKED_BYTES_AT_ONCE,
    TextFiles,
    decode,
    normalize,
    read_chunks,
    read_lines,
    resolve_files,
)
from dragoman.errors import UserError


def read_all(files: TextFiles, lines: int = 2) -> list[tuple[str | None, str | None]]:
    pairs: list[tuple[str | None, str | None]] = []
    for chunk in read_chunks(files, lines):
        assert chunk.first_line == len(pairs) + 1
        sides = [
            decode(side, files.source, chunk.first_line, skip=False)
            for side in (chunk.source, chunk.target)
        ]
        pairs += zip(*sides, strict=True)
    return pairs


def pack(path: Path, content: bytes) -> None:
    packers: dict[str, Callable[[bytes], bytes]] = {
        ".gz": gzip.compress,
        ".xz": lzma.compress,
        ".zst": zstandard.ZstdCompressor().compress,
    }
    path.write_bytes(packers.get(path.suffix, bytes)(content))


@pytest.mark.parametrize("suffix", ["", ".gz", ".xz", ".zst"])
@pytest.mark.parametrize(
    ("source", "target"),
    [
        (b"one\ntwo\nthree\n", b"eins\nzwei\ndrei\n"),
        (b"one\r\ntwo\r\nthree\r\n", b"\xef\xbb\xbfeins\r\nzwei\ndrei"),
    ],
)
def test_packed_and_odd_line_ends_read_alike(
    tmp_path: Path, suffix: str, source: bytes, target: bytes
) -> None:
    files = TextFiles(tmp_path / f"a.en{suffix}", tmp_path / f"a.de{suffix}")
    for path, content in zip(files.paths, (source, target), strict=True):
        pack(path, content)
    assert read_all(files) == [("one", "eins"), ("two", "zwei"), ("three", "drei")]


def test_only_line_feeds_end_a_line(tmp_path: Path) -> None:
    files = TextFiles(tmp_path / "a.en", tmp_path / "a.de")
    odd = "a\x0bb\x0cc\x85d\u2028e\rf"
    files.source.write_bytes(f"{odd}\n".encode())
    assert files.target
    files.target.write_bytes(b"x\n")
    assert read_all(files) == [(odd, "x")]


def test_tsv_takes_the_first_two_columns(tmp_path: Path) -> None:
    path = tmp_path / "a.tsv"
    path.write_text("one\teins\nGo.\tGeh.\tCC-BY 2.0\r\n")
    assert read_all(TextFiles(path, None)) == [("one", "eins"), ("Go.", "Geh.")]


def test_tsv_without_tab_is_named(tmp_path: Path) -> None:
    path = tmp_path / "a.tsv"
    path.write_text("one\teins\ntwo zwei\n")
    with pytest.raises(UserError, match=r"a\.tsv, line 2: no tab"):
        read_all(TextFiles(path, None))


@pytest.mark.parametrize("lines", [1, 2, 100])
def test_unequal_line_counts_are_both_given(tmp_path: Path, lines: int) -> None:
    files = TextFiles(tmp_path / "train.en", tmp_path / "train.de")
    files.source.write_text("a\n" * 3)
    assert files.target
    files.target.write_text("b\n" * 7)
    with pytest.raises(UserError, match=r"train\.de has 7 lines but .*train\.en has 3: parallel"):
        read_all(files, lines)


@pytest.mark.parametrize("suffix", [".gz", ".xz", ".zst"])
def test_cut_archive_is_named(tmp_path: Path, suffix: str) -> None:
    files = TextFiles(tmp_path / f"a.en{suffix}", tmp_path / f"a.de{suffix}")
    for path in files.paths:
        pack(path, b"".join(b"line %d\n" % (number * 7919) for number in range(50_000)))
        path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])
    with pytest.raises(UserError, match=r"a\.en\.\w+: cannot be decompressed|lines but"):
        read_all(files, 1000)


def test_archives_that_are_not_read_are_named(tmp_path: Path) -> None:
    path = tmp_path / "a.tsv.bz2"
    path.write_bytes(b"BZh9")
    with pytest.raises(
        UserError, match=r"a\.tsv\.bz2: \.bz2 is not supported: decompress it, or use"
    ):
        read_all(TextFiles(path, None))


def test_damaged_gzip_is_named(tmp_path: Path) -> None:
    path = tmp_path / "a.tsv.gz"
    pack(path, b"one\teins\n")
    damaged = bytearray(path.read_bytes())
    damaged[10] = 0xFF  # The first byte after the header: no such kind of block.
    path.write_bytes(damaged)
    with pytest.raises(
        UserError, match=r"a\.tsv\.gz: cannot be decompressed \(.*invalid block type"
    ):
        read_all(TextFiles(path, None))


def test_a_frame_may_end_where_a_block_that_is_read_ends(tmp_path: Path) -> None:
    packed = zstandard.ZstdCompressor().compress
    block = PACKED_BYTES_AT_ONCE
    noise = Random(1).randbytes(block).replace(b"\n", b" ")
    frame = packed(noise[: block - (len(packed(noise)) - block)])
    files = TextFiles(tmp_path / "a.en.zst", tmp_path / "a.de.zst")
    for path in files.paths:
        path.write_bytes(frame + packed(b"\none\n"))
    assert len(frame) == block
    (chunk,) = read_chunks(files, 10)
    assert chunk.source[1:] == chunk.target[1:] == [b"one\n"]


def test_text_that_packs_well_does_not_fill_the_memory(tmp_path: Path) -> None:
    path = tmp_path / "a.tsv.zst"
    pack(path, b"one\teins\n" * 20_000_000)
    tracemalloc.start()
    try:
        assert len(next(read_chunks(TextFiles(path, None), 1_000)).source) == 1_000
        _, peak_bytes = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak_bytes < 100e6


def test_invalid_utf8_names_file_line_and_column() -> None:
    lines = [b"fine\n", b"caf\xe9\n"]
    with pytest.raises(UserError, match=r"a\.en, line 12: byte 0xe9 at column 4 is not UTF-8"):
        decode(lines, Path("a.en"), 11, skip=False)
    assert decode(lines, Path("a.en"), 11, skip=True) == ["fine", None]


@pytest.mark.parametrize("encoding", ["utf-16-le", "utf-16-be"])
@pytest.mark.parametrize("name", ["train.en", "train.en.gz", "train.tsv"])
def test_utf16_is_named_and_what_converts_it(tmp_path: Path, name: str, encoding: str) -> None:
    path, other = tmp_path / name, tmp_path / "train.de"
    pack(path, "\ufeffČau\nĊ\n".encode(encoding))  # With a byte that ends a line too many.
    other.write_text("Hallo\nC\n")
    line = r"train.* is UTF-16: convert it with `iconv -f utf-16 -t utf-8`$"
    with pytest.raises(UserError, match=line):
        read_all(TextFiles(path, None if path.suffix == ".tsv" else other))
    with pytest.raises(UserError, match=line):
        list(read_lines(path, 1))


@pytest.mark.parametrize("order", ["le", "be"])
def test_utf16_without_a_mark_is_named(tmp_path: Path, order: str) -> None:
    path = tmp_path / "train.en"
    pack(path, "Good morning to you.\nTwo\n".encode(f"utf-16-{order}"))
    with pytest.raises(UserError, match=f"seems to be UTF-16 .*`iconv -f utf-16{order} -t utf-8`$"):
        list(read_lines(path, 1))


@pytest.mark.parametrize("line", [b"\0\n", b"\0\0\0\0\0\0\0\0\n", b"a\0b\0 and so on\n"])
def test_stray_zeros_are_not_taken_for_utf16(tmp_path: Path, line: bytes) -> None:
    pack(tmp_path / "train.en", line)
    assert list(read_lines(tmp_path / "train.en", 1)) == [(1, [line])]


def test_globs_pair_up_in_order(tmp_path: Path) -> None:
    for name in ("b", "a"):
        for side in ("en", "de"):
            (tmp_path / f"{name}.{side}").touch()
    text = ParallelText(source=str(tmp_path / "*.en"), target=str(tmp_path / "*.de"))
    pairs = [(f.source.name, f.target and f.target.name) for f in resolve_files(text, "train")]
    assert pairs == [("a.en", "a.de"), ("b.en", "b.de")]
    (tmp_path / "c.en").touch()
    with pytest.raises(UserError, match=r"matches 3 files but .* matches 2"):
        resolve_files(text, "train")


def test_normalize_composes_and_plains_quotes() -> None:
    assert normalize("Cafe\u0301 \u201cx\u201d", punctuation=False) == "Café \u201cx\u201d"
    assert normalize("Cafe\u0301 \u201cit\u2019s\u201d", punctuation=True) == 'Café "it\'s"'
