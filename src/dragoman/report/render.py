"""Evidence -> report.html, report.md with its pictures, and report.json."""

import json
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from dragoman import __version__
from dragoman.files import write_whole
from dragoman.report.answer import Answer, plain
from dragoman.report.answers import answer_all
from dragoman.report.evidence import Evidence, load_evidence
from dragoman.report.findings import Findings, analyse
from dragoman.report.identity import (
    hardware_rows,
    identity_rows,
    reproduce_lines,
    setting_rows,
    when,
)
from dragoman.report.plots import pictures_of
from dragoman.report.templating import drawn, flat_rows, picture_files, render
from dragoman.report.thresholds import all_thresholds
from dragoman.report.whatif import ASSUMPTIONS, Prediction
from dragoman.report.wording import in_bits_per_second, in_bytes, in_percent, in_time, plural

_SAMPLES_SHOWN = 5
_STATES = {
    "finished": "finished",
    "stopped": "stopped early",
    "running": "still running",
    "crashed": "broke off without an end",
    "not started": "has not started",
}


def write_report(run: Path, now: float | None = None) -> Path:
    """Read a run folder and write its report into it; return the path of the page."""
    moment = time.time() if now is None else now
    evidence = load_evidence(run, moment)
    findings = analyse(evidence)
    answers = answer_all(evidence, findings)
    pictures = {answer: drawn(chosen) for answer, chosen in pictures_of(evidence, findings).items()}
    values = _page_values(evidence, findings, answers, moment) | {"pictures": pictures}
    files = {
        **picture_files(pictures),
        "report.json": as_json([answer.to_json() for answer in answers]),
        "details.json": as_json(_details(evidence, findings, moment)),
        "report.md": render("report.md.jinja", values).encode(),
        "report.html": render("report.html.jinja", values).encode(),
    }
    folder = run / "report"
    write_files(folder, files)
    return folder / "report.html"


def write_files(folder: Path, files: Mapping[str, bytes]) -> None:
    """Write files whole, and remove pictures of an earlier report that are no longer in it."""
    folder.mkdir(parents=True, exist_ok=True)
    for path in folder.glob("*.svg"):
        if path.name not in files:
            path.unlink()
    for name, content in files.items():
        write_whole(folder / name, content)


def _page_values(
    evidence: Evidence, findings: Findings, answers: tuple[Answer, ...], moment: float
) -> dict[str, Any]:
    return {
        "name": evidence.name,
        "state": _STATES[evidence.state],
        "summary": _summary(evidence, findings),
        "answers": answers,
        "notes": card_notes(evidence, findings),
        "evidence_rows": {answer.id: flat_rows(plain(answer.evidence)) for answer in answers},
        "missing": evidence.missing,
        "predictions": [_prediction_row(row) for row in findings.predictions],
        "model_error": _model_error(findings),
        "assumptions": ASSUMPTIONS,
        "samples": _samples(evidence),
        "identity": identity_rows(evidence),
        "hardware": hardware_rows(evidence),
        "settings": setting_rows(evidence),
        "reproduce": reproduce_lines(evidence),
        "thresholds": [
            {
                "name": name.replace("_", " ").lower(),
                "value": f"{threshold.value:g} {threshold.unit}",
                "reason": threshold.reason,
            }
            for name, threshold in all_thresholds().items()
        ],
        "footer": f"Made by dragoman {__version__} on {when(moment)} from the files in "
        f"{evidence.run} alone.",
    }


def _summary(evidence: Evidence, findings: Findings) -> str:
    """The run in one line."""
    train, life = evidence.history.train, evidence.life
    parts = []
    if len(train):
        wall = in_time(findings.duration.wall)
        parts.append(f"{plural(int(train.step[-1]), 'step')} in {wall}")
    if life is not None:
        machines = plural(max(1, len(evidence.hosts)), "machine")
        device = life.device_name if life.device == "cuda" else "CPU"
        parts.append(f"{plural(life.workers, 'worker')} on {machines}, {device}")
    series = evidence.evaluations
    if series is not None and np.isfinite(series.bleu).any():
        best = int(np.nanargmax(series.bleu))
        parts.append(f"best BLEU {series.bleu[best]:.1f} at step {series.step[best]:,.0f}")
    stop = evidence.history.stop
    if stop is not None and stop.reason == "error":
        parts.append(f"stopped by an error: {stop.detail}")
    return "; ".join(parts) + "." if parts else "No step has been logged."


