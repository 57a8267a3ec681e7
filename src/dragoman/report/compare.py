"""Two runs side by side: what changed, and what it did."""

import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from dragoman import __version__
from dragoman.report.answer import Answer
from dragoman.report.answers import answer_all
from dragoman.report.canvas import Picture, Shape, colour, legend, place_axes, thousands
from dragoman.report.downsample import envelope
from dragoman.report.evidence import Evidence, load_evidence
from dragoman.report.findings import Findings, analyse
from dragoman.report.identity import flat_settings, hardware_rows, identity_rows, when
from dragoman.report.intervals import Floats
from dragoman.report.render import as_json, card_notes, write_files
from dragoman.report.templating import drawn, picture_files, render
from dragoman.report.wording import in_time

if TYPE_CHECKING:
    from matplotlib.figure import Figure

_TINTS = ("blue", "orange")
_NOT_COMPARED = {"Run", "Created", "Command", "Directory"}  # They differ in every pair of runs.


@dataclass(frozen=True)
class Side:
    """One of the two runs."""

    label: str
    evidence: Evidence
    findings: Findings
    answers: tuple[Answer, ...]


def compare_runs(first: Path, second: Path, output: Path, now: float | None = None) -> Path:
    """Write compare.html, compare.md and compare.json into a folder; return the page's path."""
    moment = time.time() if now is None else now
    sides = _load_sides((first, second), moment)
    pictures = {"curves": drawn([picture for picture in _pictures(sides) if picture])}
    questions = _questions(sides)
    settings = differing(*(flat_settings(side.evidence.settings) for side in sides))
    identity = differing(*(_identity(side.evidence) for side in sides))
    facts = _facts(sides)
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
            for own, other in zip(sides[0].answers, sides[1].answers, strict=True)
        ],
        "missing": {side.label: list(side.evidence.missing) for side in sides},
    }
    files = {
        **picture_files(pictures),
        "compare.json": as_json(report),
        "compare.md": render("compare.md.jinja", values).encode(),
        "compare.html": render("compare.html.jinja", values).encode(),
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


def differing(first: dict[str, Any], second: dict[str, Any]) -> dict[str, list[Any]]:
    """What the two do not share, with None where one of them says nothing."""
    names = list(dict.fromkeys((*first, *second)))
    return {
        name: [first.get(name), second.get(name)]
        for name in names
        if first.get(name) != second.get(name)
    }


def _identity(evidence: Evidence) -> dict[str, str]:
    rows = dict(identity_rows(evidence)) | dict(hardware_rows(evidence))
    return {key: value for key, value in rows.items() if key not in _NOT_COMPARED}


def _rows(differences: dict[str, list[Any]]) -> list[tuple[str, str, str]]:
    return [(name, _shown(one), _shown(other)) for name, (one, other) in differences.items()]


def _shown(value: Any) -> str:
    return "not set" if value is None else str(value)


def _questions(sides: Sequence[Side]) -> list[dict[str, Any]]:
    notes = [card_notes(side.evidence, side.findings) for side in sides]
    return [
        {
            "question": pair[0].question,
            "cells": [
                {"answer": answer, "note": notes[number][answer.id]}
                for number, answer in enumerate(pair)
            ],
        }
        for pair in zip(*(side.answers for side in sides), strict=True)
    ]


def _facts(sides: Sequence[Side]) -> list[dict[str, Any]]:
    """What the change did, each as numbers and as a sentence."""
    first, second = sides
    facts = []

    def add(name: str, values: Sequence[float | None], words: str) -> None:
        facts.append({"id": name, "first": values[0], "second": values[1], "words": words})

    times = [side.findings.times for side in sides]
    if times[0] and times[1]:
        ratio = times[0].mean / times[1].mean
        add(
            "step_time",
            [times[0].mean, times[1].mean],
            f"A step takes {in_time(times[0].mean)} in {first.label} and {in_time(times[1].mean)} "
            f"in {second.label}: {_times_as_fast(second.label, ratio)}.",
        )
    best = [_best_bleu(side.evidence) for side in sides]
    if best[0] is not None and best[1] is not None:
        add(
            "best_bleu",
            best,
            f"The best BLEU is {best[0]:.2f} in {first.label} and {best[1]:.2f} in "
            f"{second.label} ({best[1] - best[0]:+.2f}).",
        )
        goal = min(best[0], best[1])
        reached = [_seconds_to_bleu(side.evidence, goal) for side in sides]
        if reached[0] and reached[1]:
            add(
                "seconds_to_same_bleu",
                reached,
                f"BLEU {goal:.2f}, the highest that both reached, took {in_time(reached[0])} in "
                f"{first.label} and {in_time(reached[1])} in {second.label}: "
                f"{_times_as_fast(second.label, reached[0] / reached[1])}.",
            )
    walls = [side.findings.duration.wall for side in sides]
    if np.isfinite(walls).all():
        add(
            "wall_time",
            walls,
            f"The whole run took {in_time(walls[0])} and {in_time(walls[1])}.",
        )
    return facts


def _times_as_fast(label: str, ratio: float) -> str:
    if 0.98 < ratio < 1.02:
        return "no difference that matters"
    return f"{label} is {ratio:.2f} times as fast"


def _best_bleu(evidence: Evidence) -> float | None:
    series = evidence.evaluations
    if series is None or not np.isfinite(series.bleu).any():
        return None
    return float(np.nanmax(series.bleu))


def _seconds_to_bleu(evidence: Evidence, goal: float) -> float | None:
    series = evidence.evaluations
    if series is None:
        return None
    there = np.flatnonzero(series.bleu >= goal)
    return float(series.time[there[0]] - evidence.history.first_time) if len(there) else None


def _pictures(sides: Sequence[Side]) -> list[Picture | None]:
    over_steps = "over steps"
    over_time = "over time"
    return [
        _curves(sides, "bleu", over_steps, "BLEU", "lower right"),
        _curves(sides, "bleu", over_time, "BLEU", "lower right"),
        _curves(sides, "loss", over_steps, "eval loss", "upper right"),
        _curves(sides, "loss", over_time, "eval loss", "upper right"),
        _train_loss(sides),
        _step_times(sides),
    ]


def _curves(sides: Sequence[Side], metric: str, over: str, name: str, place: str) -> Picture | None:
    """One metric of both runs, over steps or over hours."""
    series = [
        (side, evaluations)
        for side in sides
        if (evaluations := side.evidence.evaluations) is not None
        and np.isfinite(getattr(evaluations, metric)).any()
    ]
    if not series:
        return None

    def draw(figure: "Figure", shape: Shape) -> None:
        axes = place_axes(figure, shape)[0]
        for side, evaluations in series:
            x = evaluations.step
            if over == "over time":
                x = (evaluations.time - side.evidence.history.first_time) / 3600
            tint = colour(_TINTS[sides.index(side)])
            axes.plot(x, getattr(evaluations, metric), color=tint, label=side.label)
        axes.set_ylabel(name)
        if over == "over time":
            axes.set_xlabel("hours since the start")
        else:
            axes.set_xlabel("step")
            thousands(axes, shape)
        legend(axes, place)

    return Picture(
        key=f"{metric}-{over.replace(' ', '-')}",
        title=f"{name[0].upper()}{name[1:]} {over}",
        caption="Over steps: which run learned more from each step."
        if over == "over steps"
        else "Over time: which run was quicker; pauses and restarts count.",
        height=280,
        draw=draw,
    )


def _train_loss(sides: Sequence[Side]) -> Picture | None:
    return _over_steps(
        sides,
        [side.evidence.history.train.loss for side in sides],
        key="train-loss",
        title="Training loss over steps",
        unit="loss, nats per token",
        caption="Mean of each stretch of steps, with the range of single steps.",
    )


def _step_times(sides: Sequence[Side]) -> Picture | None:
    return _over_steps(
        sides,
        [side.evidence.history.train.seconds for side in sides],
        key="step-time",
        title="Step time",
        unit="seconds per step",
        caption="Mean of each stretch of steps, with the range of single steps; evaluations and "
        "checkpoints excluded.",
    )


def _over_steps(
    sides: Sequence[Side],
    series: Sequence[Floats],
    *,
    key: str,
    title: str,
    unit: str,
    caption: str,
) -> Picture | None:
    if not any(np.isfinite(values).any() for values in series):
        return None

    def draw(figure: "Figure", shape: Shape) -> None:
        axes = place_axes(figure, shape)[0]
        highest = 0.0
        for side, values, tint in zip(sides, series, _TINTS, strict=True):
            curve = envelope(side.evidence.history.train.step, values, shape.stretches // 2)
            axes.fill_between(curve.x, curve.low, curve.high, color=colour(tint), alpha=0.15, lw=0)
            axes.plot(curve.x, curve.mean, color=colour(tint), label=side.label)
            if len(curve):
                highest = max(highest, float(np.percentile(curve.high, 98)))
        axes.set_ylim(top=1.05 * highest)
        axes.set_ylabel(unit)
        axes.set_xlabel("step")
        thousands(axes, shape)
        legend(axes, "upper right")

    return Picture(key=key, title=title, caption=caption, height=280, draw=draw)
