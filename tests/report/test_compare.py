import json
import re
from pathlib import Path

import pytest

from dragoman.report.comparison.comparison_page import compare_runs
from dragoman.report.comparison.differences import differing
from report.run_folders import START, calm_run, pair_run

pytestmark = pytest.mark.usefixtures("wide_only")


def test_two_runs_side_by_side(tmp_path: Path) -> None:
    first, second = calm_run(tmp_path / "one"), pair_run(tmp_path / "two", seconds=2.0)
    second.lines.pop()
    for step in range(4, 121, 4):
        second.evaluate(step, loss=2.5, bleu=24 + step / 20)
    assert second.settings is not None
    second.settings = second.settings.replace("scale = 2.0", "scale = 1.0")
    for run, name in ((first, "one"), (second, "two <b>")):
        assert run.provenance is not None
        run.provenance["run"] = name
    page = compare_runs(first.write(), second.write(), tmp_path / "out", now=START + 999)
    report = json.loads((tmp_path / "out" / "compare.json").read_text())
    assert report["settings_that_differ"] == {"schedule.scale": [2.0, 1.0]}
    facts = {fact["id"]: fact for fact in report["facts"]}
    assert facts["step_time"]["first"] == pytest.approx(1.0)
    assert facts["step_time"]["second"] == pytest.approx(2.0)
    assert re.search("run took .+ in one and .+ in two <b>", facts["wall_time"]["words"])
    assert "losses_not_comparable" not in facts
    assert "The lowest eval loss is" in facts["best_loss"]["words"]
    assert "two <b> takes 2.00 times as long" in facts["step_time"]["words"]
    # One reached 30 - 100/60 at the end, two 24 + 6; both reached the lower one.
    assert facts["best_bleu"]["first"] == pytest.approx(30 - 100 / 60)
    assert facts["best_bleu"]["second"] == pytest.approx(30)
    assert facts["seconds_to_same_bleu"]["first"] == pytest.approx(90)
    verdicts = {answer["id"]: answer for answer in report["answers"]}
    assert verdicts["network_bottleneck"]["first"]["verdict"] == "single machine"
    assert verdicts["network_bottleneck"]["second"]["verdict"] == "yes"
    html = page.read_text()
    assert "two &lt;b&gt;" in html
    assert "two <b>" not in html
    markdown = (tmp_path / "out" / "compare.md").read_text()
    for picture in ("bleu-over-steps.svg", "bleu-over-time.svg", "loss-over-steps.svg"):
        assert (tmp_path / "out" / picture).is_file()
        assert f"({picture})" in markdown


def test_scores_of_unlike_sets_are_not_compared(tmp_path: Path) -> None:
    first, second = calm_run(tmp_path / "one"), calm_run(tmp_path / "two")
    for line in second.lines:
        if line["kind"] == "eval":
            line["set"] = "other"
    compare_runs(first.write(), second.write(), tmp_path / "out")
    report = json.loads((tmp_path / "out" / "compare.json").read_text())
    facts = {fact["id"]: fact["words"] for fact in report["facts"]}
    assert "not comparable" in facts["not_comparable"]
    assert "set: valid and other" in facts["not_comparable"]
    assert not {"best_bleu", "seconds_to_same_bleu"} & set(facts)
    assert not (tmp_path / "out" / "bleu-over-steps.svg").exists()


@pytest.mark.parametrize("what", ["smoothing", "vocabulary"])
def test_losses_that_were_counted_otherwise_are_not_drawn(tmp_path: Path, what: str) -> None:
    first, second = calm_run(tmp_path / "one"), calm_run(tmp_path / "two")
    if what == "smoothing":
        for run, smoothing in ((first, 0.1), (second, 0.3)):
            assert run.settings is not None
            set_it = f"[training]\nlabel_smoothing = {smoothing}"
            run.settings = run.settings.replace("[training]", set_it)
    else:
        assert second.provenance is not None
        second.provenance["corpus"]["manifest"]["vocabulary"]["sizes"] = [500]
    compare_runs(first.write(), second.write(), tmp_path / "out")
    report = json.loads((tmp_path / "out" / "compare.json").read_text())
    facts = {fact["id"]: fact["words"] for fact in report["facts"]}
    assert "losses are not comparable" in facts["losses_not_comparable"]
    drawn = {path.stem for path in (tmp_path / "out").glob("*.svg")}
    # BLEU is that of words, whatever they were cut into.
    assert drawn == {"bleu-over-steps", "bleu-over-time", "step-time"}


