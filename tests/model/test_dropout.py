import pytest
import torch

from dragoman.model.dropout import dropout


@pytest.mark.parametrize("probability", [0.1, 0.3, 0.5])
def test_keeps_the_right_share_and_the_mean(probability: float) -> None:
    torch.manual_seed(0)
    x = torch.ones(300, 1001, requires_grad=True)
    y = dropout(x, probability, training=True)
    assert (y == 0).float().mean() == pytest.approx(probability, abs=0.005)
    assert float(y.detach().mean()) == pytest.approx(1.0, abs=0.01)
    y.sum().backward()
    assert x.grad is not None
    assert torch.equal(x.grad, y.detach()), "the same elements are dropped in both directions"


def test_depends_on_the_seed_and_acts_in_training_only() -> None:
    x = torch.ones(1000)
    torch.manual_seed(1)
    first = dropout(x, 0.5, training=True)
    torch.manual_seed(1)
    assert torch.equal(dropout(x, 0.5, training=True), first)
    assert not torch.equal(dropout(x, 0.5, training=True), first)
    assert dropout(x, 0.5, training=False) is x
    assert dropout(x, 0.0, training=True) is x
