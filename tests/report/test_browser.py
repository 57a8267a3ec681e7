"""The page in a real browser: whole, quiet, and silent towards the network."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from dragoman.report.comparison.comparison_page import compare_runs
from dragoman.report.page.report_page import write_report
from report.browser import Page, find_chromium
from report.synthetic import write_long_run

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(find_chromium() is None, reason="chromium is not installed"),
]

VISIBLE = """
[...document.querySelectorAll('figure')].map(figure =>
  [...figure.querySelectorAll('svg')].filter(svg => {
    const box = svg.getBoundingClientRect();
    return box.width > 200 && box.height > 50 && svg.querySelectorAll('path').length > 2;
  }).length)
"""
SQUEEZED = """
[...document.querySelectorAll('body *')].filter(element =>
  !element.closest('svg, .scroll, pre') &&
  element.getBoundingClientRect().right > document.documentElement.clientWidth + 1
).map(element => element.outerHTML.slice(0, 80))
"""
SMALLEST_TEXT = """
Math.min(...[...document.querySelectorAll('svg text')]
  .filter(text => text.getBoundingClientRect().width > 0)
  .map(text => parseFloat(getComputedStyle(text).fontSize)
    * Math.hypot(text.getScreenCTM().a, text.getScreenCTM().b)))
"""


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    folder = tmp_path_factory.mktemp("runs")
    return {
        "pair": write_long_run(folder / "pair", steps=1_200, every=40),
        "cpu": write_long_run(
            folder / "cpu", hosts=("laptop",), gpus=0, steps=600, seconds=0.2, exposed=0.0, every=20
        ),
    }


@pytest.fixture(scope="module")
def page(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Page]:
    with Page(tmp_path_factory.mktemp("profile")) as opened:
        yield opened


@pytest.mark.parametrize(("run", "pictures"), [("pair", 13), ("cpu", 11)])
def test_a_report(runs: dict[str, Path], page: Page, run: str, pictures: int) -> None:
    path = write_report(runs[run])
    backgrounds = set()
    for width, dark in ((1280, False), (390, False), (1280, True)):
        page.open(path, width, dark=dark)
        assert page.complaints() == []
        assert page.requests() == [path.resolve().as_uri()]
        # Each picture is drawn once: wide or narrow, as the window asks for.
        assert page.evaluate(VISIBLE) == [1] * pictures
        assert page.evaluate(SQUEEZED) == []
        assert page.evaluate(SMALLEST_TEXT) > 9
        backgrounds.add(page.evaluate("getComputedStyle(document.body).backgroundColor"))
    assert len(backgrounds) == 2
    assert page.evaluate("document.querySelectorAll('.card').length") == 12
    page.evaluate("document.querySelectorAll('details').forEach(d => d.open = true)")
    assert page.evaluate(SQUEEZED) == []


def test_the_first_screen_holds_all_verdicts(runs: dict[str, Path], page: Page) -> None:
    page.open(write_report(runs["pair"]), 1280, height=800)
    bottoms = page.evaluate(
        "[...document.querySelectorAll('.card')].map(card => card.getBoundingClientRect().bottom)"
    )
    assert max(bottoms) < 800


def test_a_comparison(runs: dict[str, Path], page: Page, tmp_path: Path) -> None:
    path = compare_runs(runs["pair"], runs["cpu"], tmp_path)
    for width in (1280, 390):
        page.open(path, width)
        assert page.complaints() == []
        assert page.requests() == [path.resolve().as_uri()]
        assert page.evaluate(VISIBLE) == [1] * 6
        assert page.evaluate(SQUEEZED) == []


def test_the_pictures_of_the_markdown_report(runs: dict[str, Path], page: Page) -> None:
    folder = write_report(runs["pair"]).parent
    for picture in sorted(folder.glob("*.svg")):
        page.open(picture, 800)
        assert page.complaints() == []
        assert page.requests() == [picture.resolve().as_uri()]
        assert page.evaluate("document.querySelectorAll('path').length") > 2
