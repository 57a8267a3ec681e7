"""The kernels do what the plain functions do, on fresh random vectors."""

from concurrent.futures import ThreadPoolExecutor

import pytest
import torch

from dragoman.cluster import wire_format
from dragoman.cluster.local_steps import outer_step
from dragoman.cluster.wire_format import BLOCK, WireFormat, add_up, pack_parts, unpack_parts
from model.fused_reference import DEVICE, needs_kernels

wire_kernels = pytest.importorskip("dragoman.cluster.wire_kernels")

pytestmark = [pytest.mark.gpu, needs_kernels]


@pytest.fixture
def without_kernels(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(wire_format, "HAS_KERNELS", False)
    monkeypatch.setattr("dragoman.cluster.local_steps.HAS_KERNELS", False)


def blocks_of_many_sizes(count: int) -> torch.Tensor:
    sizes = 10.0 ** torch.randint(-6, 2, (-(-count // BLOCK), 1), device=DEVICE)
    sizes[1:2] = 0.0
    return (torch.randn(len(sizes), BLOCK, device=DEVICE) * sizes).view(-1)[:count]


@pytest.mark.usefixtures("without_kernels")
@pytest.mark.parametrize("form", ["int8", "int4", "int2"])
@pytest.mark.parametrize(("count", "parts"), [(1, 2), (5 * BLOCK, 2), (7_777, 3), (40_000, 4)])
def test_rounding_is_that_of_the_plain_functions(form: WireFormat, count: int, parts: int) -> None:
    bits = wire_format.bits_of(form)
    vector, error = blocks_of_many_sizes(count), blocks_of_many_sizes(count)
    packed, left_over = wire_kernels.pack_levels(vector, error, parts, bits)
    expected, left = pack_parts(vector, error, parts, form)
    assert left_over is not None
    assert left is not None
    # Scales may differ in their last bit, and so a number between two levels may go to either.
    rounded, whole = wire_format.unpack(packed, form).view(-1)[:count], vector + error
    torch.testing.assert_close(rounded + left_over, whole, rtol=1e-5, atol=1e-6)
    assert (packed != expected).float().mean() < 1e-2
    assert left_over.abs().max() <= 1.001 * left.abs().max() + 1e-6 * whole.abs().max()
    alone, kept = wire_kernels.pack_levels(vector, None, parts, bits)
    assert kept is None
    assert (alone != pack_parts(vector, None, parts, form)[0]).float().mean() < 1e-2

    total, left_out = wire_kernels.add_up_levels(packed, bits)
    expected_total, expected_left = add_up(packed, form)
    torch.testing.assert_close(
        wire_format.unpack(total, form) + left_out,
        wire_format.unpack(expected_total, form) + expected_left,
        rtol=1e-5,
        atol=1e-6,
    )

    into, plain = (torch.full((count,), float("nan"), device=DEVICE) for _ in range(2))
    wire_kernels.unpack_levels(packed, bits, 3, into)
    unpack_parts(packed, form, 3, plain)
    torch.testing.assert_close(into, plain)


def test_threads_may_launch_for_the_first_time_together() -> None:
    """As lanes of an exchange do; what is loaded afresh each time are the kernels' launchers."""
    vector = torch.randn(40_000, device=DEVICE)
    expected = torch.empty_like(vector)
    packed, _ = wire_kernels.pack_levels(vector, None, 4, 4)
    wire_kernels.unpack_levels(packed, 4, 1, expected)

    def make_a_round(_: int) -> torch.Tensor:
        found = torch.empty_like(vector)
        packed, _ = wire_kernels.pack_levels(vector, vector * 0, 4, 4)
        wire_kernels.add_up_levels(packed, 4)
        wire_kernels.unpack_levels(packed, 4, 1, found)
        return found

    with ThreadPoolExecutor(16) as threads:
        for _ in range(10):
            for kernel in (wire_kernels._pack, wire_kernels._add_up, wire_kernels._unpack):
                kernel.device_caches.clear()
            for found in threads.map(make_a_round, range(32)):
                torch.testing.assert_close(found, expected)


@pytest.mark.parametrize("form", ["int8", "int4", "int2"])
@pytest.mark.parametrize("poison", [float("nan"), float("inf")])
def test_what_is_not_finite_is_not_hidden(form: WireFormat, poison: float) -> None:
    values = torch.zeros(2 * BLOCK, device=DEVICE)
    values[3] = poison
    packed, _ = wire_kernels.pack_levels(values, None, 1, wire_format.bits_of(form))
    found = wire_format.unpack(packed, form).view(-1)
    assert not found[:BLOCK].isfinite().any()
    assert found[BLOCK:].isfinite().all()


@pytest.mark.usefixtures("without_kernels")
def test_the_outer_step_is_that_of_the_plain_function() -> None:
    plain, fused = torch.randn(5, 5_000, device=DEVICE).repeat(2, 1, 1)
    mean, sent, momentum, common, weights = plain
    outer_step(mean, sent, momentum, common, weights, 0.7, 0.3)
    mean, sent, momentum, common, weights = fused
    wire_kernels.outer_step(mean, sent, momentum, common, weights, 0.7, 0.3)
    torch.testing.assert_close(fused, plain)
