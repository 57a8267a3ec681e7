"""Everyone gets the same mean, and what rounding keeps back comes later."""

import json
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from cluster.mean_worker import HOSTS, ROUNDS, vector_of
from forked import OPTION
from support import PATIENCE


def exchange(folder: Path, form: str) -> list[dict[str, torch.Tensor]]:
    worker = [sys.executable, *OPTION, "-m", "cluster.mean_worker"]
    processes = [
        subprocess.Popen(
            [*worker, str(rank), str(folder / "store"), form],
            cwd=Path(__file__).parents[1],
            stdout=subprocess.PIPE,
            text=True,
        )
        for rank in range(len(HOSTS))
    ]
    told = [process.communicate(timeout=PATIENCE)[0] for process in processes]
    return [
        {name: torch.tensor(values) for name, values in json.loads(one).items()} for one in told
    ]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("form", "once", "in_the_long_run"),
    # Of the largest element: 15 levels are coarse, but nothing stays behind.
    [("none", 1e-6, 1e-6), ("int8", 0.02, 0.002), ("int4", 0.3, 0.03)],
)
def test_the_mean_is_the_same_everywhere_and_loses_nothing_for_good(
    tmp_path: Path, form: str, once: float, in_the_long_run: float
) -> None:
    everyone = exchange(tmp_path, form)
    for other in everyone[1:]:
        assert torch.equal(other["first"], everyone[0]["first"])
        assert torch.equal(other["total"], everyone[0]["total"])
    means = [sum(vector_of(rank, turn) for rank in range(3)) / 3 for turn in range(ROUNDS)]
    largest = float(means[0].abs().max())  # type: ignore[union-attr]
    off = (everyone[0]["first"] - means[0]).abs().max()
    assert off <= once * largest
    total = torch.stack(means).sum(dim=0)  # type: ignore[arg-type]
    # The mean over all rounds is off by what is kept back at the end alone.
    assert (everyone[0]["total"] - total).abs().max() / ROUNDS <= in_the_long_run * largest
