from pathlib import Path

from dragoman.run_folder_page import render_run_folder


def test_the_page_of_the_run_folder_is_current() -> None:
    page = Path(__file__).parents[1] / "docs" / "run-folder.md"
    assert page.read_text() == render_run_folder(), "run `make docs`"
