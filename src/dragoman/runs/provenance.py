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
from dragoman.documents import encode, read_document
from dragoman.errors import UserError
from dragoman.files import write_whole
from dragoman.records import (
    CorpusOrigin,
    GitState,
    GpuHardware,
    MachineHardware,
    ModelSize,
    ParentRun,
    Provenance,
    Versioned,
)
from dragoman.runs.folder import FORMAT, RunFolder


def describe_run(
    run: RunFolder,
    corpus: Path,
    manifest: dict[str, Any],
    parameters: int,
    tensors: int,
    parent: ParentRun | None = None,
    identity: str = "",
) -> Provenance:
    """Collect all that a reader needs to reproduce a run; `corpus` is the prepared folder."""
    command = shlex.split(os.environ.get(COMMAND_VARIABLE, "")) or ["dragoman", *sys.argv[1:]]
    return Provenance(
        format=FORMAT,
        run=run.name,
        created=time.time(),
        dragoman=__version__,
        python=platform.python_version(),
        torch=torch.__version__,
        numpy=numpy.__version__,
        cuda=torch.version.cuda,
        command=tuple(command),
        directory=str(Path.cwd()),
        git=git_state(),
        corpus=CorpusOrigin(str(corpus.resolve()), manifest["identity"], manifest),
        model=ModelSize(parameters, tensors),
        machines={},
        parent=parent,
        identity=identity,
    )


def write_provenance(run: RunFolder, provenance: Provenance) -> None:
    """Put it into the run folder."""
    write_whole(run.provenance, json.dumps(encode(provenance), indent=2).encode())


def read_provenance(run: RunFolder) -> Provenance:
    """Read what `describe_run` said of a run."""
    remedy = "restore it, or start a new run with --run"
    written = read_document(run.provenance, Versioned, remedy).format
    if written != FORMAT:
        raise UserError(
            f"{run.provenance} has format {written}, this Dragoman reads {FORMAT}; "
            "use the one that wrote it, or start a new run with --run"
        )
    return read_document(run.provenance, Provenance, remedy)


def describe_machine() -> MachineHardware:
    """Hardware and system of this machine."""
    gpus = map(torch.cuda.get_device_properties, range(torch.cuda.device_count()))
    return MachineHardware(
        cpu=_cpu_name(),
        cores=len(os.sched_getaffinity(0)),
        memory_bytes=psutil.virtual_memory().total,
        gpus=tuple(GpuHardware(one.name, one.total_memory) for one in gpus),
        system=platform.platform(),
    )


def git_state() -> GitState | None:
    """Commit of the checkout that Dragoman runs from, if any, and whether its code was changed."""
    try:
        _git("ls-files", "--error-unmatch", __file__)  # Not installed within another checkout.
        return GitState(_git("rev-parse", "HEAD"), bool(_git("status", "--short", ".")))
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
