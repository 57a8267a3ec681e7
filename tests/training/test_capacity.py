from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from dragoman.cluster.processes import Workers
from dragoman.config_file import load_config
from dragoman.training.capacity import full_rows, kind_of, largest_that_fits, rows_that_fit
from dragoman.training.parts import choose_rows_per_device


@pytest.mark.parametrize(
    ("room", "most", "found"), [(0, 8, 1), (1, 8, 1), (5, 64, 4), (64, 64, 64), (100, 37, 37)]
)
def test_doubles_while_it_fits(room: int, most: int, found: int) -> None:
    assert largest_that_fits(lambda rows: rows <= room, most) == found


def test_a_cpu_takes_few_rows_and_never_more_than_its_share() -> None:
    cpu = torch.device("cpu")
    assert rows_that_fit(lambda _: None, row_tokens=128, most=1000, device=cpu) == 32
    assert rows_that_fit(lambda _: None, row_tokens=128, most=3, device=cpu) == 3
    assert rows_that_fit(lambda _: None, row_tokens=9_000, most=3, device=cpu) == 1


def test_trial_rows_have_no_padding() -> None:
    rows = full_rows(3, 16, torch.device("cpu"))
    assert rows.source.shape == (3, 16)
    assert rows.target_segments.min() == 1


def test_rows_are_chosen_again_for_other_devices_kernels_and_shares(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    gpu = SimpleNamespace(name="A GPU", total_memory=24 << 30)
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda _: gpu)
    device = torch.device("cuda", 0)
    kinds = [
        kind_of(device, kernels, most)
        for kernels, most in (("fused", 256), ("plain", 256), ("fused", 64))
    ]
    assert kinds[0] == "A GPU, 24 GiB, fused kernels, at most 256 rows"
    assert len(set(kinds)) == 3
    cpu = torch.device("cpu")
    assert kind_of(cpu, "plain", 256) == kind_of(cpu, "plain", 64)


def test_a_recorded_step_has_no_more_rows_than_its_worker(small_text: Path) -> None:
    config = load_config(small_text / "config.toml", ["batches.rows_per_device=48"])
    stream = SimpleNamespace(rows_per_step=64)

    def chosen(kernels: str, workers: int, *, balance: bool = False) -> int:
        parts: Any = SimpleNamespace(stream=stream, kernels=SimpleNamespace(kind=kernels))
        asked = replace(config, distributed=replace(config.distributed, balance=balance))
        return choose_rows_per_device(asked, parts, Workers(0, workers, torch.device("cpu")))

    assert [chosen("fused", workers) for workers in (1, 2, 3, 4)] == [48, 32, 22, 16]
    assert chosen("fused", 2, balance=True) == 4
    assert [chosen("plain", workers) for workers in (1, 4)] == [48, 48]
