"""The identity of a run: settings, versions, hardware, command, and how to reproduce it."""

import json
import shlex
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any

from dragoman.contradictions import IDLE_WITH_A_VOCABULARY, WHERE_A_VOCABULARY_IS
from dragoman.notify import command_without_secrets, without_secrets
from dragoman.records import GitState
from dragoman.report.evidence import Evidence
from dragoman.report.evidence.json_lines import table_of
from dragoman.wording import in_bytes, plural


def identity_rows(evidence: Evidence) -> list[tuple[str, str]]:
    """Versions, place and origin of the run."""
    known = evidence.provenance
    began = evidence.attempt.began if evidence.attempt else None
    parameters = known.model.parameters
    rows = [
        ("Run", evidence.name),
        ("Created", when(known.created)),
        ("Command", shlex.join(command_without_secrets(known.command))),
        ("Directory", known.directory),
        ("Dragoman", known.dragoman),
        ("Dragoman commit", _git(known.git)),
        ("Python", known.python),
        ("PyTorch", known.torch),
        ("NumPy", known.numpy),
        ("CUDA", known.cuda or ("none" if known.torch else "")),
        ("Workers", f"{evidence.workers:,} on {', '.join(evidence.hosts)}" if began else ""),
        ("Device", f"{began.device_name or began.device}, {began.precision}" if began else ""),
        ("Parameters", f"{parameters:,}" if parameters else ""),
        ("Corpus", known.corpus.folder),
        ("Corpus identity", known.corpus.identity),
        ("BLEU signature", evidence.evaluations.signature if evidence.evaluations else ""),
    ]
    return [(key, str(value)) for key, value in rows if value]


def hardware_rows(evidence: Evidence) -> list[tuple[str, str]]:
    """One row for each machine."""
    rows = []
    for host, machine in evidence.provenance.machines.items():
        names = list(dict.fromkeys(gpu.name for gpu in machine.gpus))
        parts = [
            machine.cpu,
            plural(machine.cores, "core") if machine.cores else "",
            in_bytes(machine.memory_bytes) if machine.memory_bytes else "",
            f"{len(machine.gpus)} x {', '.join(names)}" if machine.gpus else "no GPU",
            machine.system,
        ]
        rows.append((host, ", ".join(part for part in parts if part)))
    return rows


def setting_rows(evidence: Evidence) -> list[tuple[str, str]]:
    """Every setting with its dotted name."""
    return [
        (name, json.dumps(value, ensure_ascii=False, default=str))
        for name, value in flat_settings(evidence.settings).items()
    ]


def flat_settings(settings: Mapping[str, Any]) -> dict[str, Any]:
    """Sections and settings as dotted names, without secrets and what has no effect."""
    flat: dict[str, Any] = {}
    vocabulary = table_of(settings.get("vocabulary"))
    is_given = any(vocabulary.get(name) for name in WHERE_A_VOCABULARY_IS)
    for section, table in settings.items():
        if isinstance(table, Mapping):
            flat |= {f"{section}.{key}": value for key, value in table.items()}
        else:
            flat[section] = table
    idle = {f"vocabulary.{name}" for name in IDLE_WITH_A_VOCABULARY if is_given}
    return without_secrets({name: value for name, value in flat.items() if name not in idle})


def reproduce_lines(evidence: Evidence) -> list[str]:
    """Commands that make the same run again."""
    known = evidence.provenance
    lines = []
    if known.git:
        lines.append(f"git checkout {known.git.commit}  # of Dragoman")
        if known.git.dirty:
            lines.append(
                "# there were uncommitted changes: the commit alone does not reproduce the run"
            )
    config = shlex.quote(f"{evidence.run}/config.toml")
    again = shlex.quote(f"{evidence.name}-again")
    if not evidence.settings:
        lines.append("# config.toml is missing or unreadable: put it back first")
    lines.append(f"dragoman prepare {config}")
    if known.corpus.identity:
        lines.append(f"# the corpus identity must be {known.corpus.identity}")
    lines.append(f"dragoman train {config} --run {again}{_placement(evidence)}")
    return lines


def _placement(evidence: Evidence) -> str:
    """The part of a command that says where workers run."""
    words, kept = evidence.provenance.command, list[str]()
    for option in ("--workers", "--hosts"):
        for place, word in enumerate(words):
            if word == option and place + 1 < len(words):
                kept += [word, words[place + 1]]
            elif word.startswith(f"{option}="):
                kept.append(word)
    if not kept and evidence.workers > 1 and len(evidence.hosts) == 1:
        kept = ["--workers", str(evidence.workers)]
    return f" {shlex.join(kept)}" if kept else ""


def when(moment: float) -> str:
    """A time of day in UTC; nothing if there is no such time."""
    try:
        return datetime.fromtimestamp(moment, UTC).strftime("%Y-%m-%d %H:%M UTC")
    except (ValueError, OverflowError, OSError):
        return ""


def _git(git: GitState | None) -> str:
    if git is None:
        return ""
    return f"{git.commit}{', with uncommitted changes' if git.dirty else ''}"
