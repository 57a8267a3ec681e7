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
    shapes = {
        "a.weight": torch.Size((2, 50)),
        "decoder.0.cross.key_value.weight": torch.Size((16, 8)),
        "decoder.0.cross.query.weight": torch.Size((8, 8)),
        "b": torch.Size((64,)),
        "c": torch.Size((1,)),
    }
    starts, end = lay_out(shapes)
    assert starts == {
        "b": 0,
        "c": 64,
        "a.weight": 128,
        "decoder.0.cross.query.weight": 256,
        "decoder.0.cross.key_value.weight": 320,
    }
    assert end == 448
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


def test_muons_matrices_stand_in_stacks_and_have_no_squares() -> None:
    torch.manual_seed(0)
    model = Transformer(SETTINGS, 45, 45, joint=True)
    flat = FlatWeights(model, torch.bfloat16, "muon")
    assert flat.squares.numel() == min(
        flat.view(flat.values, [name]).storage_offset() for name in flat.of_muon
    )
    found = {(one.rows, one.columns): one.count for one in flat.stacks()}
    layers = 4
    assert found == {(32, 32): layers * (4 + 8), (32, 50): 2 * layers, (50, 32): 2 * layers}
    for stack in flat.stacks():
        views = torch.as_strided(
            flat.means,
            (stack.count, stack.rows, stack.columns),
            (stack.stride, stack.columns, 1),
            stack.start,
        )
        views += 1
    assert all((flat.view(flat.means, [name]) == 1).all() for name in flat.of_muon)
    assert all((flat.view(flat.means, [name]) == 0).all() for name in flat.of_adam)
    for name in flat.of_adam:
        flat.view(flat.squares, [name]).fill_(1)


def test_maps_that_do_not_end_on_a_border_leave_gaps() -> None:
    model = Transformer(ModelSettings(preset="tiny", d_model=16, feed_forward=6), 45, 45, True)
    stacks = {one.columns: one for one in FlatWeights(model, torch.bfloat16, "muon").stacks()}
    assert (stacks[6].rows, stacks[6].stride) == (16, 128)
