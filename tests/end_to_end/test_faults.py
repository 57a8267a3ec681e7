"""A part of the campaign of faults: what benchmarks/faults.py does a thousand times."""

import random
import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from fault_outcomes import Outcome
from launched import PACED
from process_faults import build_stage, disturb, send

pytestmark = pytest.mark.slow

CAMPAIGN = Path(__file__).parents[2] / "benchmarks" / "faults.py"
SEED = 15


def test_ten_kills_at_random_moments_change_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Weights and losses are those of a run that nobody killed, and no process is left."""
    for name, value in PACED.items():
        monkeypatch.setenv(name, value)
    generator = random.Random(SEED)
    victims = ["launcher", "agent", "worker", *generator.choices(["launcher", "worker"], k=7)]
    generator.shuffle(victims)
    stage = build_stage(tmp_path / "stage")
    found = disturb(stage, [send(signal.SIGKILL, victim) for victim in victims], generator)
    assert found.outcome is Outcome.IDENTICAL, (victims, found.detail)


def test_damaged_files_change_nothing_or_are_told_in_one_line() -> None:
    words = ["--seed", str(SEED), "--count", "8", "--kinds", "files", "--lanes", "1"]
    # In a process of its own, which forks: none of its threads may come from other tests.
    ended = subprocess.run([sys.executable, CAMPAIGN, *words], capture_output=True, text=True)
    assert ended.returncode == 0, ended.stdout + ended.stderr
    (row,) = re.findall(r"\| all \| (.*) \|", ended.stdout)
    tried, identical, _, refused, *bad = map(int, row.split(" | "))
    assert tried == 8
    assert identical > 0
    assert refused > 0
    assert not any(bad)
