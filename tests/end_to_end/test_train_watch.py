"""`train --watch`: the live page beside a real run, which it neither hurts nor outlives."""

import json
import os
import re
import subprocess
import urllib.request
from pathlib import Path
from typing import Any

import psutil
import pytest

from support import SMALL, dragoman_command, wait_until

pytestmark = pytest.mark.slow


def _state(address: str) -> dict[str, Any]:
    with urllib.request.urlopen(f"{address}state.json") as answer:
        found: dict[str, Any] = json.load(answer)
        return found


def test_the_page_follows_a_run_and_ends_with_it(prepared: Path) -> None:
    told = prepared / "told"
    settings = [*SMALL, "training.steps=1_000_000", "evaluation.every_steps=40"]
    settings += [f'notify.command="cat >> {told}"', 'notify.on=["end"]']
    run = ("--run", prepared / "run")
    train = subprocess.Popen(
        dragoman_command("train", prepared / "config.toml", *run, "--watch", *settings),
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
        env=os.environ,
    )
    try:
        assert train.stdout is not None
        found = re.search(r"http://127\.0\.0\.1:\d+/", train.stdout.readline())
        assert found
        address = found.group()
        wait_until(lambda: len(_state(address)["evaluations"]) >= 2)
        state = _state(address)
        assert state["state"]["words"] == "running"
        assert state["speed"]["step"] > 40
        assert state["samples"]
        beside = psutil.Process(train.pid).children()
        train.terminate()  # An orderly end.
        assert train.wait(60) == 4
        psutil.wait_procs(beside, 20)
        assert not any(one.is_running() for one in beside)
        (notice,) = told.read_text().splitlines()
        assert json.loads(notice)["message"].startswith("stopped at step")
    finally:
        train.kill()
        train.wait()
