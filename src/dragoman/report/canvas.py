"""Figures as SVG that follows the page: its fonts, its colours, light or dark."""

import io
import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

# matplotlib draws in these stand-ins; the SVG gets the page's variables in their place.
PALETTE = {
    "ink": "#0a0b01",
    "muted": "#0a0b02",
    "grid": "#0a0b03",
    "blue": "#0a0b04",
    "orange": "#0a0b05",
    "green": "#0a0b06",
    "red": "#0a0b07",
    "purple": "#0a0b08",
    "slate": "#0a0b09",
}
LIGHT = {
    "ink": "#1d2733",
    "muted": "#5d6b7a",
    "grid": "#e3e8ee",
    "blue": "#2b6cb0",
    "orange": "#c96a12",
    "green": "#2c7a57",
    "red": "#b83a32",
    "purple": "#7253a8",
    "slate": "#8795a5",
}
DARK = {
    "ink": "#e6ebf1",
    "muted": "#9aa8b7",
    "grid": "#2c3642",
    "blue": "#6cb0f0",
    "orange": "#f0a058",
    "green": "#63c79a",
    "red": "#f08a80",
    "purple": "#b79be8",
    "slate": "#718096",
}
_FONT = "system-ui, -apple-system, 'Segoe UI', Roboto, 'Helvetica Neue', Arial, sans-serif"
_POINTS_PER_INCH = 72


@dataclass(frozen=True)
class Shape:
    """The size of a figure in the page's pixels."""

    name: str
    width: int
    font: float
    stretches: int  # Points a curve may have.


WIDE = Shape("wide", 760, 12.0, 500)
NARROW = Shape("narrow", 360, 10.5, 240)
SHAPES = (WIDE, NARROW)


@dataclass(frozen=True)
class Picture:
    """A drawing that can be made in any shape, and what to see in it."""

    key: str
    title: str
    caption: str
    height: int
    draw: Callable[["Figure", Shape], None]
    narrow_height: int | None = None  # If not a little less than the height.


def colour(name: str) -> str:
    """The stand-in of a colour of the page."""
    return PALETTE[name]


def render_svg(picture: Picture, shape: Shape) -> str:
    """Draw a picture as an SVG element without colours or fonts of its own."""
    import matplotlib
    from matplotlib.figure import Figure

    height = picture.height
    if shape is NARROW:
        height = picture.narrow_height or round(0.84 * height)
    with matplotlib.rc_context(_style(shape)):  # type: ignore[arg-type]
        figure = Figure(figsize=(shape.width / _POINTS_PER_INCH, height / _POINTS_PER_INCH))
        picture.draw(figure, shape)
        output = io.StringIO()
        figure.savefig(output, format="svg", transparent=True, metadata=_NO_METADATA)
    return _tidy(output.getvalue(), f"{picture.key}-{shape.name}", picture.title)


def standalone(svg: str) -> str:
    """The same picture as a file of its own, with both sets of colours."""
    light, dark = (
        "".join(f"--{name}:{value};" for name, value in colours.items())
        for colours in (LIGHT, DARK)
    )
    style = (
        f"<style>svg{{{light}background:#ffffff;font-family:{_FONT}}}"
        f"@media (prefers-color-scheme:dark){{svg{{{dark}background:#11171e}}}}</style>"
    )
    head, rest = svg.split(">", 1)
    return f'<?xml version="1.0" encoding="UTF-8"?>\n{head}>{style}{rest}'


def place_axes(figure: "Figure", shape: Shape, rows: int = 1, **edges: float) -> list["Axes"]:
    """Axes below each other, sharing x, with edges in pixels."""
    width, height = figure.get_size_inches() * _POINTS_PER_INCH
    left, right = edges.get("left", 4.6 * shape.font), edges.get("right", 12.0)
    top, bottom = edges.get("top", 10.0), edges.get("bottom", 3.1 * shape.font)
    grid: Any = figure.add_gridspec(
        rows,
        1,
        left=left / width,
        right=1 - right / width,
        top=1 - top / height,
        bottom=bottom / height,
        hspace=0.32,
    )
    first: Axes = figure.add_subplot(grid[0])
    return [first] + [figure.add_subplot(grid[row], sharex=first) for row in range(1, rows)]


def legend(axes: "Axes", place: str, columns: int = 1, **options: Any) -> None:
    """A legend in quiet ink."""
    options |= {"loc": place, "ncols": columns, "labelcolor": colour("ink")}
    axes.legend(**options)


