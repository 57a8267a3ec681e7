"""The hash that makes dropout masks is random enough."""

import itertools
import math

import pytest
import torch

from model.fused_reference import Mask

SHAPE = torch.Size((2048, 512))
PROBABILITY = 0.1


@pytest.fixture(scope="module")
def masks() -> dict[tuple[int, int], torch.Tensor]:
    """Masks of several sites and keys, zero on average."""
    return {
        (site, number): Mask(PROBABILITY, site, torch.tensor([1234, number])).kept(SHAPE).float()
        - (1 - PROBABILITY)
        for site, number in ((1, 1), (2, 1), (1, 2), (77, 50_000))
    }


def sigmas(products: torch.Tensor, variance: float) -> float:
    """How far a mean of products is from zero, in standard deviations."""
    return abs(float(products.mean())) * math.sqrt(products.numel() / variance)


def test_keeps_the_right_share(masks: dict[tuple[int, int], torch.Tensor]) -> None:
    variance = PROBABILITY * (1 - PROBABILITY)
    for where, mask in masks.items():
        assert sigmas(mask, variance) < 5, where
        for dimension in (0, 1):
            spread = mask.mean(dim=dimension).std() * (SHAPE[dimension] / variance) ** 0.5
            assert float(spread) == pytest.approx(1.0, abs=0.15), (where, dimension)


def test_nothing_is_correlated(masks: dict[tuple[int, int], torch.Tensor]) -> None:
    variance = (PROBABILITY * (1 - PROBABILITY)) ** 2
    shifts = ((0, 1), (1, 0), (0, 2), (2, 0), (0, 64), (64, 0), (0, 256), (1, 1))
    for (where, mask), shift in itertools.product(masks.items(), shifts):
        assert sigmas(mask * mask.roll(shift, (0, 1)), variance) < 5, (where, shift)
    for one, other in itertools.combinations(masks, 2):
        assert sigmas(masks[one] * masks[other], variance) < 5, (one, other)
