from pathlib import Path

import numpy as np
import pytest

from dragoman.report.evidence import load_evidence
from dragoman.report.evidence.history import History, read_history
from report.run_folders import START, RunFolder, calm_run


def _read(run: RunFolder) -> tuple[History, list[str]]:
    missing: list[str] = []
    return read_history(run.write() / "metrics.jsonl", missing), missing


def test_a_resume_makes_void_what_lay_beyond_it(tmp_path: Path) -> None:
    run = RunFolder(tmp_path)
    run.begin()
    for step in range(1, 9):
        run.train(step, loss=float(step))
    run.evaluate(8, loss=9.0, bleu=1.0, seconds=3.0)
    run.checkpoint(4)
    run.begin("resume", 5, checkpoint="step-00000005", reason="the same command")
    for step in range(6, 11):
        run.train(step, loss=10.0 * step, repeated=step < 9)
    run.evaluate(10, loss=2.0, bleu=20.0)
    history, _ = _read(run)
    assert history.train.step.tolist() == list(range(1, 11))
    assert history.train.loss.tolist() == [1, 2, 3, 4, 5, 60, 70, 80, 90, 100]
    assert history.lost.step.tolist() == [6, 7, 8]
    assert history.evaluations[0].step.tolist() == [10]
    assert history.lost_evaluation_seconds == 3.0
    assert [write.step for write in history.checkpoints] == [4]
    assert history.train.attempt.tolist() == [1] * 5 + [2] * 5
    assert [attempt.kind for attempt in history.attempts] == ["start", "resume"]


@pytest.mark.parametrize("kind", ["start", "resume"])
def test_beginning_again_makes_everything_void(tmp_path: Path, kind: str) -> None:
    """A run that was stopped before its first checkpoint."""
    run = RunFolder(tmp_path)
    run.begin()
    for step in range(1, 6):
        run.train(step, loss=1.0)
    run.evaluate(4, loss=9.0, bleu=1.0, seconds=3.0)
    run.line("stop", 5, reason="error", detail="no space left")
    run.begin(kind, 0)
    for step in range(1, 4):
        run.train(step, loss=2.0)
    history, missing = _read(run)
    assert not missing
    assert history.train.step.tolist() == [1, 2, 3]
    assert history.train.loss.tolist() == [2, 2, 2]
    assert history.lost.step.tolist() == [1, 2, 3, 4, 5]
    assert history.evaluations == ()
    assert history.lost_evaluation_seconds == 3.0
    assert history.end is None
    notices = load_evidence(tmp_path, START).missing
    assert any("once (from step 0); 5 steps had to be repeated" in notice for notice in notices)


def test_two_resumes_and_lines_in_another_style(tmp_path: Path) -> None:
    run = RunFolder(tmp_path)
    run.begin()
    for step in (1, 2, 3):
        run.train(step)
    run.begin("restart", 1, reason="worker 1 died")
    for step in (2, 3, 4):
        run.train(step)
    run.begin("resume", 3)
    run.train(4)
    # The same line without blanks, as another writer may put it.
    run.lines[-1] = f'{{"step":4,"kind":"train","time":{run.clock},"loss":7.5}}\n'
    history, missing = _read(run)
    assert history.train.step.tolist() == [1, 2, 3, 4]
    assert history.train.loss[-1] == 7.5
    assert np.isnan(history.train.seconds[-1])
    assert sorted(history.lost.step.tolist()) == [2, 3, 4]
    assert not missing
    notices = load_evidence(tmp_path, START).missing
    words = "twice (from steps 1, 3); 3 steps had to be repeated"
    assert any(words in notice for notice in notices)


def test_a_clock_that_went_back(tmp_path: Path) -> None:
    run = RunFolder(tmp_path)
    run.begin()
    for step in range(1, 5):
        run.train(step)
    run.clock -= 3600
    for step in range(5, 8):
        run.train(step)
    history, missing = _read(run)
    assert (history.train.time - START).tolist() == pytest.approx([1, 2, 3, 4, 5, 6, 7])
    assert any("clock went back by 3,599 s" in notice for notice in missing)


