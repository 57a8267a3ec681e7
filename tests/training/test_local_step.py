"""Where a worker's own steps end and a meeting begins."""

from dataclasses import replace
from datetime import timedelta
from itertools import islice
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

from dragoman.cluster.processes import Workers
from dragoman.config import Config, DistributedSettings
from dragoman.config_file import load_config
from dragoman.corpus.rows import Position, StepRows
from dragoman.training import local_step
from dragoman.training.local_step import LocalStep, local_rate, with_longer_memory
from dragoman.training.parts import make_parts
from dragoman.training.step import PlainStep, StepResult
from support import SMALL

ALONE = Workers(0, 1, torch.device("cpu"))
PAIR = Workers(0, 2, torch.device("cpu"), hosts=("a", "a"))


class StepOfDevice(PlainStep):
    """Says what is asked of it, and tells the seconds of its own clock."""

    calls: list[str]
    rate = 0.0

    def queue(
        self, batch: StepRows, step: int, learning_rate: float, seconds_waited: float
    ) -> None:
        super().queue(batch, step, learning_rate, seconds_waited)
        self.calls.append("queue")
        self.rate = learning_rate

    def weights_changed(self) -> None:
        self.calls.append("weights changed")

    def result(self) -> StepResult:
        own = super().result()
        known = own.seconds_data + own.seconds_compute + own.seconds_optimizer
        return replace(own, seconds=known + 0.25)


@pytest.mark.parametrize("lag", [0, 2])
def test_a_device_tells_how_much_of_a_wait_it_noticed(
    prepared: Path, monkeypatch: pytest.MonkeyPatch, lag: int
) -> None:
    local = ["sync=local", "local_steps=2", "local_delay=0"]
    settings = [*SMALL, *(f"distributed.{one}" for one in local)]
    config = load_config(prepared / "config.toml", settings)
    parts = make_parts(config, ALONE)
    own = StepOfDevice(config, parts.model, ALONE)
    own.calls = []
    monkeypatch.setattr(own, "lag", lag)
    step = LocalStep(own, parts.model, ALONE, config.distributed)
    assert step.lag == lag
    step.begin(5)
    batches = list(islice(parts.stream.steps(Position()), 3))
    clock = iter([10.0, 17.0])  # A synchronization of seven seconds.
    monkeypatch.setattr(local_step, "time", SimpleNamespace(perf_counter=lambda: next(clock)))
    for number, batch in enumerate(batches, start=1):
        step.queue(batch, number, 1e-3, 0.0)
    assert own.calls == ["queue", "queue", "weights changed", "queue"]
    waits = [step.result().seconds_exposed_communication for _ in batches]
    # A queue of steps hides a part of it: the device stood idle for a quarter of a second.
    expected = [0.0, 0.25, 0.0] if lag == 0 else [0.0, 0.0, 0.25]
    assert waits == pytest.approx(expected)


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
    step = make_parts(config, ALONE).step
    assert isinstance(step, LocalStep)
    monkeypatch.setattr(step, "_workers", PAIR)
    step.go_on([0, 0], 0)
    assert limits == [timedelta(seconds=7)]


