"""Stages of benchmarks: none twice, none before what it needs, and a failure holds up no other."""

import sys
import tarfile
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parents[1] / "benchmarks"))

from stages import Stage, Stages

pytestmark = pytest.mark.slow

SCORES = """\
test.own: 40 pairs, 900 target tokens, beam 4, float32
  loss  3.1000   nll 2.9000   perplexity 18.17
  BLEU  33.57   95% 31.20 to 35.90   nrefs:1
"""


Works = dict[str, tuple[str, tuple[str, ...]]]


def planned(folder: Path, works: Works) -> Stages:
    """Each stage is a line of Python, run in the folder, after others."""
    stages = Stages(folder, trainings_at_once=1, home=folder / "home.tar.gz")
    for name, (line, after) in works.items():
        command = sys.executable, "-c", line
        stages._stages.append(Stage(name, command, after, name.startswith("train")))
    return stages


def adds(name: str) -> str:
    return f"open('order', 'a').write('{name} ')"


def test_what_is_done_is_not_done_again_and_a_failure_holds_up_no_other(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    works: Works = {
        "score": (f"{adds('score')}; print('''{SCORES}''')", ("train-one",)),
        "train-one": (adds("train-one"), ()),
        "train-two": ("raise SystemExit('no such thing')", ()),
        "after-two": (adds("after-two"), ("train-two",)),
    }
    with pytest.raises(SystemExit, match="not done: train-two, after-two; the same command"):
        planned(tmp_path, works).run_all(1, lambda: "a table")
    printed = capsys.readouterr().out
    assert "train-two: failed" in printed
    assert "no such thing" in printed
    assert printed.endswith("a table\n")
    assert (tmp_path / "order").read_text() == "train-one score "
    mended = planned(tmp_path, works | {"train-two": (adds("train-two"), ())})
    mended.run_all(1, lambda: "a table")
    assert (tmp_path / "order").read_text() == "train-one score train-two after-two "
    assert mended.scores("score") == {"test.own": (33.57, 31.2, 35.9)}
    assert mended.scores("train-one") == {}
    assert mended.seconds("score")
    with tarfile.open(tmp_path / "home.tar.gz") as packed:
        assert {"stages.jsonl", "table.md", "logs/score.log"} <= set(packed.getnames())


def test_when_the_time_is_up_all_is_stopped_and_nothing_counts_as_done(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    works: Works = {"slow": ("import time; time.sleep(600)", ())}
    with pytest.raises(SystemExit, match="not done: slow"):
        planned(tmp_path, works).run_all(0.005, lambda: "a table")
    assert "slow: stopped" in capsys.readouterr().out
    assert not planned(tmp_path, works).seconds("slow")
