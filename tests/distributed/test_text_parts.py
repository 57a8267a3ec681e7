"""A large text, translated by several machines."""

import subprocess
from pathlib import Path

import pytest

from machines import Network
from support import PATIENCE, number_pairs, write_lines

pytestmark = [pytest.mark.slow, pytest.mark.network]


def test_machines_share_a_folder_or_are_refused(net: Network, spelling_run: Path) -> None:
    text = net.folder / "text"
    write_lines(text, number_pairs(20_000, 400)[0])
    command = net.dragoman("translate", spelling_run, "--input", text, "--hosts", "hostA,hostB")
    options = {"env": net.environment(), "capture_output": True, "text": True, "timeout": PATIENCE}

    def translate(output: Path) -> subprocess.CompletedProcess[str]:
        words = [*command, "--output", str(output), "--part-lines", "50", "--beam", "1"]
        return subprocess.run(words, **options)  # type: ignore[call-overload,no-any-return]

    alone = translate(net.folder / "private" / "out")
    assert alone.returncode == 2, alone.stderr
    assert "--output must be a folder that all machines share" in alone.stderr.splitlines()[-1]
    shared = translate(net.folder / "out")
    assert shared.returncode == 0, shared.stderr
    assert "8 parts, 8 translated now" in shared.stdout
    assert {"hostA |", "hostB |"} <= {line[:7] for line in shared.stderr.splitlines()}
    lines = [line for part in sorted((net.folder / "out").glob("part-*")) for line in open(part)]
    assert len(lines) == 400
