from dataclasses import replace

import numpy as np
import pytest
import torch

from dragoman.config import ModelSettings
from dragoman.corpus.rows import pack
from dragoman.corpus.store import PairTokens, pack_lines
from dragoman.model.transformer import RowTensors, Transformer, count_parameters, sinusoids

WORDS = 50
TINY = ModelSettings(
    preset="tiny", encoder_layers=2, decoder_layers=2, d_model=32, heads=4, feed_forward=64
)


@pytest.fixture
def model() -> Transformer:
    torch.manual_seed(0)
    return Transformer(TINY, WORDS, WORDS, joint=True).eval()


def random_lines(count: int, longest: int, seed: int) -> list[list[int]]:
    generator = np.random.default_rng(seed)
    return [
        generator.integers(3, WORDS, size=generator.integers(1, longest + 1)).tolist()
        for _ in range(count)
    ]


def to_rows(sources: list[list[int]], targets: list[list[int]], width: int) -> RowTensors:
    pairs = PairTokens(pack_lines(sources, "uint16"), pack_lines(targets, "uint16"))
    return RowTensors.copy_to(torch.device("cpu"), pack(pairs, width, begin=1).arrays())


@pytest.mark.parametrize(("preset", "parameters"), [("base", 60_880_896), ("big", 209_842_176)])
def test_reference_sizes(preset: str, parameters: int) -> None:
    with torch.device("meta"):
        model = Transformer(ModelSettings(preset=preset), 32_768, 32_768, joint=True)  # type: ignore[arg-type]
    assert count_parameters(model) == parameters
    # Weights and two Adam moments, as a checkpoint of the reference runs holds them.
    if preset == "base":
        assert parameters * 4 * 3 == 730_570_752


def test_neighbours_and_padding_change_no_logit(model: Transformer) -> None:
    sources, targets = random_lines(7, 10, seed=1), random_lines(7, 10, seed=2)
    packed = to_rows(sources, targets, width=24)
    assert packed.target_segments.max() > 1, "several pairs share a row"
    assert (packed.target_segments == 0).any(), "there is padding"
    packed_hidden = model.hidden_states(packed)
    for source, target in zip(sources, targets, strict=True):
        alone = to_rows([source], [target], width=len(source) + len(target))
        alone_hidden = model.hidden_states(alone)[0, : len(target)]
        found = 0
        for row in range(len(packed.target)):
            for segment in range(1, int(packed.target_segments[row].max()) + 1):
                at = packed.target_segments[row] == segment
                same = packed.target[row][at].tolist() == target
                at_source = packed.source_segments[row] == segment
                if same and packed.source[row][at_source].tolist() == source:
                    torch.testing.assert_close(
                        packed_hidden[row][at], alone_hidden, atol=1e-5, rtol=1e-5
                    )
                    found += 1
        assert found == 1


def test_padding_tokens_change_no_loss_and_no_gradient(model: Transformer) -> None:
    rows = to_rows(random_lines(5, 10, seed=3), random_lines(5, 10, seed=4), width=16)
    noise = torch.randint(3, WORDS, rows.source.shape, dtype=rows.source.dtype)
    noisy = rows._replace(
        source=torch.where(rows.source_segments == 0, noise, rows.source),
        target=torch.where(rows.target_segments == 0, noise, rows.target),
        target_input=torch.where(rows.target_segments == 0, noise, rows.target_input),
    )
    gradients = []
    for batch in (rows, noisy):
        model.zero_grad()
        loss = model(batch, 0.1).loss
        loss.backward()
        gradients.append([loss, *(parameter.grad for parameter in model.parameters())])
    assert all(torch.isfinite(value).all() for value in gradients[0] if value is not None)
    torch.testing.assert_close(gradients[0], gradients[1], atol=1e-5, rtol=1e-5)


def test_future_target_tokens_change_no_earlier_state(model: Transformer) -> None:
    source, target = random_lines(1, 10, seed=5), [[5, 6, 7, 8, 9]]
    before = model.hidden_states(to_rows(source, target, width=16))
    target[0][3] = 20
    after = model.hidden_states(to_rows(source, target, width=16))
    torch.testing.assert_close(before[0, :4], after[0, :4])
    assert not torch.allclose(before[0, 4], after[0, 4])


@pytest.mark.parametrize("name", ["dropout", "attention_dropout", "relu_dropout"])
def test_each_dropout_acts_in_training_only(name: str) -> None:
    none = replace(TINY, dropout=0.0, attention_dropout=0.0, relu_dropout=0.0)
    settings = replace(none, **{name: 0.5})  # type: ignore[arg-type]
    torch.manual_seed(0)
    model = Transformer(settings, WORDS, WORDS, joint=True)
    rows = to_rows(random_lines(4, 8, seed=8), random_lines(4, 8, seed=9), width=16)

    def twice() -> list[float]:
        return [float(model(rows, 0.0).nll) for _ in range(2)]

    first, second = twice()
    assert first != second
    model.eval()
    first, second = twice()
    assert first == second


def test_separate_vocabularies_have_separate_embeddings() -> None:
    model = Transformer(TINY, 40, 60, joint=False)
    assert model.source_embedding.weight.shape == (40, 32)
    assert model.target_embedding.weight.shape == (60, 32)


def test_sinusoids_tell_positions_apart() -> None:
    table = sinusoids(torch.arange(500), 64)
    assert table.shape == (500, 64)
    assert torch.equal(table[0], torch.cat((torch.zeros(32), torch.ones(32))))
    distances = torch.cdist(table, table) + torch.eye(500) * 100
    assert distances.min() > 0.1


def test_branches_that_begin_at_zero_add_nothing_and_learn() -> None:
    torch.manual_seed(0)
    model = Transformer(replace(TINY, zero_branches=True), WORDS, WORDS, joint=True).eval()
    rows = to_rows(random_lines(3, 10, seed=1), random_lines(3, 10, seed=2), width=24)
    embedded = model._embed(
        model.source_embedding, rows.source, sinusoids(rows.source_positions, 32)
    )
    encoded = model.encode(rows.source, rows.source_positions, rows.source_segments)
    torch.testing.assert_close(encoded, model.encoder_norm(embedded))
    model(rows, 0.1).loss.backward()
    zeros = [one for one in model.parameters() if one.ndim == 2 and not one.any()]
    assert len(zeros) == 2 * 2 + 2 * 3, "the ends of all branches, and nothing else"
    assert any(one.grad is not None and one.grad.any() for one in zeros)
