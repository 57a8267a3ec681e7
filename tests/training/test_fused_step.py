import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from torch import Tensor

from dragoman.cluster.processes import Workers
from dragoman.errors import UserError
from dragoman.training.kernels import (
    KernelChoice,
    choose_kernels,
    compiled_problem,
    fused_problem,
    refuse_mixed_kernels,
)
from dragoman.training.loss_scale import LARGEST_SCALE
from dragoman.training.step import StepResult
from model.fused_reference import relative_error
from training import fused_worker
from training.fused_worker import (
    DROPOUT,
    STEPS,
    Kernels,
    Training,
    configure,
    make_training,
    one_worker,
)

ON_CPU = Workers(0, 1, torch.device("cpu"))
MUON = ["optimizer.kind=muon"]


@pytest.mark.parametrize(
    ("override", "problem"),
    [
        ("training.precision='float32'", 'training.precision = "float32"'),
        ("batches.row_tokens=32", "batches.row_tokens = 32 is not a multiple of 64"),
        ("model.heads=2", ""),
        ("model.heads=8", "model.d_model / heads = 8 is not a power of two of at least 16"),
        ("model.d_model=96", "model.d_model / heads = 24 is not"),
        ("distributed.compression='powersgd'", 'distributed.compression = "powersgd"'),
    ],
)
def test_problems_are_told(small_text: Path, override: str, problem: str) -> None:
    config = configure(small_text, [override])
    found = fused_problem(config, replace(ON_CPU, count=2))
    assert found.startswith(problem or "there is no GPU")
    assert "\n" not in found


@pytest.mark.parametrize(
    ("override", "problem"),
    [
        ("distributed.compression='powersgd'", 'distributed.compression = "powersgd"'),
        ("model.heads=8", "there is no GPU"),
    ],
)
def test_problems_of_the_compiler_are_told(small_text: Path, override: str, problem: str) -> None:
    config = configure(small_text, [override])
    assert compiled_problem(config, replace(ON_CPU, count=2)).startswith(problem)


def test_the_choice_of_kernels_says_why(small_text: Path) -> None:
    chosen = choose_kernels(configure(small_text), ON_CPU)
    reason = "not fused, because there is no GPU; not compiled, because there is no GPU"
    assert chosen == KernelChoice("plain", reason)
    asked = configure(small_text, ["training.kernels='plain'"])
    assert choose_kernels(asked, ON_CPU).kind == "plain"
    asked = configure(small_text, ["training.kernels='compiled'"])
    with pytest.raises(UserError, match=r'"compiled", but there is no GPU'):
        choose_kernels(asked, ON_CPU)


@pytest.mark.parametrize(("other", "common"), [("plain", "plain"), ("compiled", "compiled")])
def test_workers_with_different_kernels_are_refused(
    monkeypatch: pytest.MonkeyPatch, other: Kernels, common: str
) -> None:
    """Gradients and weights lie in another order; with local steps nobody would notice."""
    own = KernelChoice("fused", "the fastest")
    workers = Workers(0, 2, torch.device("cpu"), ("hostA", "hostB"))
    everyone = [["fused", "the fastest"], [other, "no triton"]]
    monkeypatch.setattr(Workers, "gather_json", lambda *_: everyone)
    told = (
        rf"hostB \(worker 1\) would use {other} kernels \(no triton\), hostA \(worker 0\) fused "
        rf'ones \(the fastest\): .* training.kernels = "{common}"'
    )
    with pytest.raises(UserError, match=told):
        refuse_mixed_kernels(own, workers)
    everyone[1] = ["fused", "set by training.kernels"]
    refuse_mixed_kernels(own, workers)


