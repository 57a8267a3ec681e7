"""What is said, and that saying it never ends anything."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from dragoman.console import printable, say


def test_control_characters_are_spelled_out_and_all_other_text_is_kept(
    capsys: pytest.CaptureFixture[str],
) -> None:
    say("hostB | \x1b]0;mine\x07\r\x9b2J Grüße 你好 שלום 👩‍💻\tend\nnext")
    assert capsys.readouterr().err == (
        "hostB | \\x1b]0;mine\\x07\\r\\x9b2J Grüße 你好 שלום 👩‍💻\tend\nnext\n"
    )
    assert printable("".join(map(chr, range(32))) + "\x7f").isascii()


SPEAKER = """
import sys
from dragoman.console import protect_console, say, show_cursor
protect_console()
for _ in range(3):
    say("a line " * 1_000)
show_cursor()
sys.exit(7)
"""


@pytest.mark.parametrize("kind", ["full disk", "closed pipe", "closed terminal"])
def test_a_console_that_cannot_be_written_does_not_change_the_exit_code(kind: str) -> None:
    if kind == "full disk":
        console = os.open("/dev/full", os.O_WRONLY)
    else:
        other, console = os.openpty() if kind == "closed terminal" else os.pipe()
        os.close(other)
    try:
        ended = subprocess.run([sys.executable, "-c", SPEAKER], stderr=console)
    finally:
        os.close(console)
    assert ended.returncode == 7


def test_lines_reach_the_console_again_when_there_is_room(tmp_path: Path) -> None:
    code = """
import os, sys
from dragoman.console import protect_console, say
protect_console()
say("lost")
os.dup2(os.open(sys.argv[1], os.O_WRONLY | os.O_CREAT), 2)
say("heard")
"""
    path = tmp_path / "console"
    with open("/dev/full", "w") as console:
        subprocess.run([sys.executable, "-c", code, str(path)], stderr=console, check=True)
    assert path.read_text() == "heard\n"
