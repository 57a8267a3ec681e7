import json
import re
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import pytest

from dragoman.cli import main
from dragoman.errors import FIX_FIRST, UserError
from dragoman.report.evidence.series import envelope
from dragoman.report.page.plots.canvas import WIDE, Panel, Picture, Shape, render_svg
from dragoman.report.page.report_page import write_report
from report.run_folders import START, calm_run, pair_run, write_checkpoints

if TYPE_CHECKING:
    from matplotlib.axes import Axes

ATTACK = "<script>alert('x')</script>"


def _report(path: Path) -> dict[str, str]:
    page = write_report(path, now=START + 1000)
    assert page == path / "report" / "report.html"
    return {file.name: file.read_text() for file in page.parent.iterdir()}


@pytest.mark.usefixtures("wide_only")
def test_the_files_of_a_report(tmp_path: Path) -> None:
    run = calm_run(tmp_path)
    run.watch(0)
    path = run.write()
    write_checkpoints(path, (40, 60))
    files = _report(path)
    answers = json.loads(files["report.json"])
    assert [answer["id"] for answer in answers][:2] == ["duration", "fully_trained"]
    page = files["report.html"]
    for answer in answers:
        assert f'id="{answer["id"]}"' in page
    pictures = re.findall(r"!\[[^\]]*\]\(([^)]+)\)", files["report.md"])
    assert len(pictures) >= 9
    assert set(pictures) == {name for name in files if name.endswith(".svg")}
    for name in pictures:
        assert files[name].startswith("<?xml")
        assert "prefers-color-scheme:dark" in files[name]
    details = json.loads(files["details.json"])
    assert details["state"] == "finished"
    assert details["missing"] == []
    assert "Nothing is missing" in page
    assert "up to 4 workers" in page  # Of 8 rows a step.


def test_the_page_needs_nothing_but_itself(tmp_path: Path) -> None:
    page = _report(calm_run(tmp_path).write())["report.html"]
    assert "<script" not in page
    assert not re.findall(r'(?:src|href)="(?!#|data:,)[^"]*"', page)
    assert "@import" not in page
    assert not re.findall(r"url\((?!#)", page)
    names = re.findall(r'\bid="([^"]+)"', page)
    assert len(names) == len(set(names))


@pytest.mark.usefixtures("wide_only")
def test_text_from_data_is_escaped_everywhere(tmp_path: Path) -> None:
    run = pair_run(tmp_path, steps=30)
    run.evaluate(30, loss=2.0, bleu=5.0, set=ATTACK)
    for line in run.lines:
        if line["kind"] == "start":
            line |= {"device_name": ATTACK, "hosts": ["alpha", ATTACK], "device": "cuda"}
    run.line("checkpoint_failed", 30, reason=ATTACK)
    run.line("stop", 30, reason="error", detail=ATTACK)
    run.samples = [
        {"step": 30, "source": ATTACK, "reference": f"| {ATTACK} `x`", "translation": ATTACK}
    ]
    assert run.provenance is not None
    run.provenance |= {"run": ATTACK, "command": ["dragoman", ATTACK], "directory": ATTACK}
    run.provenance["git"]["commit"] = ATTACK
    run.provenance["machines"] = {ATTACK: {"cpu": ATTACK}}
    run.provenance["corpus"]["manifest"] = {
        "pairs": {"raw": 9, "prepared": 8},
        "filters": {ATTACK: 1},
        "bytes": {"source": {"raw": 1, "cleaned": 1, "prepared": 1}},
        "tokens": {"source": 1},
    }
    run.settings = f'[training]\nnote = """{ATTACK}"""\n'
    files = _report(run.write())
    for name, text in files.items():
        if not name.endswith(".json"):
            # Indented blocks of Markdown are verbatim: what is in them is never markup.
            lines = [line for line in text.splitlines() if not line.startswith("    ")]
            assert "<script>" not in "\n".join(lines), name
    assert files["report.html"].count("&lt;script&gt;") > 10
    assert "&lt;script&gt;" in files["report.md"]


@pytest.mark.usefixtures("no_pictures")
def test_samples_are_shown_in_the_order_of_their_script(tmp_path: Path) -> None:
    run = calm_run(tmp_path)
    sample = {"source": "Peace.", "reference": "שלום.", "translation": "سلام."}
    run.samples = [{"step": 60, **sample}]
    page = _report(run.write())["report.html"]
    for text in sample.values():
        assert f'dir="auto">{text}<' in page


@pytest.mark.usefixtures("no_pictures")
def test_a_translation_into_nothing_is_told(tmp_path: Path) -> None:
    run = calm_run(tmp_path)
    sample = {"source": "One.", "reference": "Eins.", "translation": ""}
    run.samples = [{"step": 60, **sample}]
    files = _report(run.write())
    assert ">(nothing)<" in files["report.html"]
    assert "step 60: (nothing)" in files["report.md"]


