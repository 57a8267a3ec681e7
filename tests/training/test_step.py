"""The step of several workers, made in one process: its group has this worker alone."""

from collections.abc import Iterator
from itertools import islice
from pathlib import Path

import pytest
import torch
import torch.distributed as distributed

from dragoman.cluster.processes import Workers
from dragoman.cluster.sync import POWERSGD_FIRST_STEP
from dragoman.config_file import load_config
from dragoman.corpus.rows import Position
from dragoman.model.transformer import count_parameters
from dragoman.training import local_step
from dragoman.training.parts import Parts, make_parts
from dragoman.training.step import StepResult
from support import SMALL

WORKERS = Workers(0, 2, torch.device("cpu"), ("here", "here"))


@pytest.fixture(autouse=True)
def group(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    # The other worker is not there to tell its kernels.
    monkeypatch.setattr("dragoman.training.parts.refuse_mixed_kernels", lambda *_: None)
    distributed.init_process_group(
        "gloo", init_method=f"file://{tmp_path}/store", rank=0, world_size=1
    )
    yield
    distributed.destroy_process_group()


def make(folder: Path, *overrides: str) -> Parts:
    parts = make_parts(load_config(folder / "config.toml", [*SMALL, *overrides]), WORKERS)
    parts.step.begin(5)
    return parts


def run(parts: Parts, poisoned: int = 0) -> list[StepResult]:
    """Make steps; before one of them a weight becomes NaN, and is mended afterwards."""
    weight = next(parts.model.parameters()).data
    results = []
    batches = (whole.share(0, 2) for whole in parts.stream.steps(Position()))
    for step, batch in enumerate(islice(batches, POWERSGD_FIRST_STEP + 6), start=1):
        before = weight.clone()
        if step == poisoned:
            weight.fill_(float("nan"))
        parts.step.queue(batch, step, 1e-3, 0.0)
        results.append(parts.step.result())
        if step == poisoned:
            weight.copy_(before)
    return results


def test_powersgd_outlives_a_gradient_that_is_not_finite(prepared: Path) -> None:
    poisoned = POWERSGD_FIRST_STEP + 3
    results = run(make(prepared, "distributed.compression=powersgd"), poisoned)
    skipped = [step for step, one in enumerate(results, start=1) if one.skipped]
    assert skipped == [poisoned]


def test_what_is_timed_alone_is_what_travels(
    prepared: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    plain = make(prepared, "distributed.bucket_megabytes=0.5").step.exchange
    assert plain is not None
    assert plain.piece_bytes == 2**19
    monkeypatch.setattr(local_step, "MeanExchange", lambda *_: None)  # There is no second worker.
    parts = make(prepared, "distributed.sync=local", "distributed.local_fragments=4")
    assert parts.step.exchange is not None
    assert parts.step.exchange.piece_bytes == count_parameters(parts.model)
    # Its sums are of factors, between products that belong to it: they tell nothing alone.
    assert make(prepared, "distributed.compression=powersgd").step.exchange is None


def test_phases_are_parts_of_the_step(prepared: Path) -> None:
    for one in run(make(prepared)):
        assert min(one.seconds_compute, one.seconds_exposed_communication) > 0
        assert one.seconds_optimizer > 0


def test_a_scaled_loss_is_not_lifted_out_of_what_16_bits_hold(prepared: Path) -> None:
    both = ["training.precision=float16", "distributed.compression=fp16"]
    results = run(make(prepared, *both))
    assert not any(one.skipped for one in results)
    alone = run(make(prepared, "distributed.compression=fp16"))
    norms = [[one.gradient_norm for one in some] for some in (results, alone)]
    assert norms[0] == pytest.approx(norms[1], rel=0.05)
