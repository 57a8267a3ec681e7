import pytest
import torch

from dragoman.config import ModelSettings
from dragoman.model.fused.flat_weights import BORDER, FlatWeights, lay_out
from dragoman.model.transformer import Transformer, load_weights

SETTINGS = ModelSettings(preset="tiny", d_model=32, heads=2, feed_forward=50)
CROSS = [f"decoder.{layer}.cross.key_value.weight" for layer in range(4)]


def make(joint: bool = True) -> tuple[Transformer, dict[str, torch.Tensor], FlatWeights]:
    torch.manual_seed(0)
    model = Transformer(SETTINGS, 45, 60 if not joint else 45, joint)
    before = {name: parameter.detach().clone() for name, parameter in model.named_parameters()}
    return model, before, FlatWeights(model, torch.bfloat16)


@pytest.mark.parametrize("joint", [True, False])
def test_parameters_stay_what_they_were_and_become_views(joint: bool) -> None:
    model, before, flat = make(joint)
    assert {name: one.shape for name, one in model.named_parameters()} == {
        name: one.shape for name, one in before.items()
    }
    for name, parameter in model.named_parameters():
        assert torch.equal(parameter, before[name])
        assert parameter.untyped_storage().data_ptr() == flat.values.untyped_storage().data_ptr()
    assert torch.equal(flat.copies, flat.values.bfloat16())
    load_weights(model, {name: one + 1 for name, one in before.items()})
    for name, view in flat.views(flat.values).items():
        assert torch.equal(view, before[name] + 1)
    flat.refresh_copies()
    assert torch.equal(flat.copies, flat.values.bfloat16())


def test_no_two_parameters_overlap_and_all_start_on_a_border() -> None:
    sizes = {"a": 100, "decoder.0.cross.key_value.weight": 128, "b": 64, "c": 1}
    starts, end = lay_out(sizes)
    assert starts == {"a": 0, "b": 128, "c": 192, "decoder.0.cross.key_value.weight": 256}
    assert end == 384
    _, before, flat = make()
    for number, view in enumerate(flat.views(flat.means).values(), start=1):
        assert view.storage_offset() % BORDER == 0
        view.fill_(number)
    for number, view in enumerate(flat.views(flat.means).values(), start=1):
        assert (view == number).all()
    assert sum(view.numel() for view in flat.views(flat.means).values()) == sum(
        one.numel() for one in before.values()
    )


def test_keys_and_values_of_all_layers_are_one_matrix() -> None:
    _, before, flat = make()
    stacked = flat.weight(*CROSS)
    assert torch.equal(stacked.value, torch.cat([before[name] for name in CROSS]))
    stacked.gradient.fill_(1.0)
    assert float(flat.gradients.sum()) == stacked.gradient.numel()
    assert all((flat.weight(name).gradient == 1).all() for name in CROSS)
    with pytest.raises(AssertionError, match="elsewhere"):
        flat.weight(CROSS[1], CROSS[0])


def test_shared_embeddings_are_there_once() -> None:
    model, _, flat = make(joint=True)
    assert model.source_embedding.weight is model.target_embedding.weight
    assert "source_embedding.weight" not in flat.views(flat.values)
    _, _, separate = make(joint=False)
    assert separate.weight("source_embedding.weight").value.shape == (45, 32)
