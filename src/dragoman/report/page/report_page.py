"""Evidence -> report.html, report.md with its pictures, and report.json."""

import time
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np

from dragoman import __version__
from dragoman.languages import language_name
from dragoman.prediction.assumptions import assumptions_of
from dragoman.report.answers import answer_all
from dragoman.report.answers.answer import SEE_WHAT_IS_MISSING, Answer, plain
from dragoman.report.answers.gained_and_forgotten import adaptation_answers
from dragoman.report.evidence import Evidence, load_evidence
from dragoman.report.findings.analysis import Findings, analyse
from dragoman.report.page.identity import (
    hardware_rows,
    identity_rows,
    reproduce_lines,
    setting_rows,
    when,
)
from dragoman.report.page.plots import pictures_of
from dragoman.report.page.templating import (
    as_json,
    drawn,
    flat_rows,
    picture_files,
    render,
    write_files,
)
from dragoman.report.page.whatif_table import prediction_cells, trust_words
from dragoman.runs.folder import RunFolder
from dragoman.thresholds import all_thresholds
from dragoman.wording import in_time, plural

_SAMPLES_SHOWN = 5
_LONGEST_SAMPLE = 200  # Letters: what knows no end yet need not be read to its end.
_MOST_ADVICE = 3
_STATES = {
    "finished": "finished",
    "stopped": "stopped early",
    "running": "still running, according to its log",
    "crashed": "ended without a final log line",
    "not started": "has not started",
    "lost": "history is missing",
}


def write_report(run: Path, now: float | None = None, output: Path | None = None) -> Path:
    """Read a run folder and write its report, into it or elsewhere; return the page's path."""
    moment = time.time() if now is None else now
    evidence = load_evidence(run, moment)
    findings = analyse(evidence)
    answers = (*answer_all(evidence, findings), *adaptation_answers(evidence))
    pictures = {answer: drawn(chosen) for answer, chosen in pictures_of(evidence, findings).items()}
    values = _page_values(evidence, findings, answers, moment) | {"pictures": pictures}
    files = {
        **picture_files(pictures),
        "report.json": as_json([answer.to_json() for answer in answers]),
        "details.json": as_json(_details(evidence, findings, moment)),
        "report.md": render("report.md.jinja", values),
        "report.html": render("report.html.jinja", values),
    }
    folder = output or RunFolder(run).report
    write_files(folder, files)
    return folder / "report.html"


def _page_values(
    evidence: Evidence, findings: Findings, answers: tuple[Answer, ...], moment: float
) -> dict[str, Any]:
    return {
        "name": evidence.name,
        "folder": str(evidence.run),
        "state": _STATES[evidence.state],
        "summary": _summary(evidence, findings),
        "answers": answers,
        "advice": _advice(answers),
        "evidence_rows": {answer.id: flat_rows(plain(answer.evidence)) for answer in answers},
        "missing": evidence.missing,
        "predictions": prediction_cells(findings.predictions, evidence.history.train.last_step),
        "trust": trust_words(findings, findings.predictions),
        "assumptions": assumptions_of(findings.calibration, findings.predictions)
        if findings.calibration
        else [],
        "samples": _samples(evidence),
        "identity": identity_rows(evidence),
        "hardware": hardware_rows(evidence),
        "settings": setting_rows(evidence),
        "reproduce": reproduce_lines(evidence),
        "thresholds": [
            (name.replace("_", " ").lower(), f"{item.value:g} {item.unit}", item.reason)
            for name, item in all_thresholds().items()
        ],
        "footer": f"Made by dragoman {__version__} on {when(moment)} from the files in "
        f"{evidence.run} alone.",
    }


def _advice(answers: tuple[Answer, ...]) -> list[Answer]:
    """The answers whose next steps matter most, each step once."""
    worrying = [answer for tone in ("bad", "caution") for answer in answers if answer.tone == tone]
    worrying += [
        answer
        for answer in answers
        if answer.headline == "Unclear" and answer.next_step != SEE_WHAT_IS_MISSING
    ]
    steps = [answer.next_step for answer in worrying]
    first = [
        answer for place, answer in enumerate(worrying) if answer.next_step not in steps[:place]
    ]
    return first[:_MOST_ADVICE]


def _summary(evidence: Evidence, findings: Findings) -> str:
    """The run in one line."""
    train, attempt = evidence.history.train, evidence.attempt
    parts = []
    languages = evidence.corpus.languages
    if len(languages) == 2:
        parts.append(" to ".join(language_name(code) for code in languages.values()))
    if len(train):
        wall = in_time(findings.duration.wall)
        parts.append(f"{plural(train.last_step, 'step')} in {wall}")
    if attempt is not None:
        machines = plural(max(1, len(evidence.hosts)), "machine")
        device = attempt.began.device_name if attempt.began.device == "cuda" else "CPU"
        parts.append(f"{plural(attempt.began.workers, 'worker')} on {machines}, {device}")
    series = evidence.evaluations
    if series is not None and np.isfinite(series.bleu).any():
        best = int(np.nanargmax(series.bleu))
        parts.append(f"best BLEU {series.bleu[best]:.1f} at step {series.step[best]:,.0f}")
    end = evidence.history.end
    if end is not None and end.reason == "error":
        parts.append(f"stopped by an error: {end.detail}")
    elif end is not None and end.reason in ("epochs", "hours", "patience", "gain_unlikely"):
        parts.append(f"ended by training.{end.reason}")
    return "; ".join(parts) + "." if parts else "No step has been logged."


def _samples(evidence: Evidence) -> list[dict[str, Any]]:
    """Each fixed sentence at its first evaluation, after a quarter of them, and at its last."""
    by_source: dict[str, list[tuple[int, str]]] = {}
    references = {}
    for sample in sorted(evidence.samples, key=lambda sample: sample.step):
        text = sample.translation
        shown = text if len(text) <= _LONGEST_SAMPLE else f"{text[:_LONGEST_SAMPLE]} …"
        by_source.setdefault(sample.source, []).append((sample.step, shown))
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
        "predictions": [asdict(row) for row in findings.predictions],
        "calibration": asdict(findings.calibration) if findings.calibration else None,
        "thresholds": {name: asdict(value) for name, value in all_thresholds().items()},
    }
