"""What the documentation says is what the program does.

Every command of the README and the quickstart is run as it is written, in a folder with stand-ins
for a user's own files. The commands of all other pages must at least be spelled right, links must
lead somewhere, and messages that the troubleshooting page quotes must be ones the source can say.
"""

import ast
import gzip
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from dragoman.cli import main
from dragoman.config_file import dump_config, flatten, load_config
from dragoman.corpus.demo import write_demo
from forked import Template
from support import write_lines

PROJECT = Path(__file__).resolve().parents[2]
README = PROJECT / "README.md"
QUICKSTART = PROJECT / "docs/quickstart.md"
PAGES = [README, *sorted((PROJECT / "docs").glob("*.md"))]

# Commands of README and quickstart that are not run here, and why.
NOT_RUN = {
    r"make (install|demo|test|quick)\b": "continuous integration runs them on a fresh clone",
    r"source .*/activate$": "the tests run in that environment",
    r"dragoman serve ": "serves until it is told to end, as tests/served does",
    r"dragoman augment ": "filters take all that a model of a few steps says; see test_augment.py",
    r"dragoman watch\b": "serves a page until it is stopped; test_train_watch.py looks at it",
    r".*--hosts ": "needs machines that answer over ssh, which tests/distributed has",
}
EXIT_CODES = {"check": (0, 3)}  # It may find the disk too small.

# An indented block is one of commands if it begins with one of these.
PROGRAMS = ("dragoman ", "make ", "source ", "echo ", "pip ", "torchrun ")

# Sizes and speed; all else of a documented config stays as it is.
TINY = [
    "vocabulary.size=500",
    "model.preset=tiny",
    "model.encoder_layers=1",
    "model.decoder_layers=1",
    "model.d_model=32",
    "batches.tokens_per_step=1024",
    "schedule.warmup_steps=10",
    "training.steps=16",
    "training.precision=float32",
    "evaluation.every_steps=8",
    "evaluation.train_sample_pairs=20",
    "checkpoints.every_steps=8",
]


@dataclass(frozen=True)
class Command:
    """A command line of a page."""

    page: Path
    line: int
    text: str

    def __str__(self) -> str:
        return f"{self.page.relative_to(PROJECT)}, line {self.line}: {self.text}"

    @property
    def verb(self) -> str:
        """What dragoman is asked to do; empty for other programs."""
        match = re.search(r"\bdragoman ([a-z]+)", self.text)
        return match[1] if match else ""

    @property
    def words(self) -> list[str]:
        """What dragoman is given behind its verb."""
        own = re.split(r"\bdragoman [a-z]+", self.text, maxsplit=1)[-1]
        return re.split(r"[|<>]", own)[0].split()


def blocks(page: Path) -> Iterator[tuple[str, int, list[str]]]:
    """Code blocks of a page: language ("" if indented), number of the first line, lines."""
    lines = page.read_text().split("\n")
    index = 0
    while index < len(lines):
        end = index
        if lines[index].startswith("```"):
            end = lines.index("```", index + 1)
            yield lines[index][3:] or "text", index + 2, lines[index + 1 : end]
        elif lines[index].startswith("    ") and not lines[index - 1].strip():
            while end + 1 < len(lines) and lines[end + 1].startswith("    "):
                end += 1
            yield "", index + 1, [line[4:] for line in lines[index : end + 1]]
        index = end + 1


def has_commands(language: str, lines: list[str]) -> bool:
    """Whether a code block is one of commands."""
    return language == "bash" or (not language and lines[0].startswith(PROGRAMS))


def commands(page: Path) -> list[Command]:
    """All commands of a page; lines that go on are joined, comments left out."""
    found = []
    for language, first, lines in blocks(page):
        if not has_commands(language, lines):
            continue
        number = first
        for line in re.sub(r"(\\|\|)\n", r"\1\0", "\n".join(lines)).split("\n"):
            plain = re.sub(r"(^|\s+)#.*$", "", line.replace("\\\0", " ").replace("\0", " "))
            if plain.strip():
                found.append(Command(page, number, re.sub(r" +", " ", plain).strip()))
            number += 1 + line.count("\0")
    return found


def shown_config(page: Path) -> str:
    """The one config that a page shows."""
    (toml,) = [lines for language, _, lines in blocks(page) if language == "toml"]
    return "\n".join(toml)


def help_of(capsys: pytest.CaptureFixture[str], *words: str) -> str:
    with pytest.raises(SystemExit) as caught:
        main([*words, "--help"])
    assert caught.value.code == 0
    return capsys.readouterr().out


def verbs_of(capsys: pytest.CaptureFixture[str]) -> set[str]:
    """Every verb that the program has."""
    return set(re.findall(r"^    ([a-z]+)\b", help_of(capsys), re.MULTILINE))


def make_place(folder: Path, config: str) -> None:
    """A user's folder: text under the names that the config gives, and the config, shrunk."""
    folder.mkdir()
    write_demo(folder / "demo/text")
    for language in ("en", "de"):
        lines = {
            part: (folder / f"demo/text/{part}.{language}").read_text().splitlines()
            for part in ("train", "validation", "test")
        }
        packed = "".join(line + "\n" for line in lines["train"][:1_500]).encode()
        (folder / f"train.{language}.gz").write_bytes(gzip.compress(packed))
        write_lines(folder / f"dev.{language}", lines["validation"][:30])
        write_lines(folder / f"test.{language}", lines["test"][:30])
    write_lines(folder / "in.en", lines["test"][30:40])
    (folder / "shown.toml").write_text(config)
    shrunk = load_config(folder / "shown.toml", TINY)
    (folder / "mine.toml").write_text(dump_config(shrunk, with_defaults=False))


