import pytest
import torch

from dragoman.config import ModelSettings, moments_kept, shape_of
from dragoman.model.muon import COEFFICIENTS, map_shape, matrices_of, orthogonalize
from dragoman.model.transformer import Transformer

SETTINGS = ModelSettings(preset="tiny", d_model=32, heads=2, feed_forward=50)
NEAR_ONE = (0.75, 1.25)


def random_stacks(*shapes: tuple[int, int, int]) -> list[torch.Tensor]:
    generator = torch.Generator().manual_seed(0)
    return [torch.randn(shape, generator=generator) for shape in shapes]


@pytest.mark.parametrize("shape", [(3, 48, 48), (2, 16, 64), (2, 64, 16), (1, 1, 5)])
@pytest.mark.parametrize("scale", [1e-12, 1.0, 1e6])
def test_singular_values_come_near_one(shape: tuple[int, int, int], scale: float) -> None:
    (stack,) = random_stacks(shape)
    (found,) = orthogonalize([scale * stack])
    before, after = torch.linalg.svdvals(stack), torch.linalg.svdvals(found)
    counts = before > 0.003 * stack.flatten(1).norm(dim=1)[:, None]
    assert counts.sum() > 0.9 * counts.numel()
    assert NEAR_ONE[0] < after[counts].min()
    assert after.max() < NEAR_ONE[1]


def test_a_gradient_of_few_directions_is_not_blown_up() -> None:
    left, right = random_stacks((1, 48, 4), (1, 4, 48))
    (found,) = orthogonalize([left @ right])
    values = torch.linalg.svdvals(found)[0]
    assert NEAR_ONE[0] < values[3]
    assert values[4] < 0.01


def test_what_fades_away_becomes_nothing() -> None:
    (nothing,) = orthogonalize([torch.zeros(2, 8, 8)])
    assert torch.equal(nothing, torch.zeros(2, 8, 8))
    (stack,) = random_stacks((2, 16, 24))
    for scale in (1e-20, 1e-30, 1e-38):  # The squares of these are zero in float32.
        for kind in (torch.float32, torch.bfloat16):
            (found,) = orthogonalize([(scale * stack).to(kind)])
            assert found.abs().max() < 0.05


def test_directions_stay() -> None:
    (stack,) = random_stacks((2, 24, 40))
    (found,) = orthogonalize([stack])
    left, _, right = torch.linalg.svd(stack, full_matrices=False)
    turned = left.mT @ found @ right.mT
    assert (turned - torch.diag_embed(turned.diagonal(dim1=1, dim2=2))).abs().max() < 1e-3


def test_matrices_do_not_know_of_each_other() -> None:
    stacks = random_stacks((3, 32, 32), (2, 32, 50), (2, 50, 32), (1, 8, 32))
    together = orthogonalize(stacks)
    for stack, found in zip(stacks, together, strict=True):
        assert found.shape == stack.shape
        assert found.stride() == stack.stride()
        alone = torch.cat([orthogonalize([one[None]])[0] for one in stack])
        torch.testing.assert_close(found, alone)


def test_bfloat16_is_exact_enough() -> None:
    stacks = random_stacks((4, 64, 64), (2, 64, 256), (2, 256, 64))
    exact = orthogonalize(stacks)
    for one, rounded in zip(exact, orthogonalize([s.bfloat16() for s in stacks]), strict=True):
        assert rounded.dtype == torch.bfloat16
        assert float((rounded.float() - one).norm() / one.norm()) < 0.05


def test_polynomials_hold_what_they_promise() -> None:
    values = torch.linspace(0.003, 1.01, 100_000, dtype=torch.float64)
    for a, b, c in COEFFICIENTS:
        values = a * values + b * values**3 + c * values**5
    assert values.min() > 0.777
    assert values.max() < 1.217


@pytest.mark.parametrize("joint", [True, False])
def test_muon_has_the_matrices_of_the_layers_and_nothing_else(joint: bool) -> None:
    model = Transformer(SETTINGS, 45, 60 if not joint else 45, joint)
    shapes = {name: one.shape for name, one in model.named_parameters()}
    matrices = matrices_of(shapes)
    assert set(matrices) == {
        name for name, shape in shapes.items() if "coder." in name and len(shape) == 2
    }
    kinds = {map_shape(name, shapes[name]) for name in matrices}
    assert kinds == {(32, 32), (32, 50), (50, 32)}, "query, key and value are maps of their own"
    parameters = sum(one.numel() for one in model.parameters())
    of_muon = sum(shapes[name].numel() for name in matrices)
    shape = shape_of(SETTINGS)
    assert moments_kept("muon", parameters, shape) == 2 * parameters - of_muon
    assert moments_kept("adam", parameters, shape) == 2 * parameters
