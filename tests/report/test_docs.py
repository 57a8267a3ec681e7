from pathlib import Path

import pytest

from dragoman.thresholds import all_thresholds
from report.test_answers import IDS

DOCS = (Path(__file__).parents[2] / "docs" / "report.md").read_text()


@pytest.mark.parametrize("name", all_thresholds())
def test_every_threshold_is_documented_with_its_reason(name: str) -> None:
    threshold = all_thresholds()[name]
    assert f"| `{name}` | {threshold.value:g} {threshold.unit} | {threshold.reason} |" in DOCS


@pytest.mark.parametrize("answer", IDS)
def test_every_answer_is_explained(answer: str) -> None:
    assert f"### {answer}: " in DOCS
