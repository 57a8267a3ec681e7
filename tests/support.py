"""Small corpora and commands that many tests share."""

import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

Dragoman = Callable[..., subprocess.CompletedProcess[str]]


def run_dragoman(*arguments: str | Path, **options: object) -> subprocess.CompletedProcess[str]:
    """Run the command line in a process of its own, as a user would."""
    command = [sys.executable, "-m", "dragoman", *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, **options)  # type: ignore[call-overload,no-any-return]


def write_lines(path: Path, lines: Sequence[str]) -> None:
    path.write_text("".join(line + "\n" for line in lines), encoding="utf-8")


NUMBERS = ["zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine"]
ZAHLEN = ["null", "eins", "zwei", "drei", "vier", "fünf", "sechs", "sieben", "acht", "neun"]


def number_pairs(first: int, count: int) -> tuple[list[str], list[str]]:
    """Digits spelled out in English and German: a language anyone can check."""
    digits = [str(number) for number in range(first, first + count)]
    source = [" ".join(NUMBERS[int(digit)] for digit in number) for number in digits]
    target = [" ".join(ZAHLEN[int(digit)] for digit in number) for number in digits]
    return source, target
