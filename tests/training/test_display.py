"""What a run prints where there is no terminal."""

from pathlib import Path

import pytest

from dragoman.records import Evaluation
from dragoman.training.display import LONGEST_SAMPLE, Display
from dragoman.training.evaluator import Evaluated, Sample

SCORES = Evaluation("valid", 1, 1, 2.0, 2.0, 2.0, 2.0, 10.0, 20.0, "", "", 1.0)


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
