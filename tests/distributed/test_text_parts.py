"""A large text, translated by several machines."""

import re
import subprocess
from contextlib import ExitStack
from pathlib import Path

import psutil
import pytest

from dragoman.cli import main
from dragoman.inference.parts import part_path
from launched import held_back
from machines import Network, wait_for_ssh
from support import PATIENCE, number_pairs, wait_until, write_lines

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


def test_what_a_killed_worker_and_others_made_is_counted_where_the_machines_see_it(
    net: Network, spelling_run: Path
) -> None:
    text, shared, output = (net.folder / name for name in ("text", "shared", "out"))
    write_lines(text, number_pairs(20_000, 400)[0])
    words = ["translate", str(spelling_run), "--input", str(text), "--part-lines", "100"]
    main([*words, "--output", str(shared)])
    output.mkdir()
    for machine in net.machines:  # But not for the desk.
        machine.kill()
        machine.mounts = [f"mount --bind {shared} {output}"]
        machine.start()
    wait_for_ssh(net)
    missing = [part_path(shared, number) for number in (2, 3)]
    with held_back(missing) as held, ExitStack() as at_end:
        launcher = subprocess.Popen(
            net.dragoman(*words, "--output", output, "--hosts", "hostA,hostB"),
            env=net.environment(),
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        at_end.callback(launcher.kill)
        wait_until(lambda: len(_workers(net)) == 2)  # One may have begun alone.
        held[0].close()
        wait_until(missing[0].exists)
        old = _workers(net)
        net.machines[1].workers("translate")[0].kill()
        wait_until(lambda: len(_workers(net)) == 2 and not _workers(net) & old)
        held[1].close()
        told, errors = launcher.communicate(timeout=PATIENCE)
    assert launcher.returncode == 0, errors
    assert "4 parts, 2 translated now, 2 already done" in told
    line = r"^host[AB] \| restarted \(worker \d on hostB after 2 parts: killed by SIGKILL\)$"
    assert len(re.findall(line, errors, re.MULTILINE)) == 1, errors


def _workers(net: Network) -> set[psutil.Process]:
    return {worker for machine in net.machines for worker in machine.workers("translate")}
