"""Templates that escape all data, and the files they produce."""

import json
import re
from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dragoman.files import write_whole
from dragoman.report.answers.answer import plain
from dragoman.report.page.plots.canvas import DARK, LIGHT, SHAPES, Picture, render_svg, standalone
from dragoman.wording import in_markdown

if TYPE_CHECKING:
    from jinja2 import Environment

_TEMPLATES = Path(__file__).parent / "templates"
_PAGE = {
    "light": LIGHT | {"panel": "#ffffff", "line": "#dde3ea"},
    "dark": DARK | {"panel": "#18202a", "line": "#2c3642"},
}


def render(template: str, values: Mapping[str, Any]) -> bytes:
    """Fill in a template of this folder."""
    from markupsafe import Markup

    css = (_TEMPLATES / "style.css").read_text(encoding="utf-8")
    page = {"colours": _PAGE, "css": Markup(css)}
    filled = _environment().get_template(template).render(**page, **values)
    return filled.encode(errors="replace")  # JSON can spell half a character, UTF-8 cannot.


def drawn(pictures: Sequence[Picture]) -> list[dict[str, Any]]:
    """Pictures in both shapes, ready for a template."""
    from markupsafe import Markup

    return [
        {
            "title": picture.title,
            "caption": picture.caption,
            "file": f"{picture.key}.svg",
            # matplotlib has escaped all text in them.
            **{shape.name: Markup(render_svg(picture, shape)) for shape in SHAPES},
        }
        for picture in pictures
    ]


def picture_files(groups: Mapping[str, Sequence[Mapping[str, Any]]]) -> dict[str, bytes]:
    """The wide pictures as files of their own."""
    return {
        picture["file"]: standalone(str(picture["wide"])).encode()
        for pictures in groups.values()
        for picture in pictures
    }


def flat_rows(value: Any, name: str = "") -> list[tuple[str, str]]:
    """Nested evidence as rows of a table."""
    if isinstance(value, Mapping):
        items = [(f"{name} / {key}" if name else str(key), item) for key, item in value.items()]
    elif isinstance(value, (list, tuple)) and any(
        isinstance(item, (Mapping, list, tuple)) for item in value
    ):
        items = [(f"{name} {number}", item) for number, item in enumerate(value, 1)]
    else:
        return [(name.replace("_", " "), _cell(value))]
    return [row for key, item in items for row in flat_rows(item, key)]


def _cell(value: Any) -> str:
    if value is None:
        return "not known"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, float):
        whole = value.is_integer() and abs(value) < 1e15
        return f"{value:,.0f}" if whole else f"{value:,.6g}"
    if isinstance(value, int):
        return f"{value:,}"
    if isinstance(value, (list, tuple)):
        return ", ".join(map(_cell, value))
    return str(value)


def as_json(value: Any) -> bytes:
    """A value as a JSON file that any parser reads."""
    text = json.dumps(plain(value), indent=2, ensure_ascii=False, allow_nan=False)
    return f"{text}\n".encode(errors="replace")


def write_files(folder: Path, files: Mapping[str, bytes]) -> None:
    """Write files whole, and remove the pictures that only the earlier report there shows."""
    folder.mkdir(parents=True, exist_ok=True)
    for page in (folder / name for name in files if name.endswith(".md")):
        earlier = page.read_text(encoding="utf-8") if page.is_file() else ""
        shown = re.findall(r"\]\((\w[\w-]*\.svg)\)", earlier)
        for name in set(shown) - set(files):
            (folder / name).unlink(missing_ok=True)
    for name, content in files.items():
        write_whole(folder / name, content)


@cache
def _environment() -> "Environment":
    from jinja2 import Environment, FileSystemLoader, StrictUndefined

    environment = Environment(
        loader=FileSystemLoader(_TEMPLATES),
        autoescape=True,
        undefined=StrictUndefined,
        keep_trailing_newline=True,
        trim_blocks=False,
    )
    environment.filters |= {
        "md": _markdown,
        "anchor": _anchor,
        "verbatim": _verbatim,
        "tight": _tight,
    }
    return environment


def _tight(text: str) -> str:
    """Keep a number and its unit on one line."""
    units = r"(?:s|ms|min|h|days|bytes|kB|MB|GB|TB|[kMGT]?b/s|steps?|BLEU)"
    return re.sub(rf"(?<=\d) (?={units}\b)", "\u00a0", text)


def _markdown(text: Any) -> str:
    """Text that is escaped for Markdown, and not once more for HTML."""
    from markupsafe import Markup

    return Markup(in_markdown(str(text)))


def _anchor(heading: str) -> str:
    """The name under which code hosts file a heading."""
    return re.sub(r"[^\w -]", "", heading.lower()).replace(" ", "-")


def _verbatim(text: str) -> str:
    """A line of an indented block, in which Markdown leaves everything alone."""
    from markupsafe import Markup

    return Markup(" ".join(text.splitlines()))
