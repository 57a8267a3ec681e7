"""Local steps over several machines, one of which is lost for a while."""

import json
import signal
from pathlib import Path

import pytest
from safetensors.torch import load_file

from launched import LONG
from machines import Network, end_of, run_on, training, wait_for_all
from support import SMALL, has_step, metrics, wait_until

pytestmark = [pytest.mark.slow, pytest.mark.network]

SETTINGS = [
    *SMALL,
    *LONG,
    "checkpoints.every_steps=8",
    "distributed.sync=local",
    "distributed.local_steps=4",
    "distributed.min_workers=1",
    "distributed.timeout_seconds=10",
]


def common_tensors(run: Path) -> dict[str, object]:
    """What all machines hold alike at the end of a run: weights and their outer momentum."""
    index = json.loads((run / "checkpoints/checkpoints.json").read_text())
    latest = run / "checkpoints" / index["latest"]
    moments = load_file(latest / "optimizer.safetensors")
    outer = {name: one.tolist() for name, one in moments.items() if name.endswith("momentum")}
    weights = load_file(latest / "weights.safetensors")
    return {"name": latest.name, **outer, **{name: one.tolist() for name, one in weights.items()}}


def test_lost_machine_joins_again_and_all_end_alike(net: Network, prepared: Path) -> None:
    survivor, victim = net.machines
    with training(net, prepared / "config.toml", *SETTINGS) as process:
        run = run_on(net, survivor)
        wait_for_all(net, run, 20)
        victim.kill()
        wait_until(lambda: bool(metrics(run, "lost")))
        alone = metrics(run, "lost")[-1]["step"]
        wait_until(lambda: metrics(run, "train")[-1]["step"] > alone + 20)
        victim.start()
        wait_until(lambda: metrics(run, "restart")[-1]["joined"] == [victim.name])
        together = metrics(run, "joined")[-1]["step"]
        wait_until(lambda: has_step(run_on(net, victim), together + 20))
        process.send_signal(signal.SIGINT)
        output = end_of(net, process)
    assert process.returncode == 4, output
    assert common_tensors(run) == common_tensors(run_on(net, victim))
    last = metrics(run, "restart")[-1]
    assert sorted(last["hosts"]) == ["hostA", "hostB"]