@pytest.mark.usefixtures("no_pictures")
def test_a_second_report_replaces_the_first(tmp_path: Path) -> None:
    run = pair_run(tmp_path, steps=60)
    run.watch(4_000_000)
    assert "network.svg" in _report(run.write())
    (tmp_path / "report" / "logo.svg").write_text("of somebody else")
    for file in (tmp_path / "monitor").iterdir():
        file.unlink()
    files = _report(tmp_path)
    assert "network.svg" not in files
    assert files["logo.svg"] == "of somebody else"
    assert not [name for name in files if name.startswith(".")]


@pytest.mark.usefixtures("no_pictures")
def test_what_stopped_a_run_is_to_be_mended_first(tmp_path: Path) -> None:
    run = calm_run(tmp_path)
    run.lines = [line for line in run.lines if line["kind"] != "stop"]
    run.line("stop", 60, reason="error", detail=f"hostC: no room; {FIX_FIRST}")
    page = _report(run.write())["report.md"]
    advice = page.partition("## What to do next")[2].strip().splitlines()[0]
    assert "Mend what stopped it (hostC: no room), then run the same command to resume." in advice


@pytest.mark.usefixtures("no_pictures")
def test_advice_is_given_once_and_does_not_contradict_itself(tmp_path: Path) -> None:
    run = pair_run(tmp_path, steps=60)
    run.lines.pop()
    run.evaluate(60, loss=2.0, bleu=20.0, seconds=300.0)
    run.line("stop", 60, reason="steps", detail="")
    files = _report(run.write())
    box = files["report.md"].split("## What to do next")[1].split("##")[0]
    assert box.count("Evaluate more often") == 1
    assert "less often" not in files["report.md"]


@pytest.mark.usefixtures("no_pictures")
def test_the_limit_that_ended_the_run_is_named(tmp_path: Path) -> None:
    """The advice to go on says to raise it."""
    run = calm_run(tmp_path)
    assert "ended by" not in _report(run.write())["report.md"]
    run.lines[-1]["reason"] = "patience"
    assert "; ended by training.patience." in _report(run.write())["report.md"]


@pytest.mark.usefixtures("no_pictures")
def test_a_running_and_a_crashed_run(tmp_path: Path) -> None:
    run = calm_run(tmp_path)
    run.lines.pop()
    run.write()
    assert "still running" in write_report(tmp_path, now=run.clock + 5).read_text()
    assert (
        "ended without a final log line"
        in write_report(tmp_path, now=run.clock + 9_999).read_text()
    )


@pytest.mark.usefixtures("no_pictures")
def test_a_report_elsewhere_leaves_the_run_alone(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = calm_run(tmp_path / "run").write()
    main(["report", str(run), "--output", str(tmp_path / "out")])
    assert capsys.readouterr().out == f"{tmp_path}/out/report.html\n"
    assert (tmp_path / "out" / "report.md").is_file()
    assert not (run / "report").exists()


def test_a_folder_that_is_no_run(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="not a run folder"):
        write_report(tmp_path)
    with pytest.raises(UserError, match="no such run folder"):
        write_report(tmp_path / "nowhere")


def test_downsampling_keeps_the_extremes() -> None:
    generator = np.random.default_rng(2)
    y = generator.standard_normal(100_003)
    y[777], y[88_888], y[5] = 50.0, -60.0, np.nan
    x = np.arange(len(y), dtype=np.float64)
    found = envelope(x, y, 300)
    assert len(found) == 300
    assert (found.high.max(), found.low.min()) == (50.0, -60.0)
    assert found.x[np.argmax(found.high)] == pytest.approx(777, abs=400)
    sizes = np.diff(np.arange(301) * 100_002 // 300)
    assert np.average(found.mean, weights=sizes) == pytest.approx(np.nanmean(y))
    assert len(envelope(x[:7], y[:7], 300)) == 6
    assert len(envelope(x[:0], y[:0], 300)) == 0


def test_numbers_in_pictures_are_left_whole() -> None:
    def draw(axes: "Axes", shape: Shape) -> None:
        axes.plot([0.0, 1.23456], [0.0, 1.0], label="took 0.108 s")

    svg = render_svg(Picture("key", "A <title>", "", (Panel(draw),)), WIDE)
    assert "took 0.108 s" in svg
    assert "A &lt;title&gt;" in svg
    # Coordinates are coarser: a tenth of a pixel is finer than any screen shows.
    assert not re.search(r' d="[^"]*\.\d\d', svg)


@pytest.mark.slow
def test_the_report_waits_for_its_heavy_imports() -> None:
    names = ("page.report_page", "comparison.comparison_page", "page.whatif_table")
    modules = ", ".join(f"dragoman.report.{name}" for name in names)
    heavy = "{'matplotlib', 'jinja2', 'torch'}"
    code = f"import sys, {modules}; print(sorted({heavy} & set(sys.modules)))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
