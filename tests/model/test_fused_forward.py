"""The whole model on fused kernels against `Transformer.forward` in float64."""

from collections.abc import Callable
from dataclasses import replace
from itertools import count
from typing import Literal

import pytest
import torch
from torch import Tensor

from dragoman.config import ModelSettings
from dragoman.model import transformer as transformer_module
from dragoman.model.transformer import RowTensors, Transformer
from model.fused_reference import (
    COMPUTE_TYPES,
    DEVICE,
    IS_INTERPRETED,
    Mask,
    needs_kernels,
    poisoned_outputs,
    random_rows,
    relative_error,
)

pytest.importorskip("triton", reason="triton is not installed")

from dragoman.model.fused.flat_weights import FlatWeights
from dragoman.model.fused.forward import FusedTransformer

pytestmark = [pytest.mark.gpu, needs_kernels]

# Of the gradients of all weights together; autocast is off by 1.5e-2 in bfloat16.
TOLERANCES = {torch.bfloat16: 3e-2, torch.float16: 1.5e-2, torch.float32: 1e-5}
SMOOTHING, SCALE, WORDS = 0.1, 1e-3, 700
SMALL = ModelSettings(
    preset="tiny", encoder_layers=2, decoder_layers=2, d_model=32, heads=2, feed_forward=48
)
Gradients = dict[str, Tensor]


def seeded() -> torch.Generator:
    generator = torch.Generator()
    print("seed", torch.manual_seed(generator.seed()).initial_seed())
    return generator


def make_model(settings: ModelSettings, joint: bool) -> Transformer:
    model = Transformer(settings, WORDS if joint else WORDS - 100, WORDS, joint).to(DEVICE)
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.dim() == 1:  # Norms and biases start as ones and zeros.
                parameter.add_(torch.randn_like(parameter), alpha=0.2)
    return model


def exact_gradients(model: Transformer, rows: RowTensors) -> tuple[Tensor, Gradients]:
    model = model.double()
    sums = model(rows, SMOOTHING)
    (sums.loss * SCALE).backward()
    gradients = {}
    for name, parameter in model.named_parameters():
        assert parameter.grad is not None
        gradients[name] = parameter.grad
        parameter.grad = None
    return torch.stack((sums.loss.detach(), sums.nll)), gradients


def fused_gradients(
    model: Transformer,
    settings: ModelSettings,
    rows: RowTensors,
    compute_type: torch.dtype,
    mask_key: Tensor,
) -> tuple[Tensor, Gradients]:
    flat = FlatWeights(model.float(), compute_type)
    joint = model.source_embedding is model.target_embedding
    fused = FusedTransformer(settings, flat, joint, rows.source.shape[1], SMOOTHING)
    with poisoned_outputs():
        sums = fused.add_gradients(rows, mask_key, torch.tensor(SCALE, device=DEVICE))
    return sums, flat.views(flat.gradients)


def error_of(found: Gradients, exact: Gradients) -> float:
    assert found.keys() == exact.keys()
    together = [torch.cat([one[name].flatten() for name in exact]) for one in (found, exact)]
    return relative_error(*together)


def key() -> Tensor:
    return torch.randint(-(2**31), 2**31, (2,), dtype=torch.int32, device=DEVICE)


@pytest.mark.parametrize("compute_type", COMPUTE_TYPES, ids=str)
@pytest.mark.parametrize(
    ("preset", "slots", "joint"),
    [("tiny", 64, True), ("small", 192, False), ("base", 128, True), ("big", 128, False)],
)
def test_losses_and_gradients_equal_the_transformers(
    preset: Literal["tiny", "small", "base", "big"],
    slots: int,
    joint: bool,
    compute_type: torch.dtype,
) -> None:
    generator = seeded()
    sizes = SMALL if IS_INTERPRETED else ModelSettings(preset, encoder_layers=2, decoder_layers=2)
    settings = replace(sizes, dropout=0.0, attention_dropout=0.0, relu_dropout=0.0)
    model = make_model(settings, joint)
    rows = random_rows(2 if IS_INTERPRETED else 8, slots, WORDS - 100, generator)
    exact_sums, exact = exact_gradients(model, rows)
    sums, gradients = fused_gradients(model, settings, rows, compute_type, key())
    assert relative_error(sums, exact_sums) < 2e-3
    assert error_of(gradients, exact) < TOLERANCES[compute_type]


@pytest.fixture
def hashed_dropout(monkeypatch: pytest.MonkeyPatch) -> Callable[[Tensor], None]:
    """Let the plain model drop what the kernels drop: the uses come in the same order."""
    keys: list[Tensor] = []
    sites = count(1)

    def dropout(x: Tensor, probability: float, training: bool) -> Tensor:
        return Mask(probability, next(sites), keys[0])(x)

    def attend(
        query: Tensor, keys_: Tensor, values: Tensor, mask: Tensor, probability: float
    ) -> Tensor:
        scores = query @ keys_.mT / query.shape[-1] ** 0.5
        weights = scores.masked_fill(~mask, float("-inf")).softmax(dim=-1)
        return dropout(weights, probability, True) @ values

    monkeypatch.setattr(transformer_module, "dropout", dropout)
    monkeypatch.setattr("torch.nn.functional.scaled_dot_product_attention", attend)
    return keys.append


@pytest.mark.parametrize("compute_type", COMPUTE_TYPES, ids=str)
def test_with_dropout_too(
    compute_type: torch.dtype, hashed_dropout: Callable[[Tensor], None]
) -> None:
    generator = seeded()
    sizes = SMALL if IS_INTERPRETED else ModelSettings("base", encoder_layers=3, decoder_layers=2)
    settings = replace(sizes, dropout=0.1, attention_dropout=0.2, relu_dropout=0.3)
    model = make_model(settings, joint=True)
    rows = random_rows(2 if IS_INTERPRETED else 8, 128, WORDS, generator)
    mask_key = key()
    hashed_dropout(mask_key)
    exact_sums, exact = exact_gradients(model, rows)
    sums, gradients = fused_gradients(model, settings, rows, compute_type, mask_key)
    assert relative_error(sums, exact_sums) < 2e-3
    assert error_of(gradients, exact) < TOLERANCES[compute_type]


def test_padding_tokens_change_no_loss_and_no_gradient() -> None:
    generator = seeded()
    settings = SMALL if IS_INTERPRETED else ModelSettings("tiny")
    model = make_model(settings, joint=True)
    rows = random_rows(2 if IS_INTERPRETED else 8, 64, WORDS, generator)
    noise = torch.randint_like(rows.source, 3, WORDS)
    noisy = rows._replace(
        source=torch.where(rows.source_segments == 0, noise, rows.source),
        target=torch.where(rows.target_segments == 0, noise, rows.target),
        target_input=torch.where(rows.target_segments == 0, noise, rows.target_input),
    )
    mask_key = key()
    results = [
        fused_gradients(model, settings, one, COMPUTE_TYPES[0], mask_key) for one in (rows, noisy)
    ]
    assert torch.equal(results[0][0], results[1][0])
    exact = {name: gradient.double() for name, gradient in results[0][1].items()}
    # Words add up their gradients in any order.
    assert error_of(results[1][1], exact) < 1e-5
