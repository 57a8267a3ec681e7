from pathlib import Path
from typing import get_args

import numpy as np
import pytest

from dragoman.report.answers.time_and_sizes import duration
from dragoman.report.evidence import load_evidence
from dragoman.report.evidence.history import read_history
from dragoman.report.findings.analysis import analyse
from dragoman.report.findings.timeline import (
    Duration,
    Part,
    evaluation_intervals,
    sample_causes,
    split_duration,
)
from report.run_folders import START, RunFolder, local_run


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


def test_evaluations_of_what_a_run_starts_from_are_evaluations(tmp_path: Path) -> None:
    run = RunFolder(tmp_path)
    run.begin()
    run.clock += 3  # Set-up.
    run.evaluate(0, loss=4.0, bleu=1.0, seconds=5.0)
    run.evaluate(0, loss=4.0, bleu=1.0, seconds=6.0, set="old", is_old=True)
    for step in (1, 2):
        run.train(step, seconds=2.0)
    run.evaluate(2, loss=3.0, bleu=2.0, seconds=5.0)
    run.evaluate(2, loss=3.0, bleu=2.0, seconds=6.0, set="old", is_old=True)
    history = read_history(run.write() / "metrics.jsonl", [])
    found = split_duration(history)
    assert found.parts["evaluation"] == pytest.approx(22)
    assert found.set_up == found.parts["waiting"] == pytest.approx(3)
    intervals = [end - begin for begin, end in evaluation_intervals(history)]
    assert intervals == pytest.approx([11, 11])


@pytest.mark.parametrize("is_saved", [False, True])
def test_a_fault_that_is_noticed_late_belongs_to_the_restart(
    tmp_path: Path, *, is_saved: bool
) -> None:
    run = RunFolder(tmp_path)
    run.begin()
    for step in (1, 2):
        run.train(step, seconds=2.0)
    run.clock += 120  # Nobody hears from a worker.
    if is_saved:  # Its end is seen at the next synchronization only.
        run.line("checkpoint", 2, name="step-00000002", bytes=1, seconds_blocking=0.0)
    run.line("stop", 2, reason="error", detail="no heartbeat for 120 s")
    run.clock += 5
    run.begin("restart", 0, reason="no heartbeat for 120 s")
    run.clock += 1
    for step in (1, 2, 3):
        run.train(step, seconds=2.0, repeated=step < 3)
    missing: list[str] = []
    history = read_history(run.write() / "metrics.jsonl", missing)
    found = split_duration(history)
    assert found.parts["restarts"] == pytest.approx(4 + 120 + 5 + 1)
    assert found.parts["waiting"] == 0
    assert (missing, history.gaps) == ([], ())


def test_an_evaluation_that_a_restart_repeats_is_counted_once(tmp_path: Path) -> None:
    run = RunFolder(tmp_path)
    run.begin()
    run.clock += 3  # Set-up.
    run.evaluate(0, loss=4.0, bleu=1.0, seconds=50.0)
    run.train(1, seconds=2.0)
    run.clock += 4  # From the fault to the restart.
    run.begin("restart", 0, reason="a worker died")
    run.clock += 3
    run.evaluate(0, loss=4.0, bleu=1.0, seconds=50.0)
    run.train(1, seconds=2.0, repeated=True)
    history = read_history(run.write() / "metrics.jsonl", [])
    found = split_duration(history)
    assert found.parts["evaluation"] == pytest.approx(100)
    assert found.parts["restarts"] == pytest.approx(2 + 4 + 3)
    assert found.parts["waiting"] == pytest.approx(3)
    assert found.overcounted == 0
    first, second = evaluation_intervals(history)
    assert second[0] - first[1] == pytest.approx(2 + 4 + 3)


def test_an_attempt_begins_with_its_first_step_not_with_its_first_meeting(tmp_path: Path) -> None:
    run = local_run(tmp_path, rounds=2)
    run.clock += 30
    run.begin("restart", 8, reason="a worker died")
    run.clock += 20
    for step in range(9, 17):
        run.train(step, repeated=True)
    found = split_duration(read_history(run.write() / "metrics.jsonl", []))
    assert found.parts["training"] == pytest.approx(10 + 8)
    assert found.lost_steps == pytest.approx(10)
    assert found.parts["restarts"] == pytest.approx(10 + 30 + 20)
    assert found.parts["waiting"] == pytest.approx(0, abs=1e-5)
    assert found.overcounted == pytest.approx(0, abs=1e-5)
    assert sum(found.parts.values()) == pytest.approx(found.wall)


def test_more_seconds_than_passed_are_told(tmp_path: Path) -> None:
    run = RunFolder(tmp_path)
    run.begin()
    for step in range(1, 101):
        run.train(step)
        run.lines[-1]["seconds"] = 1.2
    evidence = load_evidence(run.write(), START)
    findings = analyse(evidence)
    assert findings.duration.overcounted == pytest.approx(20)
    answer = duration(evidence, findings)
    assert "20.0 s more than the wall time" in answer.details[0]
    assert answer.confidence == "medium"


@pytest.mark.parametrize(
    ("gap", "confidence", "reason"), [(0, "high", "mostly training"), (200, "medium", "gaps")]
)
def test_an_unexplained_gap_is_named_and_doubted(
    tmp_path: Path, gap: float, confidence: str, reason: str
) -> None:
    run = RunFolder(tmp_path)
    run.begin()
    for step in range(1, 301):
        run.clock += gap if step == 150 else 0
        run.train(step)
    evidence = load_evidence(run.write(), START)
    findings = analyse(evidence)
    assert findings.duration.reason == reason
    answer = duration(evidence, findings)
    assert answer.evidence["of_waiting"]["unexplained"] == pytest.approx(gap)
    assert answer.confidence == confidence


@pytest.mark.parametrize(
    ("part", "reason"),
    [
        ({"evaluation": 50.0}, "evaluation"),
        ({"checkpoints": 50.0, "waiting": 50.0}, "checkpoints"),
        ({"restarts": 50.0, "evaluation": 1.0}, "restarts"),
        ({"evaluation": 1.0}, "mostly training"),
        ({"waiting": 50.0}, "set-up"),
    ],
)
def test_what_took_the_time_beside_training(part: dict[Part, float], reason: str) -> None:
    parts: dict[Part, float] = dict.fromkeys(get_args(Part), 0.0)
    found = Duration(100.0, parts | part, 0.0, 30.0, 10.0, 10.0, 0.0)
    assert found.reason == reason


def test_samples_belong_to_what_they_lie_in_or_near(tmp_path: Path) -> None:
    run = RunFolder(tmp_path)
    run.begin()
    for step in range(1, 11):
        run.train(step)
    run.evaluate(10, loss=2.0, bleu=1.0, seconds=5.0)
    run.train(11)
    evidence = load_evidence(run.write(), START)
    seconds = np.arange(0.0, 17.0)
    inside = sample_causes(evidence, START + seconds)["evaluation"]
    # A sample looks back: the one of second 10 tells about training.
    assert seconds[inside].tolist() == [11, 12, 13, 14, 15]
    near = sample_causes(evidence, START + seconds, slack=1.5)["evaluation"]
    assert seconds[near].tolist() == [9, 10, 11, 12, 13, 14, 15, 16]