def test_what_is_under_way_does_not_change_when_workers_save_to_one_folder(
    prepared: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    local = ["distributed.sync=local", "distributed.local_steps=1", "distributed.local_delay=1"]
    config = load_config(prepared / "config.toml", [*SMALL, *local])
    step = make_parts(config, ALONE).step
    assert isinstance(step, LocalStep)
    calls: list[str] = []

    class SlowExchange:
        """Reads what it was given only when somebody waits for it."""

        def start(self, vector: torch.Tensor, error: None) -> "SlowExchange":
            return self

        def wait(self) -> None:
            calls.append("arrived")

    def new_group(ranks: list[int], timeout: timedelta, backend: str) -> str:
        return "group"

    def all_reduce(tensor: torch.Tensor, group: str) -> None:
        calls.append("averaged")

    monkeypatch.setattr("dragoman.training.local_step.distributed.new_group", new_group)
    monkeypatch.setattr("dragoman.training.local_step.distributed.all_reduce", all_reduce)
    monkeypatch.setattr(step._outer, "_exchange", SlowExchange())
    monkeypatch.setattr(step, "_workers", PAIR)
    step.go_on([0, 0], 0)
    step._outer.after_step(1)
    step.share_own()
    assert calls[:2] == ["arrived", "averaged"]
    assert calls.count("arrived") == 1


@pytest.mark.parametrize(("rank", "contribution"), [(0, 0.5), (1, 0.0), (2, 0.5)])
def test_machines_that_save_to_one_folder_share_what_rounding_kept_back(
    prepared: Path, monkeypatch: pytest.MonkeyPatch, rank: int, contribution: float
) -> None:
    local = ["distributed.sync=local", "distributed.compression=int2"]
    config = load_config(prepared / "config.toml", [*SMALL, *local])
    step = make_parts(config, ALONE).step
    assert isinstance(step, LocalStep)
    module = "dragoman.training.local_step.distributed"
    monkeypatch.setattr(f"{module}.new_group", lambda *_, **__: "group")
    # So that what is left is what this worker adds to the sum.
    monkeypatch.setattr(f"{module}.all_reduce", lambda *_, **__: None)
    three = Workers(rank, 3, torch.device("cpu"), hosts=("a", "a", "b"))
    monkeypatch.setattr(step, "_workers", three)
    for tensor in step.tensors().values():
        tensor.fill_(1.0)
    step.go_on([0, 0, 0], 0)
    step.share_own()
    for name, tensor in step.tensors().items():
        expected = contribution if name.endswith(".error") else 1 / 3
        assert torch.allclose(tensor, torch.full_like(tensor, expected)), name


@pytest.mark.parametrize(("workers", "rate"), [(1, 1.0), (2, 2**0.5), (4, 2.0), (9, 2.0)])
def test_smaller_shares_of_a_batch_have_larger_rates_within_limits(
    workers: int, rate: float
) -> None:
    assert local_rate(DistributedSettings(), workers) == rate
    assert local_rate(DistributedSettings(local_rate=0.5), workers) == 0.5


def test_mean_squares_remember_as_many_rows_whatever_the_number_of_workers(
    prepared: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings = [*SMALL, "optimizer.beta2=0.98", "distributed.sync=local"]
    config = load_config(prepared / "config.toml", settings)
    assert with_longer_memory(config, 1) == config
    built: list[Config] = []

    def make_lockstep(config: Config, model: object, workers: Workers, kernels: object) -> None:
        built.append(config)

    def stand_in(step: None, model: object, workers: Workers, settings: object) -> None:
        assert workers.count == 4

    monkeypatch.setattr("dragoman.training.parts.make_lockstep", make_lockstep)
    monkeypatch.setattr("dragoman.training.parts.LocalStep", stand_in)
    monkeypatch.setattr(Workers, "gather_json", lambda _, value: 4 * [value])
    make_parts(config, Workers(0, 4, torch.device("cpu")))
    (four,) = built
    assert four.optimizer.beta2 == pytest.approx(0.995)
    assert replace(four, optimizer=config.optimizer) == config


def test_a_worker_steps_at_its_own_rate(prepared: Path) -> None:
    local = ["distributed.sync=local", "distributed.local_rate=0.25"]
    config = load_config(prepared / "config.toml", [*SMALL, *local])
    parts = make_parts(config, ALONE)
    own = StepOfDevice(config, parts.model, ALONE)
    own.calls = []
    step = LocalStep(own, parts.model, ALONE, config.distributed)
    step.begin(5)
    step.queue(next(parts.stream.steps(Position())), 1, 1e-3, 0.0)
    assert own.rate == 0.25e-3