def legend_space(shape: Shape, entries: int) -> float:
    """Pixels that a legend of so many entries takes above the axes."""
    return -(-entries // legend_columns(shape)) * 1.5 * shape.font + 9


def legend_columns(shape: Shape) -> int:
    """How many entries stand beside each other."""
    return 6 if shape is WIDE else 2


def thousands(axes: "Axes", shape: Shape) -> None:
    """Whole numbers with separators along the x axis, and few of them."""
    from matplotlib.ticker import FuncFormatter, MaxNLocator

    axes.xaxis.set_major_locator(
        MaxNLocator(nbins=8 if shape is WIDE else 4, integer=True, steps=[1, 2, 5, 10])
    )
    axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:,.0f}"))


def log_ticks(axes: "Axes", label: Callable[[float], str]) -> None:
    """A logarithmic y axis that is labelled even if it spans less than a decade."""
    from matplotlib.ticker import FuncFormatter, LogLocator, NullFormatter

    axes.set_yscale("log")
    low, high = axes.get_ylim()
    fine = (1.0,) if high / low > 1e3 else (1.0, 2.0, 5.0)
    axes.yaxis.set_major_locator(LogLocator(subs=fine, numticks=12))
    axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: label(value)))
    axes.yaxis.set_minor_formatter(NullFormatter())


_NO_METADATA = {"Creator": None, "Date": None, "Format": None, "Type": None}


def _style(shape: Shape) -> dict[str, Any]:
    return {
        "svg.fonttype": "none",
        "svg.hashsalt": "dragoman",
        "font.size": shape.font,
        "font.family": "sans-serif",
        "axes.edgecolor": colour("muted"),
        "axes.labelcolor": colour("muted"),
        "axes.linewidth": 0.8,
        "axes.spines.top": False,
        "axes.spines.right": False,
        "axes.grid": True,
        "axes.axisbelow": True,
        "axes.labelsize": shape.font,
        "grid.color": colour("grid"),
        "grid.linewidth": 0.8,
        "xtick.color": colour("muted"),
        "ytick.color": colour("muted"),
        "xtick.labelsize": shape.font,
        "ytick.labelsize": shape.font,
        "xtick.major.size": 0,
        "ytick.major.size": 0,
        "xtick.minor.size": 0,
        "ytick.minor.size": 0,
        "text.color": colour("ink"),
        "lines.linewidth": 1.6,
        "lines.solid_capstyle": "round",
        "legend.frameon": False,
        "legend.fontsize": shape.font,
        "legend.handlelength": 1.4,
        "legend.columnspacing": 1.4,
        "legend.borderaxespad": 0.2,
        "text.parse_math": False,
    }


def _tidy(svg: str, key: str, title: str) -> str:
    """Drop what an inline element does not need; make its names unique on the page."""
    svg = svg[svg.index("<svg") :]
    svg = re.sub(r"<metadata>.*?</metadata>\s*", "", svg, flags=re.S)
    svg = re.sub(r"<!--.*?-->\s*", "", svg, flags=re.S)
    svg = re.sub(
        r'<g id="(?:figure|axes|patch|line2d|text|matplotlib|xtick|ytick)[^"]*"', "<g", svg
    )
    svg = re.sub(r'(id="|url\(#|href="#)', rf"\g<1>{key}-", svg)
    for name, stand_in in PALETTE.items():
        svg = svg.replace(stand_in, f"var(--{name})")
    svg = re.sub(r"<defs>\s*<style.*?</style>\s*</defs>\s*", "", svg, count=1, flags=re.S)
    svg = re.sub(r"font-family: [^;\"]*; ?", "", svg)
    svg = re.sub(r' transform="rotate\(-0 [^"]*\)"', "", svg)
    # A tenth of a pixel is finer than any screen shows.
    svg = re.sub(r"(?<=[ML ,(\"-])(\d+\.\d)\d+", r"\1", svg)
    svg = re.sub(r"\n\s*", "\n", svg)
    label = title.replace("&", "&amp;").replace("<", "&lt;").replace('"', "&quot;")
    return re.sub(
        r'<svg ([^>]*?)width="[^"]*" height="[^"]*"|<svg ',
        lambda match: (
            f'<svg role="img" aria-label="{label}" stroke-linejoin="round" {match.group(1) or ""}'
        ),
        svg,
        count=1,
    )
