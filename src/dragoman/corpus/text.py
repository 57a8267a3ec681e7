"""Read parallel text: plain, .gz, .xz or .zst, two files or one TSV; decode and normalise."""

import glob
import gzip
import io
import lzma
import unicodedata
import zlib
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

import zstandard

from dragoman.config import ParallelText
from dragoman.errors import UserError

BYTE_ORDER_MARK = b"\xef\xbb\xbf"
UTF_16_MARKS = (b"\xff\xfe", b"\xfe\xff")
LONGEST_LINE_BYTES = 1 << 20
BYTES_PER_CHUNK = 1 << 24  # Of each side.
PACKED_BYTES_AT_ONCE = 1 << 12  # Of zstandard, which can make ten thousand bytes of one.
UNPACKING_ERRORS = (
    *(EOFError, gzip.BadGzipFile, zlib.error),
    *(lzma.LZMAError, zstandard.ZstdError),
)

# Only what has a plain counterpart of the same meaning; language-specific marks stay.
PLAIN_PUNCTUATION = str.maketrans(
    {
        "\N{LEFT SINGLE QUOTATION MARK}": "'",
        "\N{RIGHT SINGLE QUOTATION MARK}": "'",
        "\N{SINGLE LOW-9 QUOTATION MARK}": "'",
        "\N{SINGLE HIGH-REVERSED-9 QUOTATION MARK}": "'",
        "\N{ACUTE ACCENT}": "'",
        "`": "'",
        "\N{LEFT DOUBLE QUOTATION MARK}": '"',
        "\N{RIGHT DOUBLE QUOTATION MARK}": '"',
        "\N{DOUBLE LOW-9 QUOTATION MARK}": '"',
        "\N{DOUBLE HIGH-REVERSED-9 QUOTATION MARK}": '"',
        "\N{LEFT-POINTING DOUBLE ANGLE QUOTATION MARK}": '"',
        "\N{RIGHT-POINTING DOUBLE ANGLE QUOTATION MARK}": '"',
        "\N{EN DASH}": "-",
        "\N{EM DASH}": "-",
        "\N{NON-BREAKING HYPHEN}": "-",
        "\N{HORIZONTAL ELLIPSIS}": "...",
        "\N{NO-BREAK SPACE}": " ",
        "\N{NARROW NO-BREAK SPACE}": " ",
        "\N{THIN SPACE}": " ",
    }
)


def normalize(text: str, punctuation: bool) -> str:
    """Bring text into the one form that training and translation share."""
    if punctuation:
        text = text.translate(PLAIN_PUNCTUATION)
    return unicodedata.normalize("NFC", text)


@dataclass(frozen=True)
class TextFiles:
    """One resolved parallel text: one source and one target file, or one TSV."""

    source: Path
    target: Path | None  # None: `source` is a TSV with both sides.
    part: int = 0  # Which training text of the config it belongs to.
    tag: str = ""

    @property
    def paths(self) -> tuple[Path, ...]:
        """The files to read."""
        return (self.source,) if self.target is None else (self.source, self.target)

    @property
    def languages_are_known(self) -> bool:
        """Whether it is surely in the config's languages; a tag may stand for other ones."""
        return not self.tag


@dataclass(frozen=True)
class RawChunk:
    """Consecutive lines of one text, as bytes with their line ends."""

    files: TextFiles
    first_line: int
    source: list[bytes]
    target: list[bytes]
    packed_bytes: int  # Read from disk for this chunk, for the progress bar.


def resolve_files(text: ParallelText, name: str) -> list[TextFiles]:
    """Expand globs and pair the files up, sorted by name."""
    if text.tsv:
        return [TextFiles(path, None) for path in _expand(text.tsv, f"{name}.tsv")]
    sources = _expand(text.source, f"{name}.source")
    targets = _expand(text.target, f"{name}.target")
    if len(sources) != len(targets):
        raise UserError(
            f"{name}: {text.source} matches {len(sources)} files but {text.target} matches "
            f"{len(targets)}: every source file needs a target file"
        )
    return [TextFiles(*pair) for pair in zip(sources, targets, strict=True)]


