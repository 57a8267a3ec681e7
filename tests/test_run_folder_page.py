"""The tables of docs/run-folder.md are those of the records; `make docs` writes them anew."""

import re
from dataclasses import MISSING, is_dataclass
from pathlib import Path
from typing import get_args

from dragoman import records
from dragoman.documents import describe, items_of
from dragoman.records import EVENTS, EventKind

PAGE = Path(__file__).parents[1] / "docs" / "run-folder.md"
# The name of a record, then what it is, then its table.
RECORD = re.compile(r"<!-- record: (\w+) -->\n.*\n\n(?:\|.*\n)*")


def with_tables(page: str) -> str:
    return RECORD.sub(lambda found: f"<!-- record: {found[1]} -->\n{_table(found[1])}", page)


def _table(name: str) -> str:
    """What a record is, and a row for each of its fields."""
    kind = getattr(records, name)
    rows = [kind.__doc__, "", "| field | holds | meaning |", "|---|---|---|"]
    for one, hint in items_of(kind):
        optional = "" if one.default is MISSING else " *Optional.*"
        text = one.metadata["help"]
        rows.append(f"| `{one.name}` | {describe(hint)} | {text[0].upper()}{text[1:]}.{optional} |")
    return "\n".join(rows) + "\n"


def test_every_kind_of_line_has_its_record() -> None:
    assert set(EVENTS) == set(get_args(EventKind))
    headings = re.findall(r"### (`.*`)\n\n<!-- record: (\w+) -->", PAGE.read_text())
    shown = {kind: name for kinds, name in headings for kind in re.findall(r"`(\w+)`", kinds)}
    assert shown == {kind: record.__name__ for kind, record in EVENTS.items()}


def test_the_page_of_the_run_folder_is_current() -> None:
    page = PAGE.read_text()
    defined = {
        name for name, one in vars(records).items() if isinstance(one, type) and is_dataclass(one)
    }
    # What is versioned is said in the table of the provenance.
    assert sorted(RECORD.findall(page)) == sorted(defined - {"Versioned"})
    assert page == with_tables(page), "run `make docs`"


if __name__ == "__main__":
    PAGE.write_text(with_tables(PAGE.read_text()))
