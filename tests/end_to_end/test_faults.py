"""A part of the campaign of faults: what benchmarks/faults.py does a thousand times."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.slow

CAMPAIGN = Path(__file__).parents[2] / "benchmarks" / "faults.py"


@pytest.mark.parametrize(("kinds", "count"), [("kills", 10), ("files", 48)])
def test_faults_change_nothing_or_are_told_in_one_line(kinds: str, count: int) -> None:
    words = ["--seed", "15", "--count", str(count), "--kinds", kinds]
    # In a process of its own, which forks: none of its threads may come from other tests.
    ended = subprocess.run([sys.executable, CAMPAIGN, *words], capture_output=True, text=True)
    assert ended.returncode == 0, ended.stdout + ended.stderr
    (row,) = re.findall(r"\| all \| (.*) \|", ended.stdout)
    tried, identical, _, refused, *bad = map(int, row.split(" | "))
    assert tried == count
    assert identical > 0
    assert refused > 0 or kinds == "kills"
    assert not any(bad)
