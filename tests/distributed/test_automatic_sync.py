"""`sync = "auto"`: what is chosen for a link, and that a run keeps to it."""

import subprocess
from pathlib import Path

import pytest

from dragoman.config import FEW_BITS
from dragoman.config_file import load_saved_config
from machines import Network, end_of, run_on, training
from support import PATIENCE, SMALL, run_dragoman

pytestmark = pytest.mark.slow
AUTO = [*SMALL, "distributed.sync=auto"]


def test_one_worker_sends_nothing_and_goes_on_as_it_began(prepared: Path) -> None:
    run = prepared / "run"
    command = ["train", str(prepared / "config.toml"), "--run", str(run), *AUTO]
    first = run_dragoman(*command, "training.steps=2")
    assert 'sync = "auto" chooses gradients' in first.stdout + first.stderr
    assert load_saved_config(run / "config.toml").distributed.sync == "gradients"
    again = run_dragoman(*command, "training.steps=4")
    assert again.returncode == 0, again.stderr
    assert 'sync = "auto" keeps sync = "gradients"' in again.stdout + again.stderr


@pytest.mark.network
def test_local_steps_are_chosen_for_a_slow_link_and_kept(net: Network, prepared: Path) -> None:
    for machine in net.machines:
        machine.limit("20mbit")
    for steps, is_told in ((40, True), (60, False)):
        with training(net, prepared / "config.toml", *AUTO, f"training.steps={steps}") as process:
            output = end_of(net, process)
        assert process.returncode == 0, output
        assert ("local steps in" in output) is is_told
    chosen = [load_saved_config(run_on(net, one) / "config.toml") for one in net.machines]
    first, second = (one.distributed for one in chosen)
    assert first == second
    assert first.sync == "local"
    assert first.compression in FEW_BITS


@pytest.mark.network
def test_a_link_too_slow_for_one_gradient_is_measured_all_the_same(
    net: Network, prepared: Path
) -> None:
    """4.7 MB take 12 s at 3 Mb/s, twice as long as anyone would wait."""
    for machine in net.machines:
        machine.limit("3mbit")
    wide = ["model.d_model=256", "model.feed_forward=256", "distributed.timeout_seconds=6"]
    config = prepared / "config.toml"
    checked = subprocess.run(
        net.dragoman("check", config, "--hosts", "hostA,hostB", *AUTO, *wide),
        env=net.environment(),
        capture_output=True,
        text=True,
        timeout=PATIENCE,
    )
    assert "gradients would spend" in checked.stdout, checked.stderr
    assert "local steps in" in checked.stdout
    with training(net, config, *AUTO, *wide, "training.steps=2") as process:
        output = end_of(net, process)
    assert process.returncode == 0, output
    assert "local steps in" in output
