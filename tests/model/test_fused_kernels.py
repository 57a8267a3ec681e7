"""Every kernel, forward and backward, against plain PyTorch in float64, on fresh random inputs."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

from model import fused_reference as reference
from model.fused_reference import (
    COMPUTE_TYPES,
    DEVICE,
    IS_INTERPRETED,
    TOLERANCES,
    Mask,
    needs_kernels,
    poisoned_outputs,
    random_rows,
    relative_error,
)

pytest.importorskip("triton", reason="triton is not installed")

from dragoman.model.fused.adam import adam
from dragoman.model.fused.attention import Kind, Memory, cross_attention, self_attention
from dragoman.model.fused.dropout import Dropout
from dragoman.model.fused.embedding import add_embedding_gradient, embed
from dragoman.model.fused.feed_forward import feed_forward
from dragoman.model.fused.flat_weights import FlatWeights, Weight
from dragoman.model.fused.loss import sums_and_gradient
from dragoman.model.fused.muon import muon
from dragoman.model.fused.norm import add_norm
from dragoman.model.fused.product import linear
from dragoman.model.muon import orthogonalize, update_size

pytestmark = [pytest.mark.gpu, needs_kernels]
EPSILON = 1e-6
Tensors = dict[str, Tensor]


@pytest.fixture
def generator() -> torch.Generator:
    generator = torch.Generator()
    print("seed", torch.manual_seed(generator.seed()).initial_seed())
    return generator


@pytest.fixture(params=[0.0, 0.1], ids=["whole", "dropout"])
def dropout(request: pytest.FixtureRequest) -> Dropout:
    key = torch.randint(-(2**31), 2**31, (2,), dtype=torch.int32, device=DEVICE)
    return Dropout(request.param, 5, key)


@pytest.fixture(params=COMPUTE_TYPES, ids=str)
def compute_type(request: pytest.FixtureRequest) -> torch.dtype:
    kind: torch.dtype = request.param
    return kind


def mask_of(dropout: Dropout) -> Mask:
    return Mask(dropout.probability, dropout.site, dropout.key)


def draw(*shape: int, scale: float = 1.0) -> Tensor:
    return torch.randn(*shape, device=DEVICE) * scale


def as_weight(rounded: Tensor) -> Weight:
    return Weight(rounded.float(), rounded.clone(), torch.zeros_like(rounded.float()))


def compare(
    fused: Callable[..., Any],
    exact: Callable[..., Any],
    inputs: Tensors,
    weights: Tensors,
    compute_type: torch.dtype,
) -> None:
    """Compare all outputs, and all gradients for random gradients of the outputs."""
    # What is rounded before both see it counts as no error.
    inputs = {name: value.to(compute_type) for name, value in inputs.items()}
    weights = {name: value.to(compute_type) for name, value in weights.items()}
    mine = {name: value.clone().requires_grad_() for name, value in inputs.items()}
    my_weights = {name: as_weight(value) for name, value in weights.items()}
    with poisoned_outputs():
        outputs = _tuple(fused(**mine, **my_weights))
        output_gradients = [torch.randn_like(output) for output in outputs]
        torch.autograd.backward(outputs, output_gradients)
    theirs = {
        name: value.double().requires_grad_() for name, value in {**inputs, **weights}.items()
    }
    exact_outputs = _tuple(exact(**theirs))
    torch.autograd.backward(exact_outputs, [one.double() for one in output_gradients])
    found: list[tuple[str, Tensor | None, Tensor | None]] = [
        *((f"output {place}", one, exact_outputs[place]) for place, one in enumerate(outputs)),
        *((f"gradient of {name}", mine[name].grad, theirs[name].grad) for name in inputs),
        *(
            (f"gradient of {name}", my_weights[name].gradient, theirs[name].grad)
            for name in weights
        ),
    ]
    for name, one, other in found:
        assert one is not None, name
        assert other is not None, name
        assert relative_error(one.detach(), other.detach()) < TOLERANCES[compute_type], name


def _tuple(outputs: Any) -> tuple[Tensor, ...]:
    return outputs if isinstance(outputs, tuple) else (outputs,)


@pytest.mark.parametrize(("tokens", "width"), [(1024, 512), (260, 1024), (192, 320)])
@pytest.mark.usefixtures("generator")
def test_add_norm(tokens: int, width: int, dropout: Dropout, compute_type: torch.dtype) -> None:
    tokens = 12 if IS_INTERPRETED else tokens
    inputs = {"stream": draw(tokens, width), "branch": draw(tokens, width)}
    weights = {
        "bias": draw(width),
        "norm_weight": 1 + draw(width, scale=0.2),
        "norm_bias": draw(width),
    }
    compare(
        lambda stream, branch, bias, norm_weight, norm_bias: add_norm(
            stream, branch, bias, (norm_weight, norm_bias), EPSILON, dropout
        ),
        lambda stream, branch, bias, norm_weight, norm_bias: reference.add_norm(
            stream, branch, bias, (norm_weight, norm_bias), EPSILON, mask_of(dropout)
        ),
        inputs,
        weights,
        compute_type,
    )
    compare(
        lambda branch, norm_weight, norm_bias: add_norm(
            None, branch, None, (norm_weight, norm_bias), EPSILON, dropout
        ),
        lambda branch, norm_weight, norm_bias: reference.add_norm(
            None, branch, None, (norm_weight, norm_bias), EPSILON, mask_of(dropout)
        ),
        {"branch": inputs["branch"]},
        {name: weights[name] for name in ("norm_weight", "norm_bias")},
        compute_type,
    )


@pytest.mark.parametrize(("width", "inner_width"), [(512, 2048), (128, 200)])
@pytest.mark.usefixtures("generator")
def test_feed_forward(
    width: int, inner_width: int, dropout: Dropout, compute_type: torch.dtype
) -> None:
    compare(
        lambda **given: feed_forward(**given, dropout=dropout),
        lambda **given: reference.feed_forward(**given, mask=mask_of(dropout)),
        {"inputs": draw(20 if IS_INTERPRETED else 640, width)},
        {
            "inner": draw(inner_width, width, scale=0.02),
            # Far from zero: near it rounding decides what ReLU cuts, and whole elements differ.
            "inner_bias": 4 * draw(inner_width).sign(),
            "outer": draw(width, inner_width, scale=0.05),
        },
        compute_type,
    )


@pytest.mark.usefixtures("generator")
def test_linear(compute_type: torch.dtype) -> None:
    compare(
        linear,
        lambda inputs, weight: inputs @ weight.T,
        {"inputs": draw(640, 512)},
        {"weight": draw(1536, 512, scale=0.05)},
        compute_type,
    )


# Slots of source and target, heads and their width.
ATTENTIONS = [
    (128, 128, 8, 64),
    (64, 128, 4, 32),
    (192, 64, 2, 16),
    (320, 512, 2, 64),
    (256, 128, 2, 128),
]


@pytest.mark.parametrize(("source", "target", "heads", "head_width"), ATTENTIONS)
def test_attention(
    source: int,
    target: int,
    heads: int,
    head_width: int,
    dropout: Dropout,
    compute_type: torch.dtype,
    generator: torch.Generator,
) -> None:
    rows, width = 2 if IS_INTERPRETED else 6, heads * head_width
    source_segments = random_rows(rows, source, 50, generator).source_segments
    target_segments = random_rows(rows, target, 50, generator).target_segments
    target_segments[0, 10:] = 0  # A row that is almost all padding.
    source_segments[1, 20:] = 0  # Target segments whose source segment is missing.
    for is_causal in (False, True):
        kind = Kind(heads, is_causal, dropout)
        compare(
            lambda x, kind=kind: self_attention(x, target_segments, kind),
            lambda x, is_causal=is_causal: reference.attention(
                x.chunk(3, dim=1),
                target_segments,
                target_segments,
                heads,
                is_causal,
                mask_of(dropout),
            ),
            {"x": draw(rows * target, 3 * width)},
            {},
            compute_type,
        )
    kind = Kind(heads, False, dropout)
    segments = target_segments, source_segments

    def two_layers(queries: Tensor, keys_values: Tensor) -> Tensor:
        memory = Memory(keys_values)
        lower = cross_attention(queries, memory, 0, *segments, kind)
        return cross_attention(queries + lower, memory, 1, *segments, kind)

    def two_exact_layers(queries: Tensor, keys_values: Tensor) -> Tensor:
        parts = keys_values.chunk(4, dim=1)
        mask = mask_of(dropout)
        lower = reference.attention((queries, *parts[:2]), *segments, heads, False, mask)
        return reference.attention((queries + lower, *parts[2:]), *segments, heads, False, mask)

    compare(
        two_layers,
        two_exact_layers,
        {"queries": draw(rows * target, width), "keys_values": draw(rows * source, 4 * width)},
        {},
        compute_type,
    )


@pytest.mark.parametrize("width", [512, 96])
def test_embedding(width: int, compute_type: torch.dtype, generator: torch.Generator) -> None:
    words = 1000
    rows = random_rows(3 if IS_INTERPRETED else 48, 128, words, generator)
    table = draw(128, width)
    weight = as_weight(draw(words, width, scale=0.04).to(compute_type))
    with poisoned_outputs():
        found = embed(rows.source, rows.source_positions, weight, table)
    embedded = weight.copy.double()[rows.source.long()] * width**0.5
    exact = (embedded + table.double()[rows.source_positions.long()]).flatten(0, 1)
    assert relative_error(found, exact) < TOLERANCES[compute_type]

    gradient = torch.randn_like(found)
    add_embedding_gradient(rows.source, rows.source_segments, weight, gradient)
    real = rows.source_segments.flatten() > 0
    by_word = torch.zeros(words, width, dtype=torch.float64, device=DEVICE)
    by_word.index_add_(0, rows.source.flatten()[real], gradient.double()[real] * width**0.5)
    assert relative_error(weight.gradient, by_word) < TOLERANCES[torch.float32]


@pytest.mark.parametrize("words", [32_768, 5_003, 320])
@pytest.mark.parametrize("label_smoothing", [0.0, 0.1])
def test_loss(
    words: int, label_smoothing: float, compute_type: torch.dtype, generator: torch.Generator
) -> None:
    words = min(words, 5_003) if IS_INTERPRETED else words
    width, scale = 256, 0.7
    rows = random_rows(1 if IS_INTERPRETED else 48, 128, words, generator)
    labels, segments = rows.target.flatten(), rows.target_segments.flatten()
    hidden = draw(len(labels), width).to(compute_type)
    weight = as_weight(draw(words, width, scale=0.07).to(compute_type))
    with poisoned_outputs():
        sums, gradient = sums_and_gradient(
            hidden, weight, labels, segments, label_smoothing, torch.tensor(scale, device=DEVICE)
        )
    exact_hidden = hidden.double().requires_grad_()
    exact_words = weight.copy.double().requires_grad_()
    exact = reference.loss_sums(exact_hidden, exact_words, labels, segments, label_smoothing)
    (exact[0] * scale).backward()
    tolerance = TOLERANCES[compute_type]
    assert relative_error(sums, exact.detach()) < tolerance
    assert exact_hidden.grad is not None
    assert exact_words.grad is not None
    assert relative_error(gradient, exact_hidden.grad) < tolerance
    assert relative_error(weight.gradient, exact_words.grad) < tolerance


@pytest.mark.usefixtures("generator")
def test_kernels_and_reference_drop_the_same_elements(compute_type: torch.dtype) -> None:
    tokens, width = (8, 512) if IS_INTERPRETED else (4096, 512)
    key = torch.tensor([99, -3], dtype=torch.int32, device=DEVICE)
    ones = torch.ones(tokens, width, dtype=compute_type, device=DEVICE)
    norm = (
        as_weight(torch.zeros(width, device=DEVICE)),
        as_weight(torch.zeros(width, device=DEVICE)),
    )
    stream, _ = add_norm(None, ones, None, norm, EPSILON, Dropout(0.1, 4, key))
    assert torch.equal(stream > 0, Mask(0.1, 4, key).kept(stream.shape))


@pytest.mark.parametrize("weight_decay", [0.0, 0.1])
@pytest.mark.usefixtures("generator")
def test_adam_equals_adamw(weight_decay: float, compute_type: torch.dtype) -> None:
    model = torch.nn.Linear(37, 45).to(DEVICE)
    flat = FlatWeights(model, compute_type)
    exact = {name: one.detach().double().requires_grad_() for name, one in model.named_parameters()}
    betas, rate, factor, epsilon = (0.9, 0.999), 1e-2, 0.5, 1e-9
    optimizer = torch.optim.AdamW(
        exact.values(), lr=rate, betas=betas, eps=epsilon, weight_decay=weight_decay
    )
    for updates in range(1, 6):
        flat.gradients.normal_()
        for name, gradient in flat.views(flat.gradients).items():
            exact[name].grad = gradient.double() * factor
        step_size, root = rate / (1 - betas[0] ** updates), (1 - betas[1] ** updates) ** 0.5
        numbers = [0.0, factor, 1 - rate * weight_decay, step_size, root]
        adam(flat, torch.tensor(numbers, device=DEVICE), *betas, epsilon)
        optimizer.step()
    for name, parameter in model.named_parameters():
        assert relative_error(parameter.detach(), exact[name].detach()) < 1e-6, name
    assert torch.equal(flat.copies, flat.values.to(compute_type))
    before = [one.clone() for one in (flat.values, flat.means, flat.squares, flat.copies)]
    numbers[0] = 1.0
    adam(flat, torch.tensor(numbers, device=DEVICE), *betas, epsilon)
    after = [flat.values, flat.means, flat.squares, flat.copies]
    assert all(torch.equal(one, other) for one, other in zip(before, after, strict=True))


@pytest.mark.parametrize("weight_decay", [0.0, 0.1])
@pytest.mark.usefixtures("generator")
def test_muon_equals_its_definition(weight_decay: float, compute_type: torch.dtype) -> None:
    layers = [torch.nn.Linear(37, 45), torch.nn.Linear(37, 45), torch.nn.Linear(48, 20)]
    model = torch.nn.Sequential(*layers).to(DEVICE)
    flat = FlatWeights(model, compute_type, "muon")
    assert sorted(flat.of_muon) == ["0.weight", "1.weight", "2.weight"]
    decay, rate, factor = 0.9, 1e-2, 0.5
    values, copies = flat.views(flat.values), flat.views(flat.copies)
    biases = {name: values[name].clone() for name in flat.of_adam}
    momenta = {name: torch.zeros_like(values[name]).double() for name in flat.of_muon}
    for _ in range(3):
        flat.gradients.normal_()
        gradients = flat.views(flat.gradients)
        before = {name: values[name].clone() for name in flat.of_muon}
        numbers = [0.0, factor, 1 - rate * weight_decay, rate]
        muon(flat, torch.tensor(numbers, device=DEVICE), decay)
        for name in flat.of_muon:
            new = (1 - decay) * factor * gradients[name].double()
            momenta[name] = decay * momenta[name] + new
            (update,) = orthogonalize([(decay * momenta[name] + new)[None]])
            moved = before[name] * (1 - rate * weight_decay) - values[name]
            expected = rate * update_size(*update[0].shape) * update[0]
            # In bfloat16 on a GPU, where such small matrices are off by up to 6%.
            assert relative_error(moved, expected) < 0.1, name
            assert relative_error(flat.views(flat.means)[name], momenta[name]) < 1e-6, name
            assert torch.equal(copies[name], values[name].to(compute_type))
    assert all(torch.equal(values[name], bias) for name, bias in biases.items())
    flat.gradients.zero_()
    flat.means.zero_()
    before_nothing = flat.values.clone()
    muon(flat, torch.tensor([0.0, factor, 1.0, rate], device=DEVICE), decay)
    assert torch.equal(flat.values, before_nothing), "no gradient, no update"
    before_skipping = [one.clone() for one in (flat.values, flat.means, flat.copies)]
    flat.gradients.fill_(float("nan"))
    muon(flat, torch.tensor([1.0, *numbers[1:]], device=DEVICE), decay)
    after = [flat.values, flat.means, flat.copies]
    assert all(torch.equal(one, other) for one, other in zip(before_skipping, after, strict=True))
