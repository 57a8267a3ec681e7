"""Where a worker's own steps end and a meeting begins."""

from dataclasses import replace
from datetime import timedelta
from itertools import islice
from pathlib import Path

import pytest
import torch

from dragoman.cluster.processes import Workers
from dragoman.config_file import load_config
from dragoman.corpus.rows import Position, StepRows
from dragoman.training import local_step
from dragoman.training.local_step import LocalStep
from dragoman.training.parts import make_parts
from dragoman.training.step import PlainStep, StepResult
from support import SMALL

ALONE = Workers(0, 1, torch.device("cpu"))


class StepOfDevice(PlainStep):
    """Says what is asked of it, and tells the seconds of its own clock."""

    calls: list[str]

    def queue(
        self, batch: StepRows, step: int, learning_rate: float, seconds_waited: float
    ) -> None:
        super().queue(batch, step, learning_rate, seconds_waited)
        self.calls.append("queue")

    def weights_changed(self) -> None:
        self.calls.append("weights changed")

    def result(self) -> StepResult:
        return replace(super().result(), seconds=1.0)


def test_a_meeting_begins_when_the_device_is_done_and_counts_for_its_step(
    prepared: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings = [*SMALL, "distributed.sync=local", "distributed.local_steps=2"]
    config = load_config(prepared / "config.toml", settings)
    parts = make_parts(config, ALONE)
    own = StepOfDevice(config, parts.model, ALONE)
    own.calls = []
    monkeypatch.setattr(local_step, "wait_for", lambda device: own.calls.append("wait"))
    monkeypatch.setattr(own, "lag", 2)
    step = LocalStep(own, parts.model, ALONE, config.distributed)
    assert step.lag == 0, "the meeting waits for the device: no step is on its way after it"
    step.begin(5, [0])
    batches = list(islice(parts.stream.steps(Position(), 0, 1), 3))
    for number, batch in enumerate(batches, start=1):
        step.queue(batch, number, 1e-3, 0.0)
    assert own.calls == ["queue", "queue", "wait", "weights changed", "queue"]
    first, second, third = (step.result() for _ in batches)
    for apart in (first, third):
        assert (apart.seconds, apart.seconds_exposed_communication) == (1.0, 0.0)
    assert second.seconds_exposed_communication > 0
    assert second.seconds == 1.0 + second.seconds_exposed_communication


def test_those_who_save_to_one_folder_do_not_wait_for_ever_for_each_other(
    prepared: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings = [*SMALL, "distributed.sync=local", "distributed.timeout_seconds=7"]
    config = load_config(prepared / "config.toml", settings)
    limits: list[timedelta] = []

    def new_group(ranks: list[int], timeout: timedelta, backend: str) -> str:
        limits.append(timeout)
        return "group"

    monkeypatch.setattr("dragoman.training.local_step.distributed.new_group", new_group)
    make_parts(config, ALONE).step.begin(5, [0, 0])
    assert limits == [timedelta(seconds=7)]
