"""Weights interpolated between a run and the one it started from."""

from copy import deepcopy
from dataclasses import replace

import torch

from dragoman.errors import UserError
from dragoman.inference.load import TrainedModel
from dragoman.inference.parent import parent_of
from dragoman.runs.checkpoint_index import checkpoint_name
from dragoman.runs.folder import RunFolder


def blend_with_parent(trained: TrainedModel, run: RunFolder, share: float) -> TrainedModel:
    """Mix `share` of a trained model with the rest of its parent."""
    if not 0 <= share <= 1:
        raise UserError(
            f"--blend {share:g}: must be from 0 (the weights it started from) to 1 (its own)"
        )
    parent = parent_of(run)
    if trained.checkpoints == [checkpoint_name(0)]:
        raise UserError(
            f"--blend: the best checkpoint of {run.path} is that of step 0, the weights it started "
            "from; choose another with --checkpoint latest"
        )
    child = trained.translator.model
    old = deepcopy(child)
    parent.load(old)
    with torch.no_grad():
        for mine, theirs in zip(child.parameters(), old.parameters(), strict=True):
            mine.lerp_(theirs, 1 - share)
    each, of_parent = share / len(trained.checkpoints), (1 - share) / len(parent.checkpoints)
    names = [f"{each:.3g} of {name}" for name in trained.checkpoints]
    names += [f"{of_parent:.3g} of {parent.run.name} {name}" for name in parent.checkpoints]
    return replace(trained, checkpoints=names)
