"""What travels is what was sent, but for a bounded rounding."""

import pytest
import torch

from dragoman.cluster.wire_format import BLOCK, WireFormat, pack, padded_size, unpack
from dragoman.prediction.network import compressed_share


@pytest.mark.parametrize(
    ("form", "error"),
    [("none", 0.0), ("bf16", 2**-8), ("fp16", 2**-10), ("int8", 0.5 / 127), ("int4", 0.5 / 7)],
)
def test_a_vector_survives_within_half_a_level(form: WireFormat, error: float) -> None:
    torch.manual_seed(1)
    # Blocks of very different sizes, one of them nothing but zeros.
    values = torch.randn(3, 4, BLOCK) * torch.tensor([1e-5, 1.0, 0.0, 10.0]).view(1, 4, 1)
    values = values.view(3, -1)
    packed = pack(values, form)
    assert packed.shape[0] == 3
    assert packed.dtype == torch.uint8
    assert packed.numel() == pytest.approx(4 * values.numel() * compressed_share(form))
    largest = values.view(3, 4, BLOCK).abs().amax(dim=-1, keepdim=True)
    off = (unpack(packed, form).view(3, 4, BLOCK) - values.view(3, 4, BLOCK)).abs()
    assert (off <= error * largest * 1.001).all()


def test_two_bits_keep_what_a_normal_distribution_lets_them() -> None:
    torch.manual_seed(1)
    sizes = torch.tensor([1e-5, 1.0, 0.0, 10.0]).view(4, 1)
    values = (torch.randn(4, 64 * BLOCK) * sizes).view(-1)
    packed = pack(values, "int2")
    assert packed.numel() == pytest.approx(4 * values.numel() * compressed_share("int2"))
    off = (unpack(packed, "int2") - values).view(4, -1)
    # The least that four levels can lose of a normal distribution is 0.1175 of its variance.
    assert (off.square().mean(dim=-1) <= 0.13 * sizes.view(-1) ** 2).all()


@pytest.mark.parametrize("form", ["int8", "int4", "int2"])
def test_what_is_not_finite_is_not_hidden(form: WireFormat) -> None:
    values = torch.zeros(2 * BLOCK)
    values[3] = float("nan")
    found = unpack(pack(values, form), form)
    assert not found[:BLOCK].isfinite().any()
    assert found[BLOCK:].isfinite().all()


def test_padding_gives_every_part_whole_blocks() -> None:
    for elements in (1, BLOCK, 3 * BLOCK + 1, 10_000):
        for parts in (1, 2, 3, 7):
            size = padded_size(elements, parts)
            assert size >= elements
            assert size % (parts * BLOCK) == 0
            assert size - elements < parts * BLOCK
