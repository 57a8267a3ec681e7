from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

from dragoman.config_file import load_config
from dragoman.training.capacity import full_rows, kind_of, largest_that_fits, rows_that_fit


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


def test_rows_that_fit_with_some_kernels_need_not_fit_with_others(
    monkeypatch: pytest.MonkeyPatch, small_text: Path
) -> None:
    gpu = SimpleNamespace(name="A GPU", total_memory=24 << 30)
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda _: gpu)
    fused, plain, balanced = (
        load_config(small_text / "config.toml", [one])
        for one in ("training.kernels=fused", "training.kernels=plain", "distributed.balance=true")
    )
    kinds = [kind_of(torch.device("cuda", 0), one) for one in (fused, plain, balanced)]
    assert kinds == [
        "A GPU, 24 GiB, fused kernels",
        "A GPU, 24 GiB, plain kernels",
        "A GPU, 24 GiB, auto kernels, balanced",
    ]
    # Micro-batches decide the last bit, which a resumed run keeps on a CPU.
    assert kind_of(torch.device("cpu"), fused) == kind_of(torch.device("cpu"), balanced)
