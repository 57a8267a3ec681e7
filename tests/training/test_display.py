"""What a run prints where there is no terminal."""

import math
from pathlib import Path

import pytest

from dragoman.documents import parse_leniently
from dragoman.records import Evaluation, TrainStep
from dragoman.training.display import LONGEST_SAMPLE, Display
from dragoman.training.evaluator import Evaluated, Sample

SCORES = Evaluation("valid", 1, 1, 2.0, 2.0, 2.0, 2.0, 10.0, 20.0, "", "", 1.0)


@pytest.mark.parametrize(
    ("steps", "seconds_left", "told"),
    [
        (11, math.inf, "0:20 left"),
        (11, 7.5, "0:07 left"),
        (None, 7.5, "0:07 left"),
        (None, math.inf, ""),
    ],
)
def test_the_nearest_limit_is_the_time_left(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    steps: int | None,
    seconds_left: float,
    told: str,
) -> None:
    monkeypatch.setattr("time.monotonic", lambda: 1_000.0)
    display = Display("run", tmp_path / "train.log", steps, is_shown=False)
    display.start(seconds_left)
    display.step(1, parse_leniently(TrainStep, {"seconds": 2.0, "target_tokens": 10, "loss": 3.0}))
    display.stop()
    (line,) = (tmp_path / "train.log").read_text().splitlines()
    assert line.endswith(told or "tokens/s")


def test_a_sample_is_shown_when_its_translation_changes(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    display = Display("run", tmp_path / "train.log", 4, is_shown=True)
    for step, translation in enumerate(("eins " * 40, "zwei", "zwei", "drei"), start=1):
        sample = Sample("two", "zwei", translation)
        display.evaluation(step, Evaluated(SCORES, (sample,), (translation,)))
    display.stop()
    shown = [line for line in capsys.readouterr().err.splitlines() if "  ->  " in line]
    assert [line.rsplit("  ->  ", 1)[1] for line in shown[1:]] == ["zwei", "drei"]
    assert len(shown[0]) < LONGEST_SAMPLE + 20