def _expand(pattern: str, name: str) -> list[Path]:
    if not glob.has_magic(pattern):
        path = Path(pattern)
        if not path.exists():
            raise UserError(f"{name}: no such file: {pattern}")
        if path.is_dir():
            raise UserError(f"{name}: {pattern} is a folder; name a file or a pattern such as *.gz")
        if not path.is_file():
            raise UserError(f"{name}: {pattern} is a pipe or a device; write the text to a file")
        return [path]
    matches = glob.glob(pattern, recursive=True)  # noqa: PTH207 (the pattern may be absolute)
    paths = [Path(match) for match in sorted(matches) if Path(match).is_file()]
    if not paths:
        raise UserError(f"{name}: no file matches {pattern}")
    return paths


def read_chunks(files: TextFiles, lines: int) -> Iterator[RawChunk]:
    """Read a parallel text in chunks of up to `lines`; both sides must have the same count."""
    first_line, packed_before = 1, 0
    with ExitStack() as stack:
        packed = [stack.enter_context(open(path, "rb")) for path in files.paths]
        streams = [_Lines(stream, path) for stream, path in zip(packed, files.paths, strict=True)]
        rows: list[list[bytes]] = [[] for _ in streams]  # Read, but not yet given away.
        while True:
            for stream, read in zip(streams, rows, strict=True):
                read += stream.take(lines - len(read))
            count = min(map(len, rows))
            if not count and any(rows):
                _raise_unequal(files, streams, lines)
            if not count:
                return
            sides = [read[:count] for read in rows]
            rows = [read[count:] for read in rows]
            if files.target is None:
                sides = _split_tabs(sides[0], files.source, first_line)
            packed_so_far = sum(stream.tell() for stream in packed)
            source, target = sides
            yield RawChunk(files, first_line, source, target, packed_so_far - packed_before)
            first_line, packed_before = first_line + count, packed_so_far


def read_lines(path: Path, lines: int) -> Iterator[tuple[int, list[bytes]]]:
    """Read a text in chunks of up to `lines`, each with the number of its first line."""
    first_line = 1
    with open(path, "rb") as packed:
        stream = _Lines(packed, path)
        while taken := stream.take(lines):
            yield first_line, taken
            first_line += len(taken)


class _Lines:
    """The lines of a file, unpacked; none may take more memory than a line of text needs."""

    def __init__(self, packed: BinaryIO, path: Path) -> None:
        self._readline = _unpack(packed, path).readline
        self._path = path
        self.count = 0

    def take(self, lines: int) -> list[bytes]:
        """The next lines, at least one unless all are read, and no more bytes than a chunk's."""
        taken: list[bytes] = []
        size = 0
        try:
            while len(taken) < lines and size < BYTES_PER_CHUNK:
                line = self._readline(LONGEST_LINE_BYTES + 1)
                if not line:
                    break
                size += len(line)
                taken.append(line)
                if len(line) > LONGEST_LINE_BYTES:
                    raise UserError(
                        f"{self._path}, line {self.count + len(taken):,}: longer than "
                        f"{LONGEST_LINE_BYTES:,} bytes; is this text with one sentence per line?"
                    )
        except UNPACKING_ERRORS as error:
            raise UserError(
                f"{self._path}: cannot be decompressed ({error}); is the file complete?"
            ) from None
        if not self.count:
            taken = without_byte_order_mark(taken, str(self._path))
        self.count += len(taken)
        return taken


def _unpack(stream: BinaryIO, path: Path) -> BinaryIO | io.BufferedIOBase:
    match path.suffix.lower():
        case ".gz":
            return gzip.open(stream)
        case ".xz":
            return lzma.open(stream)
        case ".zst":
            return io.BufferedReader(ZstandardFrames(stream))
        case ".bz2" | ".zip" | ".7z" | ".tar" | ".tgz" as other:
            raise UserError(
                f"{path}: {other} is not supported: decompress it, or use .gz, .xz or .zst"
            )
        case _:
            return stream


