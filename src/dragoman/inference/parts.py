"""Large texts, translated part by part: finished parts are not translated again.

A part appears whole or not at all. Several processes may work on one folder, on one machine or on
several that share it: each takes parts that nobody else has.
"""

import fcntl
import json
import os
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from dragoman.config import TranslationSettings
from dragoman.console import say
from dragoman.corpus.text import read_lines
from dragoman.documents import HASH, LINE, encode, item, read_document
from dragoman.errors import UserError
from dragoman.files import describe_file, write_whole
from dragoman.inference.sampling import Sampling
from dragoman.records import SavedFile

JOB = "job.json"


@dataclass(frozen=True)
class PartsRequest:
    """A file to translate, and where to."""

    input: Path
    folder: Path
    lines: int  # Of each part.


@dataclass(frozen=True)
class PartsJob:
    """What a folder of translations is made from."""

    input: SavedFile = item("the text")
    lines: int = item("of each part", minimum=1)
    weights: tuple[str, ...] = item("checksums of the model's files", pattern=HASH)
    arithmetic: str = item("precision, or an export's quantization", pattern=LINE)
    translation: TranslationSettings = item("how it is decoded")
    n_best: int = item("translations of each line", minimum=1)
    scores: bool = item("whether they are there")
    sampling: Sampling | None = item("how translations are sampled, if they are")
    tag: str = item("before every sentence")
    blend: float | None = item("share of the run, the rest being of the one it started from")


def describe_input(path: Path) -> SavedFile:
    """Size and checksum of the text."""
    if not path.is_file():
        raise UserError(f"--input {path}: no such file")
    return describe_file(path)


def translate_parts(
    request: PartsRequest, job: PartsJob, render: Callable[[Sequence[bytes], int], str]
) -> None:
    """Make all parts that are missing, but for those that another process is at."""
    request.folder.mkdir(parents=True, exist_ok=True)
    _agree_on_job(request.folder, job)
    made = found = busy = 0
    for number, (first, lines) in enumerate(read_lines(request.input, request.lines)):
        part = request.folder / f"part-{number:05}.txt"
        if part.exists():
            found += 1
            continue
        with _claim(part) as is_ours:
            if not is_ours:
                busy += 1
            elif part.exists():
                found += 1
            else:
                begun = time.monotonic()
                write_whole(part, render(lines, first).encode())
                seconds = max(time.monotonic() - begun, 1e-9)
                made += 1
                say(f"{part}: {len(lines):,} lines, {len(lines) / seconds:,.0f} lines/s")
    print(
        f"{request.folder}: {made + found + busy:,} parts, {made:,} translated now, {found:,} "
        "already done" + (f", {busy:,} in progress in other processes" if busy else "")
    )


def _agree_on_job(folder: Path, job: PartsJob) -> None:
    """Write down what the parts are made from; refuse to mix them with others."""
    path = folder / JOB
    if not path.exists():
        if any(folder.glob("part-*")):
            raise UserError(f"{folder} contains parts but no {JOB}: choose another --output")
        write_whole(path, (json.dumps(encode(job), indent=2) + "\n").encode())
    earlier = encode(read_document(path, PartsJob, "choose another --output"))
    now = encode(job)
    differing = [name for name in now if now[name] != earlier.get(name)]
    if differing:
        raise UserError(
            f"{folder} does not match this command (different: {', '.join(differing)}): use the "
            "same options, or choose another --output"
        )


@contextmanager
def _claim(part: Path) -> Iterator[bool]:
    """Whether this process may make a part; the kernel lets go of it when the process dies."""
    path = part.with_name(f".{part.name}.lock")
    lock = os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW, 0o666)
    try:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            yield False
            return
        yield True
        # Only once the part is there: who has opened this very file by now sees that it is.
        path.unlink(missing_ok=True)
    finally:
        os.close(lock)
