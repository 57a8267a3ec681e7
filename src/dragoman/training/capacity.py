"""How many rows a device can process at once: found by trying, never by crashing."""

from collections.abc import Callable

import torch

from dragoman.model.transformer import RowTensors

# On a CPU more at once is not faster, only larger.
CPU_SLOTS_AT_ONCE = 4_096
# Room for what a trial does not allocate: moments, buckets, evaluation.
SHARE_OF_MEMORY = 0.7


def rows_that_fit(
    try_rows: Callable[[RowTensors], None], row_tokens: int, most: int, device: torch.device
) -> int:
    """Find the most rows, up to `most`, whose forward and backward pass fit on the device."""
    if device.type == "cpu":
        return max(1, min(most, CPU_SLOTS_AT_ONCE // row_tokens))

    def fits(rows: int) -> bool:
        torch.cuda.reset_peak_memory_stats(device)
        try:
            try_rows(full_rows(rows, row_tokens, device))
        except torch.OutOfMemoryError:
            return False
        finally:
            torch.cuda.empty_cache()
        total = torch.cuda.get_device_properties(device).total_memory
        return torch.cuda.max_memory_allocated(device) < SHARE_OF_MEMORY * total

    return largest_that_fits(fits, most)


def kind_of(device: torch.device, kernels: str, most: int) -> str:
    """What decides how many rows of at most so many are best: the device and its kernels."""
    if device.type == "cpu":
        return "cpu"  # Micro-batches decide the last bit, which a resumed run keeps.
    properties = torch.cuda.get_device_properties(device)
    memory = properties.total_memory >> 30
    return f"{properties.name}, {memory} GiB, {kernels} kernels, at most {most} rows"


def largest_that_fits(fits: Callable[[int], bool], most: int) -> int:
    """All if they fit, as they mostly do and kernels for one size load fastest; or by doubling.

    Even one row must be tried by training itself.
    """
    if fits(most):
        return most
    rows = 1
    while rows < most and fits(min(2 * rows, most)):
        rows = min(2 * rows, most)
    return rows


def full_rows(rows: int, row_tokens: int, device: torch.device) -> RowTensors:
    """Rows without any padding, the most that training can meet."""
    ones = torch.ones(rows, row_tokens, dtype=torch.int32, device=device)
    positions = torch.arange(row_tokens, dtype=torch.int32, device=device).expand_as(ones)
    return RowTensors(ones, ones, positions, ones, ones, ones, positions)
