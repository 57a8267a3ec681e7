"""What an agent makes of its workers' hearts."""

import json
import os
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from dragoman.cluster.agent import Agent


def test_only_a_heart_that_stands_still_is_killed_whatever_the_clock_says(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    killed: list[int] = []
    monkeypatch.setattr(os, "kill", lambda process, _: killed.append(process))
    agent: Any = object.__new__(Agent)
    agent._orders, agent._heartbeats = SimpleNamespace(timeout_seconds=10.0), tmp_path
    agent._post = lambda *_: None
    workers, handlers = [], {}
    for local_rank, (silence, exit_code) in enumerate(((0.0, None), (9.0, None), (9.0, 0))):
        beat = {"step": 3, "monotonic": time.monotonic() - silence}
        heart = tmp_path / str(local_rank)
        heart.write_text(json.dumps(beat))
        os.utime(heart, (0, 0))  # The clock on the wall was set meanwhile.
        workers.append(
            SimpleNamespace(local_rank=local_rank, global_rank=local_rank, id=100 + local_rank)
        )
        process = SimpleNamespace(poll=lambda exit_code=exit_code: exit_code)
        handlers[local_rank] = SimpleNamespace(proc=process)
    agent._pcontext = SimpleNamespace(subprocess_handlers=handlers)
    agent._kill_hung_workers(SimpleNamespace(workers=workers))
    assert killed == [101]
