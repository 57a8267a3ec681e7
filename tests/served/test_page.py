"""The page in a real browser: it translates while one types, and asks nobody else."""

from collections.abc import Iterator

import pytest

from report.browser import Page, find_chromium
from served.serving import model, serving
from support import wait_until

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(find_chromium() is None, reason="chromium is not installed"),
]

SQUEEZED = """
[...document.querySelectorAll('body *')].filter(element =>
  element.getBoundingClientRect().right > document.documentElement.clientWidth + 1
).map(element => element.outerHTML.slice(0, 80))
"""
ALTERNATIVES = "[...document.querySelectorAll('#alternatives .words')].map(one => one.textContent)"


@pytest.fixture(scope="module")
def page(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Page]:
    with Page(tmp_path_factory.mktemp("profile")) as opened:
        yield opened


@pytest.fixture(scope="module")
def address() -> Iterator[str]:
    with serving(model("en", "de"), model("de", "en")) as where:
        yield where


def shows(page: Page, expression: str, expected: object) -> None:
    wait_until(lambda: page.evaluate(expression) == expected, 60)


def click(page: Page, selector: str) -> None:
    page.evaluate(f"document.querySelector('{selector}').click()")


def test_it_translates_while_one_types(page: Page, address: str) -> None:
    page.open(f"{address}/", 1280)
    shows(page, "document.activeElement.id + sourceLanguage.value", "sourceen")
    page.call("Input.insertText", text="Good day.\n\n")
    shows(page, "target.value", "GOOD DAY.\n\n")
    page.call("Input.insertText", text="Second")
    shows(page, "target.value", "GOOD DAY.\n\nSECOND")
    assert page.evaluate("count.textContent") == "17 / 2,000"
    others = [f"GOOD DAY.{'!' * rank}\n\nSECOND{'!' * rank}" for rank in (1, 2, 3)]
    assert page.evaluate(ALTERNATIVES) == others
    click(page, "#alternatives li:nth-child(2) button")
    assert page.evaluate("target.value") == others[1]
    assert page.evaluate(ALTERNATIVES) == ["GOOD DAY.\n\nSECOND", others[0], others[2]]
    permissions = ["clipboardReadWrite", "clipboardSanitizedWrite"]
    page.call("Browser.grantPermissions", permissions=permissions, origin=address)
    click(page, "#copy")
    shows(page, "status.textContent", "Copied")
    click(page, "#swap")
    shows(page, "sourceLanguage.value + targetLanguage.value", "deen")
    shows(page, "target.value", others[1].upper())
    click(page, "#clear")
    shows(page, "target.value", "")
    assert page.complaints() == []
    assert {one.removeprefix(address) for one in page.requests()} == {
        *("/", "/page.css", "/page.js"),
        *("/languages", "/frontend/settings", "/translate"),
    }


def test_errors_are_shown_and_forgotten(page: Page, address: str) -> None:
    page.open(f"{address}/", 1280)
    shows(page, "sourceLanguage.value", "en")
    page.call("Input.insertText", text="x" * 2_001)
    expected = "Invalid request: request (2001) exceeds text limit (2000)"
    shows(page, "status.className + status.textContent", f"quiet error{expected}")
    page.evaluate("source.select()")
    page.call("Input.insertText", text="<b>short</b>")
    shows(page, "target.value + status.textContent", "<B>SHORT</B>")


def test_an_answer_from_something_else_leaves_no_old_translation(page: Page, address: str) -> None:
    page.open(f"{address}/", 1280)
    shows(page, "sourceLanguage.value", "en")
    page.call("Input.insertText", text="one")
    shows(page, "target.value", "ONE")
    page.evaluate("window.fetch = async () => new Response('Service Unavailable', {status: 503})")
    page.call("Input.insertText", text=" more")
    shows(page, "status.textContent", "The server is busy or cannot be reached (503).")
    assert page.evaluate("target.value") == ""
    page.evaluate("window.fetch = () => new Promise(() => {})")  # It never answers.
    page.call("Input.insertText", text=" word")
    shows(page, "target.parentElement.classList.contains('busy')", True)
    click(page, "#clear")
    shows(page, "target.parentElement.classList.contains('busy')", False)


def test_it_fits_a_phone_and_the_night(page: Page, address: str) -> None:
    backgrounds = set()
    for width, dark in ((1280, False), (390, False), (390, True)):
        page.open(f"{address}/", width, dark=dark)
        shows(page, "sourceLanguage.value", "en")
        page.call("Input.insertText", text="endless" * 40)
        shows(page, "target.value", "ENDLESS" * 40)
        assert page.evaluate(SQUEEZED) == []
        backgrounds.add(page.evaluate("getComputedStyle(document.body).backgroundColor"))
    assert len(backgrounds) == 2
