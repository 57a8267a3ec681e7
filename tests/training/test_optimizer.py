import pytest
import torch
from torch import nn

from dragoman.config import ModelSettings, OptimizerKind, OptimizerSettings, Precision
from dragoman.model.transformer import Transformer
from dragoman.training.loss_scale import FIRST_SCALE, STEPS_TO_GROW, LossScale
from dragoman.training.optimizer import Optimizer

CPU = torch.device("cpu")


def make(
    settings: OptimizerSettings | None = None, precision: Precision = "float32"
) -> tuple[nn.Linear, Optimizer]:
    torch.manual_seed(0)
    model = nn.Linear(4, 3)
    return model, Optimizer(model, settings or OptimizerSettings(), LossScale(precision, CPU))


def backward(model: nn.Linear, optimizer: Optimizer, factor: float = 1.0, seed: int = 0) -> None:
    x = torch.randn(5, 4, generator=torch.Generator().manual_seed(seed))
    (model(x).pow(2).sum() * factor * optimizer.loss_scale).backward()


@pytest.mark.parametrize("precision", ["float32", "float16"])
def test_equals_plain_adam_whatever_the_loss_scale(precision: Precision) -> None:
    model, optimizer = make(OptimizerSettings(beta2=0.997), precision)
    torch.manual_seed(0)
    plain = nn.Linear(4, 3)
    adam = torch.optim.Adam(plain.parameters(), betas=(0.9, 0.997), eps=1e-9)
    for step in range(5):
        for group in adam.param_groups:
            group["lr"] = 0.01 * (step + 1)
        backward(model, optimizer, seed=step)
        x = torch.randn(5, 4, generator=torch.Generator().manual_seed(step))
        plain(x).pow(2).sum().backward()
        norm = torch.nn.utils.get_total_norm([p.grad for p in plain.parameters()])  # type: ignore[misc]
        update = optimizer.step(0.01 * (step + 1))
        torch.testing.assert_close(update.gradient_norm, norm)
        adam.step()
        adam.zero_grad()
    torch.testing.assert_close(model.weight, plain.weight)


def test_clipping_scales_the_whole_gradient() -> None:
    # Adam itself does not care for the scale of gradients; epsilon makes it visible.
    clipped = make(OptimizerSettings(clip_norm=1.0, epsilon=1.0))
    scaled = make(OptimizerSettings(epsilon=1.0))
    backward(*clipped)
    norm = float(clipped[1].step(0.1).gradient_norm)
    assert norm > 1
    backward(*scaled, factor=1 / norm)
    scaled[1].step(0.1)
    torch.testing.assert_close(clipped[0].weight, scaled[0].weight)


@pytest.mark.parametrize("kind", ["adam", "muon"])
@pytest.mark.parametrize("factor", [float("inf"), float("nan")])
def test_step_without_finite_gradient_changes_nothing(factor: float, kind: OptimizerKind) -> None:
    model, optimizer = make(OptimizerSettings(kind=kind), precision="float16")
    backward(model, optimizer)
    optimizer.step(0.1)
    before = [model.weight.clone(), *(value.clone() for value in optimizer.tensors().values())]
    backward(model, optimizer, factor)
    update = optimizer.step(0.1)
    assert float(update.skipped) == 1.0
    after = [model.weight, *optimizer.tensors().values()]
    assert all(torch.equal(one, other) for one, other in zip(before, after, strict=True))
    assert float(optimizer.loss_scale) == FIRST_SCALE / 2


def test_loss_scale_grows_after_many_good_steps() -> None:
    scale = LossScale("float16", CPU)
    for _ in range(STEPS_TO_GROW):
        scale.update(torch.tensor(0.0))
    assert float(scale.value) == FIRST_SCALE * 2
    fixed = LossScale("bfloat16", CPU)
    fixed.update(torch.tensor(1.0))
    assert float(fixed.value) == 1.0