def test_gpus_of_amd_are_not_taken_for_those_of_nvidia(
    small_text: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """ROCm calls them "cuda" devices, too, with capabilities such as (9, 4)."""
    monkeypatch.setattr(torch.version, "hip", "6.4")
    config = configure(small_text)
    on_amd = replace(ON_CPU, device=torch.device("cuda", 0))
    assert fused_problem(config, on_amd) == "they were made for NVIDIA GPUs"


needs_gpu = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")


def losses(results: list[StepResult]) -> Tensor:
    return torch.tensor([[one.loss, one.nll, one.gradient_norm] for one in results])


def assert_close(one: list[StepResult], other: list[StepResult], tolerance: float) -> None:
    torch.testing.assert_close(losses(one), losses(other), rtol=tolerance, atol=tolerance)


def assert_weights_close(one: Training, other: Training, tolerance: float) -> None:
    mine, theirs = (
        torch.cat([weight.flatten() for weight in training.weights().values()])
        for training in (one, other)
    )
    assert float((mine - theirs).norm() / theirs.norm()) < tolerance


@pytest.mark.gpu
@needs_gpu
class TestOnGpu:
    def test_nothing_is_in_its_way(self, prepared: Path) -> None:
        assert fused_problem(configure(prepared), one_worker()) == ""

    @pytest.mark.parametrize("precision", ["bfloat16", "float16"])
    @pytest.mark.parametrize(
        "more",
        [
            [],
            ["optimizer.weight_decay=0.1", "optimizer.clip_norm=0.5"],
            [*MUON, "optimizer.weight_decay=0.1", "optimizer.clip_norm=0.5"],
            [*MUON, "optimizer.matrix_rate=0.5", "model.feed_forward=50"],
        ],
    )
    def test_equals_the_plain_step(self, prepared: Path, precision: str, more: list[str]) -> None:
        config = configure(prepared, [f"training.precision='{precision}'", *more])
        plain = make_training(config, "plain", one_worker())
        fused = make_training(config, "fused", one_worker())
        assert_close(fused.run(1, STEPS), plain.run(1, STEPS), 2e-2)
        assert_weights_close(fused, plain, 1e-2)
        assert fused.step.state() == plain.step.state()
        mine, theirs = fused.step.tensors(), plain.step.tensors()
        assert mine.keys() == theirs.keys()
        for name in mine:
            assert mine[name].shape == theirs[name].shape
            if name.endswith(".momentum"):
                assert relative_error(mine[name], theirs[name]) < 5e-2, name

    @pytest.mark.parametrize(
        ("precision", "tolerance"), [("float32", 1e-4), ("bfloat16", 2e-2), ("float16", 2e-2)]
    )
    def test_compiled_equals_the_plain_step(
        self, prepared: Path, precision: str, tolerance: float
    ) -> None:
        """Heads of 24 and rows of 48, which fused kernels cannot take, in two micro-batches."""
        sizes = ["model.d_model=96", "batches.row_tokens=48", "batches.tokens_per_step=768"]
        config = configure(prepared, [f"training.precision='{precision}'", *sizes])
        assert fused_problem(config, one_worker())
        assert choose_kernels(config, one_worker()).kind == "compiled"
        plain = make_training(config, "plain", one_worker(), rows=10)
        compiled = make_training(config, "compiled", one_worker(), rows=10)
        assert_close(compiled.run(1, STEPS), plain.run(1, STEPS), tolerance)
        assert_weights_close(compiled, plain, tolerance)
        assert compiled.step.state() == plain.step.state()

    def test_compiled_dropout_depends_on_the_step_alone(self, prepared: Path) -> None:
        """As a resumed run wants it; at a rate of zero, so that nothing else can differ."""
        config = configure(prepared, DROPOUT)
        one, other = (make_training(config, "compiled", one_worker(), rows=10) for _ in range(2))
        found = []
        for training, number in ((one, 1), (one, 2), (other, 2), (one, 1)):
            training.step.queue(training.batches[0], number, 0.0, 0.0)
            found.append(training.step.result().loss)
        assert found[0] != pytest.approx(found[1], rel=1e-4)
        assert found[1] == pytest.approx(found[2], rel=1e-6)
        assert found[0] == pytest.approx(found[3], rel=1e-6)

    @pytest.mark.parametrize("optimizer", [[], MUON])
    @pytest.mark.parametrize("kinds", [("plain", "fused"), ("fused", "plain")])
    def test_goes_on_from_the_others_checkpoint(
        self, prepared: Path, kinds: tuple[Kernels, Kernels], optimizer: list[str]
    ) -> None:
        config = configure(prepared, optimizer)
        whole = make_training(config, kinds[0], one_worker())
        expected = whole.run(1, 2 * STEPS)[STEPS:]
        first = make_training(config, kinds[0], one_worker())
        first.run(1, STEPS)
        second = make_training(config, kinds[1], one_worker())
        move(first, second)
        assert_close(second.run(STEPS + 1, 2 * STEPS), expected, 3e-2)

    @pytest.mark.parametrize("optimizer", [[], MUON])
    def test_resumed_equals_uninterrupted(self, prepared: Path, optimizer: list[str]) -> None:
        config = configure(prepared, [*DROPOUT, *optimizer])
        whole = make_training(config, "fused", one_worker())
        expected = whole.run(1, 2 * STEPS)
        first = make_training(config, "fused", one_worker())
        first.run(1, STEPS)
        second = make_training(config, "fused", one_worker())
        move(first, second)
        # Words add up their gradients in any order: the last bits differ.
        assert_close(second.run(STEPS + 1, 2 * STEPS), expected[STEPS:], 2e-3)
        assert second.step.state()["updates"] == 2 * STEPS

    def test_dropout_depends_on_the_step(self, prepared: Path) -> None:
        training = make_training(configure(prepared, DROPOUT), "fused", one_worker())
        batch = training.batches[0]
        found = []
        for number in (1, 2, 1):
            training.step.queue(batch, number, 0.0, 0.0)
            found.append(training.step.result().loss)
        assert found[0] == pytest.approx(found[2], rel=1e-6)
        assert found[0] != pytest.approx(found[1], rel=1e-4)

    @pytest.mark.parametrize("rows", [1, 5, 16, 40])
    def test_micro_batches_change_nothing(self, prepared: Path, rows: int) -> None:
        config = configure(prepared)
        whole = make_training(config, "fused", one_worker()).run(1, STEPS)
        parts = make_training(config, "fused", one_worker(), rows).run(1, STEPS)
        assert_close(parts, whole, 5e-3)

    def test_separate_vocabularies(self, small_text: Path) -> None:
        from dragoman.corpus.prepare import prepare

        config = configure(small_text, ["vocabulary.joint=false"])
        prepare(config, processes=1)
        plain = make_training(config, "plain", one_worker())
        fused = make_training(config, "fused", one_worker())
        assert_close(fused.run(1, STEPS), plain.run(1, STEPS), 2e-2)

    @pytest.mark.parametrize("optimizer", [[], MUON])
    def test_overflow_is_skipped_and_halves_the_scale(
        self, prepared: Path, optimizer: list[str]
    ) -> None:
        config = configure(prepared, ["training.precision='float16'", *optimizer])
        training = make_training(config, "fused", one_worker())
        training.run(1, 2)
        before = training.weights(), {k: v.clone() for k, v in training.step.tensors().items()}
        state = training.step.state()
        assert state["updates"] == state["good_steps"] == 2
        training.step.load(training.step.tensors(), {**state, "loss_scale": 2.0**30})
        (result,) = training.run(3, 3)
        assert result.skipped
        assert result.loss_scale == 2.0**30
        after = training.weights(), training.step.tensors()
        for old, new in zip(before, after, strict=True):
            assert all(torch.equal(old[name], new[name]) for name in old)
        assert training.step.state() == {
            "updates": 2.0,
            "good_steps": 0.0,
            "loss_scale": LARGEST_SCALE,  # Half of what it was is still more than allowed.
        }
        training.step.load(training.step.tensors(), {**state, "loss_scale": 1024.0})
        (result,) = training.run(4, 4)
        assert not result.skipped
        assert training.step.state()["updates"] == 3

    def test_trials_leave_no_trace_and_times_add_up(self, prepared: Path) -> None:
        config = configure(prepared)
        tried = make_training(config, "fused", one_worker())
        before = tried.weights()
        assert tried.step.compute_only(tried.batches[0]) > 0
        assert all(torch.equal(before[name], one) for name, one in tried.weights().items())
        results = tried.run(1, STEPS)
        assert_close(results, make_training(config, "fused", one_worker()).run(1, STEPS), 2e-3)
        for one in results:
            phases = one.seconds_data + one.seconds_compute + one.seconds_optimizer
            assert one.seconds is not None
            assert 0 < phases <= one.seconds * 1.001
            assert one.seconds_exposed_communication == 0

    @pytest.mark.slow
    @pytest.mark.parametrize("compression", ["none", "bf16", "fp16"])
    def test_two_workers_equal_one(self, prepared: Path, compression: str) -> None:
        overrides = [f"distributed.compression='{compression}'"]
        alone = make_training(configure(prepared, overrides), "fused", one_worker())
        expected = alone.run(1, STEPS)
        store, outs = prepared / "store", [prepared / f"out{rank}" for rank in range(2)]
        command = [sys.executable, fused_worker.__file__, str(prepared)]
        environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
        processes = [
            subprocess.Popen(
                [*command, str(out), str(store), str(rank), "2", *overrides], env=environment
            )
            for rank, out in enumerate(outs)
        ]
        assert [process.wait(timeout=300) for process in processes] == [0, 0]
        first, second = (torch.load(out, weights_only=False) for out in outs)
        for name, weight in first["weights"].items():
            assert torch.equal(weight, second["weights"][name]), name
        together = [
            replace(one, loss=one.loss + other.loss, nll=one.nll + other.nll)
            for one, other in zip(first["results"], second["results"], strict=True)
        ]
        assert_close(together, expected, 1e-2)


def move(first: Training, second: Training) -> None:
    """Load a checkpoint of one into the other."""
    weights = first.weights()
    with torch.no_grad():
        for name, parameter in second.model.named_parameters():
            parameter.copy_(weights[name])
    moments = {name: one.clone() for name, one in first.step.tensors().items()}
    second.step.load(moments, first.step.state())
    second.step.weights_changed()