def card_notes(evidence: Evidence, findings: Findings) -> dict[str, str]:
    """One fact under each verdict."""
    times, network, series = findings.times, findings.network, evidence.evaluations
    train = evidence.history.train
    notes: dict[str, str] = {
        "duration": f"{plural(int(np.max(train.step, initial=0)), 'step')}",
        "fully_trained": "",
        "overfitting": "",
        "gpu_utilization": f"{findings.gpus.mean:.0f}% busy" if findings.gpus.gpus else "",
        "network_bottleneck": "",
        "learning_rate": "",
        "training_set": "of clean text",
        "checkpoint_files": "",
        "checkpoint_size": f"{plural(len(evidence.checkpoints.checkpoints), 'kept checkpoint')}",
        "step_time": f"median {in_time(times.median)}" if times else "",
        "step_time_vs_network": "",
        "whatif": "to 1,024 workers" if findings.predictions else "",
    }
    gain = findings.convergence.bleu
    if gain is not None:
        notes["fully_trained"] = f"{gain.expected:+.2f} BLEU from 50% more steps"
    if series is not None and np.isfinite(findings.overfitting.gap_last):
        notes["overfitting"] = f"gap to training text {findings.overfitting.gap_last:.3f}"
    if not findings.gpus.gpus and findings.gpus.cpu_percent is not None:
        notes["gpu_utilization"] = f"processors {findings.gpus.cpu_percent:.0f}% busy"
    if network is not None and np.isfinite(network.network_share) and network.machines > 1:
        notes["network_bottleneck"] = f"{in_percent(network.network_share)} of each step"
    elif network is not None and network.machines == 1:
        notes["network_bottleneck"] = plural(evidence.workers, "worker")
    if findings.law is not None:
        notes["learning_rate"] = f"peak {findings.law.peak:.2g} at {findings.law.peak_step:,}"
    found = findings.correlation
    if found is not None and found.correlation is not None:
        low, high = found.correlation.low, found.correlation.high
        notes["step_time_vs_network"] = f"{low:.2f} to {high:.2f}"
    return notes


def _prediction_row(row: Prediction) -> dict[str, Any]:
    return {
        "label": row.label,
        "cells": [
            f"{row.workers:,}",
            in_bits_per_second(row.bytes_per_second) if row.machines > 1 else "none",
            in_time(row.seconds_step),
            in_time(row.seconds_exposed),
            in_bytes(row.bytes_per_step),
            f"{row.tokens_per_second:,.0f}",
            in_percent(row.efficiency),
            in_time(3600 * row.hours) if row.hours is not None else "",
        ],
    }


def _model_error(findings: Findings) -> str:
    """How well the model foretells the run it was learned from."""
    if not findings.predictions or findings.times is None:
        return ""
    predicted, measured = findings.predictions[0].seconds_step, findings.times.mean
    error = round(100 * (predicted / measured - 1), 1) + 0.0
    return (
        "Every line is predicted from this run's own calibration. For the run itself it predicts "
        f"{in_time(predicted)} a step, measured were {in_time(measured)} "
        f"({error:+.1f}%)."
    )


def _samples(evidence: Evidence) -> list[dict[str, Any]]:
    """Each fixed sentence at its first, middle and last evaluation."""
    by_source: dict[str, list[tuple[int, str]]] = {}
    references = {}
    for sample in sorted(evidence.samples, key=lambda sample: sample.step):
        by_source.setdefault(sample.source, []).append((sample.step, sample.translation))
        references[sample.source] = sample.reference
    return [
        {
            "source": source,
            "reference": references[source],
            "translations": [
                history[place] for place in sorted({0, len(history) // 4, len(history) - 1})
            ],
        }
        for source, history in list(by_source.items())[:_SAMPLES_SHOWN]
    ]


def _details(evidence: Evidence, findings: Findings, moment: float) -> dict[str, Any]:
    """What the page shows beside the answers, for other programs."""
    return {
        "run": evidence.name,
        "state": evidence.state,
        "made": moment,
        "dragoman": __version__,
        "missing": evidence.missing,
        "predictions": [vars(row) for row in findings.predictions],
        "calibration": vars(findings.calibration) if findings.calibration else None,
        "thresholds": {name: vars(value) for name, value in all_thresholds().items()},
    }


def as_json(value: Any) -> bytes:
    """A value as a JSON file that any parser reads."""
    text = json.dumps(plain(value), indent=2, ensure_ascii=False, allow_nan=False)
    return f"{text}\n".encode()