@pytest.mark.parametrize("kind", ["adam", "muon"])
def test_goes_on_exactly_from_saved_moments(kind: OptimizerKind) -> None:
    settings = OptimizerSettings(kind=kind)
    model, optimizer = make(settings, precision="float16")
    for step in range(3):
        backward(model, optimizer, seed=step)
        optimizer.step(0.1)
    copy, copied = make(settings, precision="float16")
    copy.load_state_dict(model.state_dict())
    copied.load(optimizer.tensors(), optimizer.state())
    for one, its in ((model, optimizer), (copy, copied)):
        backward(one, its, seed=9)
        its.step(0.1)
    assert torch.equal(model.weight, copy.weight)


def test_muon_moves_matrices_by_orthogonal_updates_and_the_rest_as_adam_does() -> None:
    settings = OptimizerSettings(kind="muon", matrix_rate=0.5, momentum=0.9)
    (model, optimizer), (adams, adam) = make(settings), make()
    assert set(optimizer.tensors()) == {"weight.momentum", "bias.exp_avg", "bias.exp_avg_sq"}
    for step in range(3):
        before = model.weight.detach().clone()
        for one, its in ((model, optimizer), (adams, adam)):
            with torch.no_grad():
                one.weight.copy_(before)  # So that both biases see the same.
            backward(one, its, seed=step)
            its.step(0.01)
        values = torch.linalg.svdvals(before - model.weight) / (0.01 * 0.5 * 0.2 * 4**0.5)
        assert values.min() > 0.75
        assert values.max() < 1.25
        torch.testing.assert_close(model.bias, adams.bias)


def test_muon_looks_ahead_of_its_momentum() -> None:
    model, optimizer = make(OptimizerSettings(kind="muon", momentum=0.9))
    momentum = torch.zeros(3, 4)
    for step in range(3):
        backward(model, optimizer, seed=step)
        assert model.weight.grad is not None
        gradient, before = model.weight.grad.clone(), model.weight.detach().clone()
        optimizer.step(0.01)
        momentum = 0.9 * momentum + 0.1 * gradient
        torch.testing.assert_close(optimizer.tensors()["weight.momentum"], momentum)
        left, _, right = torch.linalg.svd(0.9 * momentum + 0.1 * gradient, full_matrices=False)
        moved = left.mT @ (before - model.weight.detach()) @ right.mT
        assert float((moved - moved.diag().diag()).abs().max()) < 1e-5
        assert (moved.diag() > 0).all()


def test_muon_knows_no_scale_of_gradients_and_decays_weights() -> None:
    plain = make(OptimizerSettings(kind="muon"))
    clipped = make(OptimizerSettings(kind="muon", clip_norm=0.1))
    decayed = make(OptimizerSettings(kind="muon", weight_decay=2.0))
    before = plain[0].weight.detach().clone()
    for one in (plain, clipped, decayed):
        backward(*one)
        one[1].step(0.1)
    torch.testing.assert_close(plain[0].weight, clipped[0].weight)
    torch.testing.assert_close(plain[0].weight - decayed[0].weight, 0.1 * 2.0 * before)


def test_muon_treats_query_key_and_value_apart() -> None:
    torch.manual_seed(0)
    model = Transformer(ModelSettings(preset="tiny", d_model=16, feed_forward=24), 30, 30, True)
    optimizer = Optimizer(model, OptimizerSettings(kind="muon"), LossScale("float32", CPU))
    before = {name: one.detach().clone() for name, one in model.named_parameters()}
    for parameter in model.parameters():
        parameter.grad = torch.randn_like(parameter)
    optimizer.step(0.01)
    moved = {name: before[name] - one.detach() for name, one in model.named_parameters()}
    for name, maps in (("attention.query_key_value", 3), ("cross.key_value", 2)):
        for one in moved[f"decoder.2.{name}.weight"].chunk(maps):
            values = torch.linalg.svdvals(one) / (0.01 * 0.2 * 16**0.5)
            assert values.max() < 1.25
            assert values.median() > 0.75