def make_program(folder: Path, template: Template) -> None:
    """A program `dragoman` that takes less time to start than the installed one."""
    template.start()
    guest = PROJECT / "tests/guest.py"
    program = folder / "dragoman"
    program.write_text(
        f'#!/bin/sh\nexec {sys.executable} -S {guest} {template.place} -m dragoman "$@"\n'
    )
    program.chmod(0o755)


def run_all(page_commands: list[Command], folder: Path, program: Path) -> None:
    """Run commands as they are written: what makes runs first, what looks at runs afterwards."""
    installed = Path(sys.executable).parent
    once: dict[str, Command] = {}
    for command in page_commands:
        once.setdefault(command.text, command)
    ranks = {"prepare": 0, "train": 1}
    for command in sorted(once.values(), key=lambda one: ranks.get(one.verb, 2)):
        if command.verb not in ranks and not (folder / "demo/run").exists():
            # Stand-ins for the demo's run and for a run to compare with.
            shutil.copytree(folder / "runs/mine", folder / "demo/run")
            shutil.copytree(folder / "runs/mine", folder / "runs/other")
        # One command is given to the installed program itself.
        places = [installed] if command.verb == "settings" else [program, installed]
        result = subprocess.run(
            ["bash", "-o", "pipefail", "-c", command.text],
            cwd=folder,
            env=os.environ | {"PATH": os.pathsep.join([*map(str, places), os.environ["PATH"]])},
            capture_output=True,
            text=True,
        )
        said = result.stdout + result.stderr
        assert result.returncode in EXIT_CODES.get(command.verb, (0,)), f"{command}\n{said}"
        assert "Traceback" not in said, f"{command}\n{said}"


def to_run(page: Path, verbs: set[str]) -> list[Command]:
    """The commands of a page that can be run here."""
    return [
        command
        for command in commands(page)
        if not any(re.match(pattern, command.text) for pattern in NOT_RUN)
    ]


@pytest.mark.slow
def test_commands_of_readme_and_quickstart_run(
    tmp_path: Path, template: Template, capsys: pytest.CaptureFixture[str]
) -> None:
    verbs = verbs_of(capsys)
    make_program(tmp_path, template)
    places: dict[str, list[Command]] = {}
    for page in (README, QUICKSTART):
        # Pages that show the same config share one folder and its training.
        places.setdefault(shown_config(page), []).extend(to_run(page, verbs))
    for number, (config, found) in enumerate(places.items()):
        folder = tmp_path / str(number)
        make_place(folder, config)
        run_all(found, folder, tmp_path)
        assert len((folder / "out.de").read_text().splitlines()) == 10, "a line for a line"


def test_every_reason_not_to_run_is_needed() -> None:
    found = [command.text for page in (README, QUICKSTART) for command in commands(page)]
    for pattern in NOT_RUN:
        assert any(re.match(pattern, text) for text in found), pattern


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_commands_are_spelled_right(
    page: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    verbs = verbs_of(capsys)
    (tmp_path / "shown.toml").write_text(shown_config(README))
    settings = flatten(load_config(tmp_path / "shown.toml"))
    for command in commands(page):
        if not command.verb:
            continue
        assert command.verb in verbs, command
        known = help_of(capsys, command.verb)
        for word in command.words:
            option = re.match(r"--[a-z-]+", word)
            assert not option or option[0] in known, f"{command}: {word}"
            setting = re.match(r"([a-z_]+\.[a-z0-9_]+)=", word)
            assert not setting or setting[1] in settings, f"{command}: {word}"


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_links_lead_somewhere(page: Path) -> None:
    for target in re.findall(r"\]\(([^)#]+)[^)]*\)", page.read_text()):
        assert "://" in target or (page.parent / target).exists(), target


def sayings() -> set[str]:
    """Every string of the source, with a mark where a value is put in."""
    found = set()
    for path in (PROJECT / "src").rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.JoinedStr):
                parts = [
                    part.value if isinstance(part, ast.Constant) else "\0" for part in node.values
                ]
                found.add("".join(map(str, parts)))
            elif isinstance(node, ast.Constant) and isinstance(node.value, str):
                found.add(node.value)
    return found


def is_said(quote: str, known: set[str]) -> bool:
    """Whether the source says this, … standing for what is put in; and enough of it to tell."""
    fixed = [part for part in quote.split("…") if len(part) > 2]
    pattern = re.compile(".*".join(map(re.escape, fixed)), re.DOTALL)
    is_long_enough = max(map(len, fixed), default=0) >= 10
    return is_long_enough and any(pattern.search(saying) for saying in known)


@pytest.mark.parametrize("page", ["troubleshooting", "corpus"])
def test_quoted_messages_are_real(page: str) -> None:
    """Indented lines quote what is printed, with … for what differs from time to time."""
    known = sayings()
    quoted = [
        (number, line)
        for language, first, lines in blocks(PROJECT / f"docs/{page}.md")
        if not language and not has_commands(language, lines) and lines[0][-1] != "/"
        for number, line in enumerate(lines, start=first)
    ]
    assert len(quoted) > 5
    for number, line in quoted:
        # What to do is often a value of the message: then the two are looked for apart.
        halves = line.split("…; ")
        said = is_said(line, known) or all(is_said(half, known) for half in halves)
        assert said, f"line {number}: {line}"
