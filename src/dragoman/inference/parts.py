"""Large texts, translated part by part: finished parts are not translated again.

A part appears whole or not at all. Several processes may work on one folder, on one machine or on
several that share it: each takes parts that nobody else has.
"""

import fcntl
import json
import os
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from dragoman.config import TranslationSettings
from dragoman.console import say
from dragoman.corpus.text import read_lines
from dragoman.documents import HASH, LINE, encode, item, read_document
from dragoman.errors import UserError
from dragoman.files import describe_file, write_whole
from dragoman.inference.sampling import Sampling
from dragoman.records import SavedFile
from dragoman.wording import plural

JOB = "job.json"
SECONDS_BETWEEN_LOOKS = 0.2  # At parts that others make.

_NAMES_OF_FILES = {"input": "from another text", "weights": "by other weights"}

# Some lines and the number of the first of them, translated.
Render = Callable[[Sequence[bytes], int], str]


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


@dataclass(frozen=True)
class PartsDone:
    """What came of a command."""

    parts: int = item("of the text")
    made: int = item("now")
    found: int = item("there before")
    busy: int = item("being made by other processes")

    def told(self, folder: Path) -> str:
        """As a line for people."""
        counts = f"{plural(self.parts, 'part')}, {self.made:,} translated now, "
        counts += f"{self.found:,} already done"
        others = f", {self.busy:,} in progress in other processes" if self.busy else ""
        return f"{folder}: {counts}{others}"


def describe_input(path: Path) -> SavedFile:
    """Size and checksum of the text."""
    refuse_no_file("--input", path)
    return describe_file(path)


def refuse_no_file(option: str, path: Path) -> None:
    """Refuse what cannot be read, by the option that names it."""
    if path.is_dir():
        raise UserError(f"{option} {path} is a folder, not a file")
    if path.exists() and not path.is_file():
        raise UserError(
            f"{option} {path} is a pipe or a device, but it is read more than once: write the text "
            "to a file first"
        )
    if not path.is_file():
        raise UserError(f"{option} {path}: no such file")


def make_output_folder(folder: Path) -> None:
    """Make the folder of the parts, before a model is loaded for them."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except (FileExistsError, NotADirectoryError):
        file = next(path for path in (folder, *folder.parents) if path.exists())
        raise UserError(f"--output: {file} is a file; name a folder") from None


def part_path(folder: Path, number: int) -> Path:
    """Where a part lies, counted from 0."""
    return folder / f"part-{number:05}.txt"


def count_parts(folder: Path) -> int:
    """How many parts are made."""
    return sum(1 for _ in folder.glob("part-*.txt"))


def translate_parts(
    request: PartsRequest, job: PartsJob, render: Render, *, waits: bool = False
) -> PartsDone:
    """Make all parts that are missing, but for those that another process is at.

    With `waits` not before those are there, too; what a process leaves that dies is made here.
    """
    _agree_on_job(request.folder, job)
    made = 0
    while True:
        parts, busy = 0, list[Path]()
        for parts, (first, lines) in enumerate(read_lines(request.input, request.lines), start=1):
            part = part_path(request.folder, parts - 1)
            if part.exists():
                continue
            with _claim(part) as is_ours:
                if not is_ours:
                    busy.append(part)
                elif not part.exists():
                    _refuse_other_job(request.folder, job)
                    _make(part, lines, first, render)
                    made += 1
        if not waits or _are_made(busy):
            left = [part for part in busy if not part.exists()]
            if not left:
                # Locks and halves of processes that were killed; nobody needs any of them now.
                for path in request.folder.glob(".part-?????.txt.*"):
                    path.unlink(missing_ok=True)
            return PartsDone(parts, made, parts - made - len(left), len(left))


def _make(part: Path, lines: Sequence[bytes], first: int, render: Render) -> None:
    begun = time.monotonic()
    write_whole(part, render(lines, first).encode())
    seconds = max(time.monotonic() - begun, 1e-9)
    say(f"{part}: {plural(len(lines), 'line')}, {len(lines) / seconds:,.0f} lines/s")


def _are_made(parts: Sequence[Path]) -> bool:
    """Wait for others to make parts; give up on them where one is left by who was at it."""
    for part in parts:
        while not part.exists():
            with _claim(part) as is_ours:
                if is_ours and not part.exists():
                    return False
            time.sleep(SECONDS_BETWEEN_LOOKS)
    return True


def _agree_on_job(folder: Path, job: PartsJob) -> None:
    """Write down what the parts are made from; refuse to mix them with others."""
    path = folder / JOB
    others = sorted(one.name for one in folder.glob("[!.]*"))
    # Looked for last: another worker may write it down, and then parts, meanwhile.
    if others and not path.exists():
        if any(folder.glob("part-*")):
            raise UserError(f"{folder} contains parts but no {JOB}: choose another --output")
        raise UserError(
            f"--output {folder} contains other things, such as {others[0]}: name a new folder"
        )
    # What failed before its first part may be tried again with another text.
    if not any(folder.glob("part-*")) and not any(folder.glob(".part-*")):
        write_whole(path, (json.dumps(encode(job), indent=2) + "\n").encode())
    _refuse_other_job(folder, job)


def _refuse_other_job(folder: Path, job: PartsJob) -> None:
    earlier = read_document(folder / JOB, PartsJob, "choose another --output")
    differing = ", ".join(_differences(asdict(earlier), asdict(job)))
    if differing:
        raise UserError(
            f"{folder} was made differently ({differing}): use the same text, model and options, "
            "or choose another --output"
        )


def _differences(there: Mapping[str, Any], here: Mapping[str, Any]) -> Iterator[str]:
    """What two jobs differ in, in words for people."""
    for name, now in here.items():
        then = there.get(name)
        if now == then:
            continue
        if name in _NAMES_OF_FILES:
            yield _NAMES_OF_FILES[name]
        elif isinstance(now, dict) and isinstance(then, dict):
            yield from _differences(then, now)
        elif isinstance(now, dict) or isinstance(then, dict):
            yield f"{'with' if now else 'without'} {name} here"
        else:
            shown = (json.dumps(one) for one in (then, now))
            yield f"{name}: {' there, '.join(shown)} here"


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
        if part.exists():
            path.unlink(missing_ok=True)
    finally:
        os.close(lock)
