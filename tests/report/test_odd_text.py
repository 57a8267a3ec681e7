"""Names from a run folder, whatever they hold, leave pages and pictures well formed."""

import shlex
import warnings
from pathlib import Path
from xml.etree import ElementTree

import pytest

from dragoman.report.evidence import load_evidence
from dragoman.report.page.identity import reproduce_lines
from dragoman.report.page.plots.canvas import NARROW, Panel, Picture, render_svg, standalone
from report.run_folders import START, pair_run

ODD = ["a\x00b", "a\x1b[31mb", "\x7f\x85", "\ud800", "\ufffe", "--> <b>", "]]>", "$x_1$", "1\n2"]
SCRIPTS = ["中文名称", "한국어 이름", "नमस्ते", "שלום", "日本語", "😀"]


def picture_of(name: str) -> Picture:
    def draw(axes: object, _: object) -> None:
        axes.plot([0, 1], [1, 2], label=name)  # type: ignore[attr-defined]
        axes.annotate(name, (0, 1))  # type: ignore[attr-defined]

    return Picture("key", name, "", (Panel(draw, name),), x_label=name, y_label=name)


@pytest.mark.parametrize("name", [*ODD, *SCRIPTS])
def test_a_picture_is_well_formed_and_nobody_is_warned(name: str) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        svg = standalone(render_svg(picture_of(name), NARROW))
    root = ElementTree.fromstring(svg.encode())
    texts = "".join(root.itertext())
    if name in SCRIPTS:
        assert texts.count(name) == 5, "its letters are text, for the reader's fonts to show"


def test_what_is_no_commit_is_not_offered_to_a_shell(tmp_path: Path) -> None:
    run = pair_run(tmp_path, steps=30)
    assert run.provenance is not None
    run.provenance["git"]["commit"] = "x; rm -rf ~"
    run.provenance["corpus"]["identity"] = "x\nrm -rf ~"
    lines = reproduce_lines(load_evidence(run.write(), START))
    assert not [line for line in lines if "rm" in line]
    run.provenance["git"]["commit"] = "0123abcd"
    lines = reproduce_lines(load_evidence(run.write(), START))
    assert shlex.split(lines[0], comments=True) == ["git", "checkout", "0123abcd"]
