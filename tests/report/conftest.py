"""Fixtures of the report's tests."""

import pytest

from dragoman.report.page import templating
from dragoman.report.page.plots.canvas import WIDE, Picture, Shape, render_svg


@pytest.fixture
def wide_only(monkeypatch: pytest.MonkeyPatch) -> None:
    """Draw each picture once: half the time, and nothing that a test looks at is lost."""

    def draw(picture: Picture, shape: Shape) -> str:
        return render_svg(picture, shape) if shape is WIDE else ""

    monkeypatch.setattr(templating, "render_svg", draw)


EMPTY_PICTURE = '<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 1 1"></svg>'


@pytest.fixture
def no_pictures(monkeypatch: pytest.MonkeyPatch) -> None:
    """Draw nothing: pictures take most of a report's time."""
    monkeypatch.setattr(templating, "render_svg", lambda *_: EMPTY_PICTURE)
