from pathlib import Path

import pytest

from dragoman.report.evidence.history import read_history
from dragoman.report.timeline import split_duration
from report.run_folders import RunFolder


def test_every_second_is_accounted_for(tmp_path: Path) -> None:
    run = RunFolder(tmp_path)
    run.begin()
    run.clock += 7  # Set-up.
    for step in range(1, 11):
        run.train(step, seconds=2.0)
    run.evaluate(10, loss=3.0, bleu=1.0, seconds=5.0)
    run.checkpoint(10, seconds=1.5)
    run.train(11, seconds=2.0)
    run.train(12, seconds=2.0)
    run.clock += 20  # From the fault to the restart.
    run.begin("restart", 10, reason="a worker died")
    run.clock += 6
    run.train(11, seconds=2.0, repeated=True)
    run.line("stop", 11, reason="signal", detail="SIGTERM")
    run.clock += 1000
    run.begin("resume", 11)
    run.clock += 4
    run.train(12, seconds=2.0, repeated=True)
    run.train(13, seconds=2.0)
    run.clock += 0.5
    run.line("stop", 13, reason="steps", detail="")
    found = split_duration(read_history(run.write() / "metrics.jsonl", []))
    assert found.parts["training"] == pytest.approx(13 * 2)
    assert found.parts["evaluation"] == pytest.approx(5)
    assert found.parts["checkpoints"] == pytest.approx(1.5)
    assert found.lost_steps == pytest.approx(4)
    assert found.parts["restarts"] == pytest.approx(4 + 20 + 6)
    assert found.set_up == pytest.approx(7 + 4)
    assert found.paused == pytest.approx(1000)
    assert found.parts["waiting"] == pytest.approx(7 + 1000 + 4 + 0.5)
    assert sum(found.parts.values()) == pytest.approx(found.wall)
