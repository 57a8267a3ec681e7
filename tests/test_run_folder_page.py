from pathlib import Path
from typing import get_args

from dragoman.records import EVENTS, EventKind
from dragoman.run_folder_page import render_run_folder


def test_every_kind_of_line_has_its_record() -> None:
    assert set(EVENTS) == set(get_args(EventKind))


def test_the_page_of_the_run_folder_is_current() -> None:
    page = Path(__file__).parents[1] / "docs" / "run-folder.md"
    assert page.read_text() == render_run_folder(), "run `make docs`"
