"""What a run was: settings, versions, hardware, command, and how to do it again."""

import json
import re
import shlex
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any

from dragoman.report.evidence import Evidence
from dragoman.report.evidence.json_lines import table_of
from dragoman.report.wording import in_bytes, plural


def identity_rows(evidence: Evidence) -> list[tuple[str, str]]:
    """Versions, place and origin of the run."""
    known = evidence.provenance
    git, corpus, model = (table_of(known.get(name)) for name in ("git", "corpus", "model"))
    life = evidence.life
    rows = [
        ("Run", evidence.name),
        ("Created", when(known.get("created"))),
        ("Command", shlex.join(_command(evidence))),
        ("Directory", known.get("directory")),
        ("Dragoman", known.get("dragoman")),
        ("Its commit", _git(git)),
        ("Python", known.get("python")),
        ("PyTorch", known.get("torch")),
        ("NumPy", known.get("numpy")),
        ("CUDA", known.get("cuda") or ("none" if known else "")),
        ("Workers", f"{evidence.workers:,} on {', '.join(evidence.hosts)}" if life else ""),
        ("Device", f"{life.device_name or life.device}, {life.precision}" if life else ""),
        ("Parameters", f"{model['parameters']:,}" if model.get("parameters") else ""),
        ("Corpus", corpus.get("folder")),
        ("Corpus identity", corpus.get("identity")),
        ("Score", evidence.evaluations.signature if evidence.evaluations else ""),
    ]
    return [(key, str(value)) for key, value in rows if value]


def hardware_rows(evidence: Evidence) -> list[tuple[str, str]]:
    """One row for each machine."""
    rows = []
    for host, machine in table_of(evidence.provenance.get("machines")).items():
        machine = table_of(machine)
        gpus = [table_of(gpu) for gpu in machine.get("gpus") or []]
        names = list(dict.fromkeys(str(gpu.get("name")) for gpu in gpus))
        parts = [
            str(machine.get("cpu", "")),
            plural(int(machine["cores"]), "core") if machine.get("cores") else "",
            in_bytes(machine["memory_bytes"]) if machine.get("memory_bytes") else "",
            f"{len(gpus)} x {', '.join(names)}" if gpus else "no GPU",
            str(machine.get("system", "")),
        ]
        rows.append((str(host), ", ".join(part for part in parts if part)))
    return rows


def setting_rows(evidence: Evidence) -> list[tuple[str, str]]:
    """Every setting with its dotted name."""
    return [
        (name, json.dumps(value, ensure_ascii=False, default=str))
        for name, value in flat_settings(evidence.settings).items()
    ]


def flat_settings(settings: Mapping[str, Any]) -> dict[str, Any]:
    """Sections and settings as dotted names."""
    flat: dict[str, Any] = {}
    for section, table in settings.items():
        if isinstance(table, Mapping):
            flat |= {f"{section}.{key}": value for key, value in table.items()}
        else:
            flat[section] = table
    return flat


def reproduce_lines(evidence: Evidence) -> list[str]:
    """Commands that make the same run again."""
    known = evidence.provenance
    git, corpus = table_of(known.get("git")), table_of(known.get("corpus"))
    lines = []
    if _is_hash(git.get("commit")):
        lines.append(f"git checkout {git['commit']}  # of Dragoman")
        if git.get("dirty"):
            lines.append("# there were uncommitted changes: the commit alone is not what ran")
    config = shlex.quote(f"{evidence.run}/config.toml")
    again = shlex.quote(f"{evidence.name}-again")
    lines.append(f"dragoman prepare {config}")
    if _is_hash(corpus.get("identity")):
        lines.append(f"# the corpus must have the identity {corpus['identity']}")
    lines.append(f"dragoman train {config} --run {again}{_placement(evidence)}")
    return lines


def _is_hash(value: Any) -> bool:
    """Whether a reader may paste it into a shell."""
    return isinstance(value, str) and re.fullmatch(r"[0-9a-f]+", value) is not None


def _command(evidence: Evidence) -> list[str]:
    command = evidence.provenance.get("command")
    return [str(word) for word in command] if isinstance(command, list) else []


def _placement(evidence: Evidence) -> str:
    """The part of a command that says where workers run."""
    words, kept = _command(evidence), list[str]()
    for option in ("--workers", "--hosts"):
        for place, word in enumerate(words):
            if word == option and place + 1 < len(words):
                kept += [word, words[place + 1]]
            elif word.startswith(f"{option}="):
                kept.append(word)
    if not kept and evidence.workers > 1 and len(evidence.hosts) == 1:
        kept = ["--workers", str(evidence.workers)]
    return f" {shlex.join(kept)}" if kept else ""


def when(moment: Any) -> str:
    """A time of day in UTC."""
    if not isinstance(moment, (int, float)) or isinstance(moment, bool):
        return ""
    return datetime.fromtimestamp(moment, UTC).strftime("%Y-%m-%d %H:%M UTC")


def _git(git: Mapping[str, Any]) -> str:
    if not git.get("commit"):
        return ""
    return f"{git['commit']}{', with uncommitted changes' if git.get('dirty') else ''}"