class ZstandardFrames(io.RawIOBase):
    """The text of one or more frames; zstandard's own reader takes a cut file for a whole one."""

    def __init__(self, packed: BinaryIO) -> None:
        self._packed = packed
        self._frame = zstandard.ZstdDecompressor().decompressobj()
        self._block = b""
        self._text = memoryview(b"")

    def readable(self) -> bool:
        """Always."""
        return True

    def readinto(self, buffer: Any) -> int:
        """Give the next bytes; 0 at the end."""
        while not self._text:
            block = self._block or self._packed.read(PACKED_BYTES_AT_ONCE)
            if not block and not self._frame.eof:
                raise zstandard.ZstdError("the last frame is incomplete")
            if not block:
                return 0
            if self._frame.eof:
                self._frame = zstandard.ZstdDecompressor().decompressobj()
            self._text = memoryview(self._frame.decompress(block))
            self._block = self._frame.unused_data
        count = min(len(buffer), len(self._text))
        buffer[:count] = self._text[:count]
        self._text = self._text[count:]
        return count


def without_byte_order_mark(lines: list[bytes], name: str) -> list[bytes]:
    """The first lines of a text, without the mark that some programs put before them."""
    if not lines:
        return lines
    first = lines[0]
    if first.startswith(UTF_16_MARKS):
        raise UserError(f"{name} is UTF-16: convert it with `iconv -f utf-16 -t utf-8`")
    # Without a mark: of most text one half of the bytes is zeros then, and the other has none.
    zeros = {"le": first[1::2].count(0), "be": first[::2].count(0)}
    for order, count in zeros.items():
        if count == sum(zeros.values()) > max(2, len(first) / 4):
            way = f"`iconv -f utf-16{order} -t utf-8`"
            raise UserError(f"{name} seems to be UTF-16 without a mark: convert it with {way}")
    return [lines[0].removeprefix(BYTE_ORDER_MARK), *lines[1:]]


def _split_tabs(rows: list[bytes], path: Path, first_line: int) -> list[list[bytes]]:
    source, target = [], []
    for line, row in enumerate(rows, start=first_line):
        columns = row.rstrip(b"\r\n").split(b"\t")
        if len(columns) < 2:
            raise UserError(f"{path}, line {line}: no tab; a TSV line is source, tab, target")
        source.append(columns[0])
        target.append(columns[1])
    return [source, target]


def _raise_unequal(files: TextFiles, streams: list[_Lines], lines: int) -> None:
    for stream in streams:
        while stream.take(lines):
            pass
    source, target = files.paths
    raise UserError(
        f"{target} has {streams[1].count:,} lines but {source} has {streams[0].count:,}: "
        "parallel files must match line by line"
    )


def decode(
    lines: list[bytes],
    path: Path,
    first_line: int,
    *,
    skip: bool,
    advice: str = "convert the file",
) -> list[str | None]:
    """Decode lines without their ends; an invalid one is an error, or None if `skip`."""
    decoded: list[str | None] = []
    for number, line in enumerate(lines, start=first_line):
        try:
            decoded.append(line.decode("utf-8").removesuffix("\n").removesuffix("\r"))
        except UnicodeDecodeError as error:
            if not skip:
                byte = line[error.start]
                raise UserError(
                    f"{path}, line {number}: byte 0x{byte:02x} at column {error.start + 1} is not "
                    f"UTF-8; {advice}"
                ) from None
            decoded.append(None)
    return decoded


def read_pairs(files: TextFiles, lines: int) -> Iterator[tuple[list[str], list[str]]]:
    """Read a parallel text as it is, decoded, in chunks of `lines` of both sides."""
    for chunk in read_chunks(files, lines):
        source, target = (
            [line or "" for line in decode(side, path, chunk.first_line, skip=False)]
            for side, path in (
                (chunk.source, chunk.files.paths[0]),
                (chunk.target, chunk.files.paths[-1]),
            )
        )
        yield source, target
