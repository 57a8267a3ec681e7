"""What travels, in theory."""

from typing import Any

import pytest
from torch.distributed.algorithms.ddp_comm_hooks import powerSGD_hook

from dragoman.config import DistributedSettings
from dragoman.prediction.network import bytes_sent_per_step

SHAPES = [(4_000, 256), (256, 1_024), (256, 256), (16, 4, 256), (8, 100), (256,)]


@pytest.mark.parametrize("rank", [4, 32, 64, 200])
def test_powersgd_sends_what_its_hook_does_not_find_worth_compressing_as_it_is(rank: int) -> None:
    should_compress: Any = powerSGD_hook._should_compress
    expected = 256
    for rows, columns in [(4_000, 256), (256, 1_024), (256, 256), (16, 1_024), (8, 100)]:
        is_worth_it, whole, thin = should_compress(rows, columns, min(rows, columns, rank), 2)
        expected += thin if is_worth_it else whole
    settings = DistributedSettings(compression="powersgd", powersgd_rank=rank)
    assert bytes_sent_per_step(SHAPES, 2, settings) == 4 * expected
