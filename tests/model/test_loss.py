import pytest
import torch
import torch.nn.functional as F

from dragoman.model import loss as loss_module
from dragoman.model.loss import cross_entropy

TOKENS, WIDTH, WORDS = 37, 16, 50


@pytest.mark.parametrize("label_smoothing", [0.0, 0.1])
@pytest.mark.parametrize("tokens_at_once", [1, 10, 37, 1000])
def test_chunks_equal_the_whole_with_all_gradients(
    label_smoothing: float, tokens_at_once: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(loss_module, "LOGITS_AT_ONCE", tokens_at_once * WORDS)
    torch.manual_seed(tokens_at_once)
    hidden = torch.randn(TOKENS, WIDTH, dtype=torch.float64, requires_grad=True)
    weight = torch.randn(WORDS, WIDTH, dtype=torch.float64, requires_grad=True)
    labels = torch.randint(WORDS, (TOKENS,))
    is_real = torch.rand(TOKENS) > 0.2

    sums = cross_entropy(hidden, weight, labels, is_real, label_smoothing)
    (sums.loss * 3).backward()
    found = [sums.loss.detach(), sums.nll, hidden.grad, weight.grad]

    hidden.grad = weight.grad = None
    logits = hidden[is_real] @ weight.T
    expected_loss = F.cross_entropy(
        logits, labels[is_real], reduction="sum", label_smoothing=label_smoothing
    )
    nll = F.cross_entropy(logits, labels[is_real], reduction="sum").detach()
    (expected_loss * 3).backward()
    expected = [expected_loss.detach(), nll, hidden.grad, weight.grad]
    for one, other in zip(found, expected, strict=True):
        assert one is not None
        assert other is not None
        torch.testing.assert_close(one.double(), other, atol=1e-5, rtol=1e-5)


def test_without_gradient_only_the_sums_are_made() -> None:
    hidden, weight = torch.randn(TOKENS, WIDTH), torch.randn(WORDS, WIDTH)
    labels = torch.randint(WORDS, (TOKENS,))
    everything = torch.ones(TOKENS, dtype=torch.bool)
    sums = cross_entropy(hidden, weight, labels, everything, 0.0)
    torch.testing.assert_close(sums.loss, sums.nll)
    assert not sums.loss.requires_grad
