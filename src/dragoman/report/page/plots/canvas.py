"""Figures as SVG that follows the page: its fonts, its colours, light or dark."""

import html
import io
import re
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from dragoman.report.evidence.series import Envelope

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

# In a light page, and in a dark one.
_COLOURS = {
    "page": ("#f6f8fa", "#11171e"),
    "ink": ("#1d2733", "#e6ebf1"),
    "muted": ("#5d6b7a", "#9aa8b7"),
    "grid": ("#e3e8ee", "#2c3642"),
    "blue": ("#2b6cb0", "#6cb0f0"),
    "orange": ("#c96a12", "#f0a058"),
    "green": ("#2c7a57", "#63c79a"),
    "red": ("#b83a32", "#f08a80"),
    "purple": ("#7253a8", "#b79be8"),
    "slate": ("#8795a5", "#718096"),
}
LIGHT, DARK = ({name: pair[place] for name, pair in _COLOURS.items()} for place in (0, 1))
# matplotlib draws in these stand-ins; the SVG gets the page's variables in their place.
PALETTE = {name: f"#0a0b{number:02x}" for number, name in enumerate(LIGHT)}
_FONT = "system-ui, -apple-system, 'Segoe UI', Roboto, 'Helvetica Neue', Arial, sans-serif"
_POINTS_PER_INCH = 72
_NOT_IN_XML = re.compile(r"[\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f\ud800-\udfff\ufffe\uffff]")


@dataclass(frozen=True)
class Shape:
    """The size of a figure in the page's pixels."""

    name: str
    width: int
    font: float
    stretches: int  # Points a curve may have.


WIDE = Shape("wide", 760, 13.0, 500)
NARROW = Shape("narrow", 360, 11.0, 240)
SHAPES = (WIDE, NARROW)


@dataclass(frozen=True)
class Panel:
    """One pair of axes."""

    draw: Callable[["Axes", Shape], None]
    name: str = ""  # Written above its right end.


@dataclass(frozen=True)
class Picture:
    """A drawing that can be made in any shape, and what to see in it."""

    key: str
    title: str
    caption: str
    panels: Sequence[Panel]  # Below each other, sharing x.
    x_label: str = "step"
    y_label: str = ""
    legend: str = "upper right"  # A corner inside the axes, or "above" or "below" them.
    height: int = 300
    left: float = 4.6  # Room for what stands beside the axes, in letters.
    right: float = 1.0


def colour(name: str) -> str:
    """The stand-in of a colour of the page."""
    return PALETTE[name]


def render_svg(picture: Picture, shape: Shape) -> str:
    """Draw a picture as an SVG element without colours or fonts of its own."""
    import matplotlib
    from matplotlib.figure import Figure
    from matplotlib.text import Text

    height = picture.height if shape is WIDE else max(112, round(0.84 * picture.height))
    with matplotlib.rc_context(_style(shape)):  # type: ignore[arg-type]
        figure = Figure(figsize=(shape.width / _POINTS_PER_INCH, height / _POINTS_PER_INCH))
        _draw(figure, picture, shape)
        for text in figure.findobj(Text):
            text.set_text(legible(text.get_text()))
        output = io.StringIO()
        # The page's fonts show the text; matplotlib's own, which may lack letters, only measures.
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", r"Glyph \d+ .* missing from font", UserWarning)
            figure.savefig(output, format="svg", transparent=True, metadata=_NO_METADATA)
    return _tidy(output.getvalue(), f"{picture.key}-{shape.name}", legible(picture.title))


def legible(text: str) -> str:
    """Text without the characters that XML forbids, each replaced by one that shows the gap."""
    return _NOT_IN_XML.sub("\N{REPLACEMENT CHARACTER}", text)


