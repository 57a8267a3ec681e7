"""Two runs side by side: what changed, and what it did."""

import time
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from dragoman import __version__
from dragoman.report.answers import answer_all
from dragoman.report.comparison.differences import (
    Side,
    differing,
    facts_of,
    shown,
    way_of_counting_loss,
    way_of_scoring,
)
from dragoman.report.comparison.parent_and_child import family_facts
from dragoman.report.evidence import Evidence, load_evidence
from dragoman.report.evidence.series import Floats, envelope
from dragoman.report.findings.analysis import analyse
from dragoman.report.page.identity import flat_settings, hardware_rows, identity_rows, when
from dragoman.report.page.plots.canvas import Panel, Picture, Shape, band, beyond, colour
from dragoman.report.page.templating import as_json, drawn, picture_files, render, write_files

if TYPE_CHECKING:
    from matplotlib.axes import Axes

_TINTS = ("blue", "orange")
_NOT_COMPARED = {"Run", "Created", "Command", "Directory"}  # They differ in every pair of runs.


def compare_runs(first: Path, second: Path, output: Path, now: float | None = None) -> Path:
    """Write compare.html, compare.md and compare.json into a folder; return the page's path."""
    moment = time.time() if now is None else now
    sides = _load_sides((first, second), moment)
    questions = list(zip(*(side.answers for side in sides), strict=True))
    pictures = {"curves": drawn([picture for picture in _pictures(sides) if picture])}
    settings = differing(*(flat_settings(side.evidence.settings) for side in sides))
    identity = differing(*(_identity(side.evidence) for side in sides))
    facts = [*family_facts(*sides), *facts_of(*sides)]
    values = {
        "labels": [side.label for side in sides],
        "facts": [fact["words"] for fact in facts],
        "questions": questions,
        "settings": _rows(settings),
        "identity": _rows(identity),
        "missing": [[side.label, notice] for side in sides for notice in side.evidence.missing],
        "pictures": pictures,
        "footer": f"Made by dragoman {__version__} on {when(moment)} from the files in "
        f"{first} and {second} alone.",
    }
    report = {
        "runs": [{"name": side.label, "folder": str(side.evidence.run)} for side in sides],
        "facts": facts,
        "settings_that_differ": settings,
        "identity_that_differs": identity,
        "answers": [
            {
                "id": own.id,
                "question": own.question,
                "first": own.to_json(),
                "second": other.to_json(),
            }
            for own, other in questions
        ],
        "missing": {side.label: list(side.evidence.missing) for side in sides},
    }
    files = {
        **picture_files(pictures),
        "compare.json": as_json(report),
        "compare.md": render("compare.md.jinja", values),
        "compare.html": render("compare.html.jinja", values),
    }
    write_files(output, files)
    return output / "compare.html"


def _load_sides(runs: Sequence[Path], moment: float) -> list[Side]:
    loaded = [load_evidence(run, moment) for run in runs]
    names = [evidence.name for evidence in loaded]
    labels = names if names[0] != names[1] else [str(evidence.run) for evidence in loaded]
    sides = []
    for label, evidence in zip(labels, loaded, strict=True):
        findings = analyse(evidence)
        sides.append(Side(label, evidence, findings, answer_all(evidence, findings)))
    return sides


def _identity(evidence: Evidence) -> dict[str, str]:
    rows = dict(identity_rows(evidence)) | dict(hardware_rows(evidence))
    return {key: value for key, value in rows.items() if key not in _NOT_COMPARED}


def _rows(differences: dict[str, list[Any]]) -> list[list[str]]:
    return [[name, *map(shown, pair)] for name, pair in differences.items()]


def _pictures(sides: Sequence[Side]) -> list[Picture | None]:
    ways = [
        [way(side.evidence) for side in sides] for way in (way_of_scoring, way_of_counting_loss)
    ]
    same_scores, same_losses = (not differing(*pair) for pair in ways)
    pictures: list[Picture | None] = []
    for metric, name, legend, comparable in (
        ("bleu", "BLEU", "lower right", same_scores),
        ("loss", "eval loss", "best", same_scores and same_losses),
    ):
        if comparable:
            pictures += [
                _evaluation_curves(sides, metric, name, legend, over_time=over_time)
                for over_time in (False, True)
            ]
    if same_losses:
        unit = "loss, nats per token"
        pictures.append(_step_curves(sides, "loss", "train-loss", "Training loss", unit))
    return [*pictures, _step_curves(sides, "seconds", "step-time", "Step time", "seconds per step")]


def _evaluation_curves(
    sides: Sequence[Side], metric: str, name: str, legend: str, *, over_time: bool
) -> Picture | None:
    """One metric of both runs, over steps or over hours."""
    curves = []
    for side, tint in zip(sides, _TINTS, strict=True):
        series = side.evidence.evaluations
        if series is not None and np.isfinite(getattr(series, metric)).any():
            hours = (series.time - side.evidence.history.first_time) / 3600
            x = hours if over_time else series.step
            curves.append((x, getattr(series, metric), tint, side.label))
    if not curves:
        return None

    def draw(axes: "Axes", shape: Shape) -> None:
        for x, y, tint, label in curves:
            axes.plot(x, y, color=colour(tint), label=label)

    over = "over time" if over_time else "over steps"
    return Picture(
        key=f"{metric}-{over.replace(' ', '-')}",
        title=f"{name[0].upper()}{name[1:]} {over}",
        caption="Over time: which run was faster; pauses and restarts included."
        if over_time
        else "Over steps: which run learned more from each step.",
        panels=(Panel(draw),),
        x_label="hours since the start" if over_time else "step",
        y_label=name,
        legend=legend,
        height=280,
    )


def _step_curves(
    sides: Sequence[Side], metric: str, key: str, title: str, unit: str
) -> Picture | None:
    """One number of every step of both runs."""
    curves: list[tuple[Floats, Floats]] = [
        (side.evidence.history.train.step, getattr(side.evidence.history.train, metric))
        for side in sides
    ]
    known = np.concatenate([values[np.isfinite(values)] for _, values in curves])
    if not len(known):
        return None
    top = 1.05 * float(np.percentile(known, 99))

    def draw(axes: "Axes", shape: Shape) -> None:
        for side, (step, values), tint in zip(sides, curves, _TINTS, strict=True):
            band(axes, envelope(step, values, shape.stretches // 2), tint, side.label)
        axes.set_ylim(0.0 if metric == "seconds" else 0.95 * float(known.min()), top)

    return Picture(
        key=key,
        title=f"{title} over steps",
        caption="Mean over groups of steps, with the range of single steps; evaluations and "
        f"checkpoints excluded.{beyond(float(known.max()), top)}",
        panels=(Panel(draw),),
        y_label=unit,
        height=280,
    )
