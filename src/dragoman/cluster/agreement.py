"""Before the first step, all workers compare what must be the same everywhere."""

import hashlib
import platform
import time
from collections.abc import Iterable
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy
import torch
from torch import Tensor

from dragoman import __version__
from dragoman.cluster.processes import Workers
from dragoman.config import Config
from dragoman.config_file import flatten
from dragoman.errors import UserError

MAX_CLOCK_SECONDS = 60.0


@dataclass(frozen=True)
class Facts:
    """What a worker stands for; equal on all, or the run would not be one run."""

    dragoman: str
    code: str  # Of a checkout, that has the same version for long.
    torch: str
    numpy: str
    python: str
    sentencepiece: str  # It draws the subwords of training.subword_dropout.
    corpus: str
    parameters: str
    settings: dict[str, Any]  # By their dotted names.

    @staticmethod
    def collect(config: Config, corpus: str, parameters: Iterable[Tensor]) -> "Facts":
        """Gather this worker's facts; corpus and weights as checksums."""
        return Facts(
            dragoman=__version__,
            code=checksum_of_code()[:12],
            torch=torch.__version__.split("+")[0],
            numpy=numpy.__version__,
            python=".".join(platform.python_version_tuple()[:2]),
            sentencepiece=version("sentencepiece"),
            corpus=corpus[:12],
            parameters=checksum(parameters)[:12],
            settings=flatten(config),
        )

    def by_name(self) -> dict[str, Any]:
        """Every fact and every setting."""
        facts = vars(self) | self.settings
        del facts["settings"]
        return facts


def agree(facts: Facts, workers: Workers) -> list[float]:
    """Refuse differences, naming hosts and values; return each clock's lead over worker 0's."""
    workers.barrier()  # Clocks are read when everyone is there.
    started = time.time()
    everyone = workers.gather_json([facts.by_name(), time.time()])
    # All answers are taken within one exchange, which bounds the error of the comparison.
    took = time.time() - started
    first = everyone[0][0]
    problems = [
        f"{workers.hosts[rank]} (worker {rank}) has {name} {theirs.get(name)}, "
        f"{workers.hosts[0]} (worker 0) has {first.get(name)}"
        for rank, (theirs, _) in enumerate(everyone)
        for name in first | theirs
        if theirs.get(name) != first.get(name)
    ]
    leads = [clock - everyone[0][1] for _, clock in everyone]
    problems += [
        f"the clock of {workers.hosts[rank]} is {lead:+.0f} s off that of {workers.hosts[0]}"
        for rank, lead in enumerate(leads)
        if abs(lead) > MAX_CLOCK_SECONDS + took
    ]
    if problems:
        raise UserError("the machines differ: " + "; ".join(dict.fromkeys(problems)))
    return leads


def checksum_of_code() -> str:
    """Checksum of all of Dragoman's own modules."""
    package, digest = Path(__file__).parents[1], hashlib.sha256()
    for path in sorted(package.rglob("*.py")):
        digest.update(str(path.relative_to(package)).encode() + b"\0" + path.read_bytes())
    return digest.hexdigest()


def checksum(tensors: Iterable[Tensor]) -> str:
    """Checksum of tensors' bytes."""
    digest = hashlib.sha256()
    for tensor in tensors:
        digest.update(tensor.detach().cpu().contiguous().view(torch.uint8).numpy().data)
    return digest.hexdigest()
