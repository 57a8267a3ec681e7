"""Where a run came from: versions, hardware, command, git state, corpus."""

import json
import os
import platform
import shlex
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy
import psutil
import torch

from dragoman import __version__
from dragoman.cluster.control_store import COMMAND_VARIABLE
from dragoman.errors import UserError
from dragoman.runs.folder import FORMAT, RunFolder


def describe_run(
    run: RunFolder, corpus: Path, manifest: dict[str, Any], parameters: int, tensors: int
) -> dict[str, Any]:
    """Collect all that a reader needs to reproduce a run; `corpus` is the prepared folder."""
    return {
        "format": FORMAT,
        "run": run.name,
        "created": time.time(),
        "dragoman": __version__,
        "python": platform.python_version(),
        "torch": torch.__version__,
        "numpy": numpy.__version__,
        "cuda": torch.version.cuda,
        "command": shlex.split(os.environ.get(COMMAND_VARIABLE, "")) or ["dragoman", *sys.argv[1:]],
        "directory": str(Path.cwd()),
        "git": git_state(),
        "corpus": {
            "folder": str(corpus.resolve()),
            "identity": manifest["identity"],
            "manifest": manifest,
        },
        "model": {"parameters": parameters, "tensors": tensors},
        "machines": {},
    }


def read_provenance(run: RunFolder) -> dict[str, Any]:
    """Read what `describe_run` said of a run."""
    try:
        provenance: dict[str, Any] = json.loads(run.provenance.read_text("utf-8"))
        form, _, _ = provenance["format"], provenance["machines"], provenance["corpus"]["identity"]
    except (ValueError, KeyError, TypeError):
        raise UserError(
            f"{run.provenance} is damaged; restore it, or start a new run with --run"
        ) from None
    if form != FORMAT:
        raise UserError(
            f"{run.provenance} has format {form}, this Dragoman reads {FORMAT}; "
            "use the one that wrote it, or start a new run with --run"
        )
    return provenance


def describe_machine() -> dict[str, Any]:
    """Hardware and system of this machine."""
    return {
        "cpu": _cpu_name(),
        "cores": len(os.sched_getaffinity(0)),
        "memory_bytes": psutil.virtual_memory().total,
        "gpus": [
            {"name": properties.name, "memory_bytes": properties.total_memory}
            for properties in map(
                torch.cuda.get_device_properties, range(torch.cuda.device_count())
            )
        ],
        "system": platform.platform(),
    }


def git_state() -> dict[str, Any] | None:
    """Commit of the checkout that Dragoman runs from, if any, and whether its code was changed."""
    try:
        _git("ls-files", "--error-unmatch", __file__)  # Not installed within another checkout.
        return {"commit": _git("rev-parse", "HEAD"), "dirty": bool(_git("status", "--short", "."))}
    except (OSError, subprocess.CalledProcessError):
        return None


def _git(*arguments: str) -> str:
    package = Path(__file__).parents[1]
    words = ["git", *arguments]
    result = subprocess.run(words, cwd=package, capture_output=True, text=True, check=True)
    return result.stdout.strip()


def _cpu_name() -> str:
    try:
        with open("/proc/cpuinfo") as lines:
            names = [line.split(":", 1)[1].strip() for line in lines if "model name" in line]
    except OSError:
        names = []
    return names[0] if names else platform.processor()