def test_a_clock_that_jumped_ahead_is_time_nobody_can_explain(tmp_path: Path) -> None:
    run = RunFolder(tmp_path)
    run.begin()
    run.train(1)
    run.clock += 7200
    run.train(2)
    _, missing = _read(run)
    assert any("7,200 s before line 3 are not explained" in notice for notice in missing)


def test_a_pause_before_a_resume_is_no_riddle(tmp_path: Path) -> None:
    run = RunFolder(tmp_path)
    run.begin()
    run.train(1)
    run.clock += 7200
    run.begin("resume", 1)
    run.clock += 900  # Compilation.
    run.train(2)
    _, missing = _read(run)
    assert not missing


def test_steps_that_repeat_without_a_resume_line(tmp_path: Path) -> None:
    run = RunFolder(tmp_path)
    run.begin()
    for step, loss in ((1, 1.0), (2, 2.0), (2, 3.0), (3, 4.0)):
        run.train(step, loss=loss)
    history, missing = _read(run)
    assert history.train.loss.tolist() == [1, 3, 4]
    assert any("1 train lines repeat a step" in notice for notice in missing)


def test_links_are_those_measured_last(tmp_path: Path) -> None:
    run = RunFolder(tmp_path, hosts=("a", "b"))
    for kind, goodput in (("start", 1e6), ("resume", 2e6)):
        run.begin(kind)
        for host in "ab":
            run.line("link", 0, hosts=[host, "x"], goodput_bytes_per_second=goodput)
    history, _ = _read(run)
    assert [link.goodput_bytes_per_second for link in history.links] == [2e6, 2e6]


@pytest.mark.parametrize(
    ("ending", "silence", "state"),
    [
        ({"reason": "steps"}, 1e6, "finished"),
        ({"reason": "error", "detail": "out of memory"}, 0, "stopped"),
        ({"reason": "signal", "detail": "SIGTERM"}, 1e6, "stopped"),
        (None, 10, "running"),
        (None, 1e6, "crashed"),
    ],
)
def test_the_state_of_a_run(
    tmp_path: Path, ending: dict[str, str] | None, silence: float, state: str
) -> None:
    run = calm_run(tmp_path)
    run.lines.pop()
    if ending:
        run.line("stop", 60, **ending)
    run.write()
    assert load_evidence(tmp_path, run.clock + silence).state == state


def test_a_run_that_has_not_started(tmp_path: Path) -> None:
    (tmp_path / "config.toml").write_text("[training]\nsteps = 3\n")
    evidence = load_evidence(tmp_path, START)
    assert evidence.state == "not started"
    assert any("metrics.jsonl is missing" in notice for notice in evidence.missing)


def test_why_a_run_was_restarted_is_told(tmp_path: Path) -> None:
    run = RunFolder(tmp_path)
    run.begin()
    for step in range(1, 48):
        run.train(step)
    run.begin("restart", 40, reason="worker 1 on beta: killed by SIGKILL; beta was lost")
    for step in range(41, 60):
        run.train(step, repeated=step < 48)
    run.begin("restart", 50)
    notices = load_evidence(run.write(), START).missing
    why = "worker 1 on beta: killed by SIGKILL; beta was lost"
    assert f"It was restarted at step 47, from step 40: {why}" in notices
    assert "It was restarted at step 59, from step 50: the log does not say why" in notices


@pytest.mark.parametrize(("gap", "steps", "is_named"), [(40, 90, 1), (40, 900, 0), (20, 30, 0)])
def test_a_gap_counts_in_a_short_run_that_would_not_in_a_long_one(
    tmp_path: Path, gap: float, steps: int, is_named: int
) -> None:
    run = RunFolder(tmp_path)
    run.begin()
    for step in range(1, steps + 1):
        if step == 20:
            run.clock += gap
        run.train(step)
    history, missing = _read(run)
    assert len(history.gaps) == is_named
    assert sum("not explained by the log" in notice for notice in missing) == is_named
    if is_named:
        assert history.gaps[0] == pytest.approx((START + 19, START + 19 + gap))