def _draw(figure: "Figure", picture: Picture, shape: Shape) -> None:
    """Put panels below each other, with labels at the edges and one legend for all."""
    grid: Any = figure.add_gridspec(len(picture.panels), 1, hspace=0.32)
    first: Axes = figure.add_subplot(grid[0])
    rows = [first]
    rows += [figure.add_subplot(grid[row], sharex=first) for row in range(1, len(picture.panels))]
    for axes, panel in zip(rows, picture.panels, strict=True):
        axes.set_ylabel(picture.y_label)
        panel.draw(axes, shape)
        axes.tick_params(labelbottom=axes is rows[-1])
        axes.set_title(panel.name, loc="right", fontsize=shape.font, pad=3)
    rows[-1].set_xlabel(picture.x_label)
    right = picture.right
    if picture.x_label == "step":
        thousands(rows[-1], shape)
        # Half of the last label may stand beyond the end of the axis.
        right = max(right, 0.3 * len(f"{rows[-1].get_xlim()[1]:,.0f}"))
    entries = len(first.get_legend_handles_labels()[1])
    columns = {"above": 6, "below": 3}.get(picture.legend, 1) if shape is WIDE else 2
    beside = 1.5 * shape.font * -(-entries // columns) + 0.7 * shape.font
    name = 1.4 * shape.font if picture.panels[0].name else 0.0
    width, height = figure.get_size_inches() * _POINTS_PER_INCH
    top = name + (beside if picture.legend == "above" else 0.8 * shape.font)
    bottom = beside if picture.legend == "below" else 3.1 * shape.font
    figure.subplots_adjust(
        left=picture.left * shape.font / width,
        right=1 - right * shape.font / width,
        top=1 - top / height,
        bottom=bottom / height,
    )
    options: dict[str, Any] = {"loc": picture.legend}
    if picture.legend == "above":
        edge = 1 + name / first.get_window_extent().height
        options = {"loc": "lower left", "ncols": columns, "bbox_to_anchor": (0, edge)}
    elif picture.legend == "below":
        options = {"loc": "upper left", "ncols": columns, "bbox_to_anchor": (0, 0)}
    if entries:
        first.legend(**options)


def band(axes: "Axes", curve: Envelope, tint: str, label: str, **style: Any) -> None:
    """A curve with the range around it."""
    axes.fill_between(curve.x, curve.low, curve.high, color=colour(tint), alpha=0.2, lw=0)
    axes.plot(curve.x, curve.mean, color=colour(tint), label=label, **style)


def dashed(tint: str, **style: Any) -> dict[str, Any]:
    """The look of lines that say what would be, or what cannot be passed."""
    return {"color": colour(tint), "lw": 1.0, "ls": (0, (4, 3)), **style}


def beyond(highest: float, top: float, unit: str) -> str:
    """Words for a caption, where a picture leaves something out above its top."""
    return f" Values up to {highest:.3g} {unit} are cut off at the top." if highest > top else ""


def standalone(svg: str) -> str:
    """The same picture as a file of its own, with both sets of colours."""
    light, dark = (
        "".join(f"--{name}:{value};" for name, value in colours.items())
        for colours in (LIGHT, DARK)
    )
    style = (
        f"<style>svg{{{light}background:var(--page);font-family:{_FONT}}}"
        f"@media (prefers-color-scheme:dark){{svg{{{dark}}}}}</style>"
    )
    head, rest = svg.split(">", 1)
    return f'<?xml version="1.0" encoding="UTF-8"?>\n{head}>{style}{rest}'


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
    muted = colour("muted")
    ticks = {"color": muted, "labelsize": shape.font, "major.size": 0, "minor.size": 0}
    return {
        "svg.fonttype": "none",
        "svg.hashsalt": "dragoman",
        "font.size": shape.font,
        "font.family": "sans-serif",
        "text.color": colour("ink"),
        "text.parse_math": False,
        "axes.edgecolor": muted,
        "axes.labelcolor": muted,
        "axes.labelsize": shape.font,
        "axes.linewidth": 0.8,
        "axes.spines.top": False,
        "axes.spines.right": False,
        "axes.grid": True,
        "axes.axisbelow": True,
        "grid.color": colour("grid"),
        "grid.linewidth": 0.8,
        **{f"{axis}tick.{name}": value for axis in "xy" for name, value in ticks.items()},
        "lines.linewidth": 1.6,
        "lines.solid_capstyle": "round",
        "legend.facecolor": colour("page"),
        "legend.edgecolor": "none",
        "legend.framealpha": 0.8,
        "legend.labelcolor": colour("ink"),
        "legend.fontsize": shape.font,
        "legend.handlelength": 1.4,
        "legend.columnspacing": 1.4,
        "legend.borderaxespad": 0.2,
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
    # A tenth of a pixel is finer than any screen shows; numbers in texts are left alone.
    svg = re.sub(r' (?:d|x|y|transform)="[^"]*"', lambda places: _coarse(places.group()), svg)
    svg = re.sub(r"\n\s*", "\n", svg)
    head = f'<svg role="img" aria-label="{html.escape(title)}" stroke-linejoin="round" '
    svg = re.sub(r' (?:width|height)="[\d.]+pt"', "", svg, count=2)
    return svg.replace("<svg ", head, 1)


def _coarse(places: str) -> str:
    return re.sub(r"\d+\.\d\d+", lambda number: f"{float(number.group()):.1f}", places)
