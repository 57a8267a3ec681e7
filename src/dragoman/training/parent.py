"""Starts a run from the weights of another one, which a single machine needs to have."""

from dataclasses import dataclass
from pathlib import Path

from dragoman.cluster.processes import Workers
from dragoman.config import Config
from dragoman.documents import encode, parse
from dragoman.inference.parent import find_parent, refuse_other_vocabulary
from dragoman.records import ParentRun
from dragoman.runs.folder import RunFolder
from dragoman.training.parts import Parts


@dataclass(frozen=True)
class ParentFound:
    """The run to start from, and a worker whose machine has it."""

    described: ParentRun
    rank: int


def parent_everywhere(
    config: Config, run: RunFolder, parts: Parts, workers: Workers
) -> ParentFound | None:
    """Find the run to start from, and load it where it is found; None if none is needed."""
    has_checkpoint = any(run.checkpoints.glob("step-*/"))
    if not config.training.start_from or any(workers.gather_number(has_checkpoint)):
        return None
    path = Path(config.training.start_from)
    seen = workers.gather_number(path.is_dir())
    rank, mine = seen.index(max(seen)), None
    if workers.rank == rank:
        mine = find_parent(config)
        refuse_other_vocabulary(mine, parts.corpus.manifest, parts.corpus.folder)
        mine.load(parts.model)
    told = workers.broadcast(encode(mine.described()) if mine else None, rank)
    return ParentFound(parse(ParentRun, told), rank)


def share_parent(parent: ParentFound, parts: Parts, workers: Workers) -> None:
    """Give every worker the weights to start from."""
    workers.broadcast_tensors((value.data for value in parts.model.parameters()), parent.rank)
    parts.step.weights_changed()