def test_steps_of_unlike_size_are_compared_by_their_tokens(tmp_path: Path) -> None:
    first, second = calm_run(tmp_path / "one"), pair_run(tmp_path / "two", seconds=2.0)
    assert second.settings is not None
    size = "tokens_per_step = 1024"
    assert size in second.settings
    second.settings = second.settings.replace(size, "tokens_per_step = 4096")
    for line in second.lines:
        if line["kind"] == "train":
            line["target_tokens"] *= 4
    compare_runs(first.write(), second.write(), tmp_path / "out")
    report = json.loads((tmp_path / "out" / "compare.json").read_text())
    facts = {fact["id"]: fact for fact in report["facts"]}
    assert "times as fast" not in facts["step_time"]["words"]
    rate = facts["tokens_per_second"]
    assert rate["second"] == pytest.approx(2 * rate["first"])
    assert "is 2.00 times as fast" in rate["words"]


@pytest.mark.parametrize(("carried", "is_told"), [(1_000_000.0, True), (7_600_000.0, False)])
def test_links_that_carried_more_or_less_are_told(
    tmp_path: Path, carried: float, *, is_told: bool
) -> None:
    first, second = pair_run(tmp_path / "one"), pair_run(tmp_path / "two", goodput=carried)
    compare_runs(first.write(), second.write(), tmp_path / "out")
    report = json.loads((tmp_path / "out" / "compare.json").read_text())
    words = [fact["words"] for fact in report["facts"] if fact["id"] == "slowest_link"]
    assert len(words) == is_told
    assert all(
        re.search(r"carried 64.0 Mb/s in \S+one and 8.00 Mb/s in \S+two", one) for one in words
    )


def test_runs_of_the_same_name_are_told_apart(tmp_path: Path) -> None:
    paths = [calm_run(tmp_path / name).write() for name in ("one", "two")]
    compare_runs(paths[0], paths[1], tmp_path / "out")
    report = json.loads((tmp_path / "out" / "compare.json").read_text())
    assert [run["name"] for run in report["runs"]] == [str(path) for path in paths]
    assert report["settings_that_differ"] == {}


def test_runs_without_anything(tmp_path: Path) -> None:
    for name in ("one", "two"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "metrics.jsonl").touch()
    page = compare_runs(tmp_path / "one", tmp_path / "two", tmp_path / "out")
    assert "All settings are the same" not in page.read_text()
    markdown = (tmp_path / "out" / "compare.md").read_text()
    assert (
        "## What changed\n\nThe settings of one and two are not known.\n\n## Curves\n" in markdown
    )


def test_what_is_not_known_is_not_called_a_difference(tmp_path: Path) -> None:
    first, second = calm_run(tmp_path / "one"), calm_run(tmp_path / "two")
    first.settings = None
    compare_runs(first.write(), second.write(), tmp_path / "out")
    report = json.loads((tmp_path / "out" / "compare.json").read_text())
    assert report["settings_that_differ"] == {}
    words = " ".join(fact["words"] for fact in report["facts"])
    assert "differently" not in words
    assert "not set" not in words
    same, other = calm_run(tmp_path / "three"), calm_run(tmp_path / "four")
    compare_runs(same.write(), other.write(), tmp_path / "out")
    assert "All settings are the same." in (tmp_path / "out/compare.md").read_text()


def test_differing() -> None:
    assert differing({"a": 1, "b": 2}, {"b": 3, "c": 4}) == {
        "a": [1, None],
        "b": [2, 3],
        "c": [None, 4],
    }
