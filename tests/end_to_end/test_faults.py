"""A part of the campaign of faults: what benchmarks/faults.py does a thousand times.

What damaged files do is tested where they are read: test_mutations.py of corpus, inference, report.
"""

import random
import signal
from pathlib import Path

import pytest

from fault_outcomes import Outcome
from launched import PACED
from process_faults import build_stage, disturb, send

pytestmark = pytest.mark.slow

SEED = 15


def test_ten_kills_at_random_moments_change_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Weights and losses are those of a run that nobody killed, and no process is left."""
    for name, value in PACED.items():
        monkeypatch.setenv(name, value)
    generator = random.Random(SEED)
    victims = ["launcher", "launcher", "agent", *["worker"] * 7]
    generator.shuffle(victims)
    stage = build_stage(tmp_path / "stage")
    found = disturb(stage, [send(signal.SIGKILL, victim) for victim in victims], generator)
    assert found.outcome is Outcome.IDENTICAL, (victims, found.detail)
