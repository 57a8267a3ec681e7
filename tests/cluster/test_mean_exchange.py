"""Everyone gets the same mean, and what rounding keeps back comes later."""

import json
import subprocess
import sys
from datetime import timedelta
from pathlib import Path

import pytest
import torch
import torch.distributed as distributed

from cluster.mean_worker import HOSTS, ROUNDS, vector_of
from dragoman.cluster.mean_exchange import MeanExchange
from dragoman.cluster.processes import Workers
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
    [("none", 1e-6, 1e-6), ("int8", 0.02, 0.002), ("int4", 0.3, 0.03), ("int2", 2.0, 0.2)],
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


def test_inside_one_machine_nothing_is_kept_back(tmp_path: Path) -> None:
    """What the checkpoint of a run remembers must not be what was in memory before."""
    distributed.init_process_group(
        "gloo", init_method=f"file://{tmp_path / 'store'}", rank=0, world_size=1
    )
    torch.use_deterministic_algorithms(True)  # Memory that nobody has written is not a number.
    try:
        alone = Workers(0, 1, torch.device("cpu"), ("here",))
        exchange = MeanExchange(alone, "int8", alone.device, timedelta(seconds=PATIENCE))
        mean, kept_back = exchange.start(torch.ones(1_500), torch.zeros(1_500)).wait()
        assert torch.equal(mean, torch.ones(1_500))
        assert kept_back is not None
        assert not kept_back.any()
    finally:
        torch.use_deterministic_algorithms(False)
        distributed.destroy_process_group()
