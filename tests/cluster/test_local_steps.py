"""The outer step, by hand: two workers in threads, whose sums are made by the test."""

import threading
from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from dragoman.cluster.local_steps import OuterSteps, cut_evenly, pieces_of
from dragoman.config import DistributedSettings


class Meeting:
    """Sums over two workers that live in threads of one process."""

    def __init__(self) -> None:
        self.barrier = threading.Barrier(2)
        self.buffers: dict[int, Tensor] = {}

    def of(self, worker: int) -> Callable[[Tensor], None]:
        def total(buffer: Tensor) -> None:
            self.buffers[worker] = buffer.clone()
            self.barrier.wait()
            buffer.copy_(self.buffers[0] + self.buffers[1])
            self.barrier.wait()

        return total


def go(
    settings: DistributedSettings, moves: list[list[float]], settle: bool = True
) -> list[dict[str, Tensor]]:
    """Let two workers move all weights by the given amounts, and return where they end."""
    meeting = Meeting()
    ends: dict[int, dict[str, Tensor]] = {}

    def work(worker: int) -> None:
        weights = {"a": torch.zeros(2), "b": torch.zeros(3), "c": torch.zeros(1)}
        outer = OuterSteps(weights, 2, settings, meeting.of(worker))  # type: ignore[arg-type]
        outer.begin()
        for step, move in enumerate(moves[worker], start=1):
            for weight in weights.values():
                weight += move
            if outer.meets_at(step):
                outer.meet(step)
        if settle:
            outer.settle(len(moves[worker]))
        ends[worker] = weights

    threads = [threading.Thread(target=work, args=(worker,)) for worker in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return [ends[0], ends[1]]


def test_without_momentum_a_meeting_is_the_mean() -> None:
    settings = DistributedSettings(
        sync="local", local_steps=2, outer_learning_rate=1.0, outer_momentum=0.0
    )
    for end in go(settings, [[1.0, 1.0, 2.0, 2.0], [3.0, 3.0, 0.0, 0.0]]):
        # (2 + 6) / 2 = 4 after the first meeting, then (4 + 0) / 2 = 2 more.
        assert end["a"].tolist() == [6.0, 6.0]


def test_the_outer_step_is_nesterov() -> None:
    rate, momentum = 0.5, 0.8
    settings = DistributedSettings(
        sync="local", local_steps=1, outer_learning_rate=rate, outer_momentum=momentum
    )
    # torch's own optimizer on the mean difference is the reference.
    reference = torch.zeros(1, requires_grad=True)
    optimizer = torch.optim.SGD([reference], lr=rate, momentum=momentum, nesterov=True)
    moves = [[1.0, -2.0, 0.5], [3.0, 1.0, 0.25]]
    for pair in zip(*moves, strict=True):
        reference.grad = -torch.tensor([sum(pair) / 2])
        optimizer.step()
    for end in go(settings, moves):
        torch.testing.assert_close(end["c"], reference.detach())


def test_fragments_meet_in_turn_and_keep_what_was_learned_meanwhile() -> None:
    settings = DistributedSettings(
        sync="local",
        local_steps=4,
        local_fragments=2,
        outer_learning_rate=1.0,
        outer_momentum=0.0,
    )
    first, second = go(settings, [[1.0] * 4, [3.0] * 4], settle=False)
    # "a" and "b" part set out after step 2 and came home after step 4, when both workers had
    # gone on by two steps of their own; the other part set out after step 4.
    moved = {name: (first[name][0].item(), second[name][0].item()) for name in first}
    assert moved["c"] == (4.0 + 2.0, 4.0 + 6.0)
    assert moved["a"] == (4.0, 12.0)
    for name, mean in (("a", 8.0), ("b", 8.0), ("c", 8.0)):
        for end in go(settings, [[1.0] * 4, [3.0] * 4]):
            assert end[name][0].item() == mean


@pytest.mark.parametrize("count", [1, 2, 3, 8])
def test_every_element_is_in_one_of_so_many_fragments_of_one_size(count: int) -> None:
    """However large one parameter is."""
    parameters = [torch.zeros(2, 5), torch.zeros(1), torch.zeros(20, 3)]
    fragments = [pieces_of(parameters, part) for part in cut_evenly(71, count)]
    sizes = [sum(len(piece) for piece in pieces) for pieces in fragments]
    assert len(sizes) == count
    assert max(sizes) - min(sizes) <= 1
    for piece in (piece for pieces in fragments for piece in pieces):
        piece += 1
    assert all(bool((parameter == 1).all()) for parameter in parameters)


def test_momentum_has_the_shapes_of_the_parameters_however_they_are_cut() -> None:
    weights = {"a": torch.ones(2, 3), "b": torch.ones(4)}
    settings = DistributedSettings(sync="local", local_steps=4, local_fragments=4)
    saved = {"a.outer_momentum": torch.rand(2, 3), "b.outer_momentum": torch.rand(4)}
    outer = OuterSteps(weights, 1, settings, None)
    outer.load(saved)
    for name, momentum in outer.tensors().items():
        assert torch.equal(momentum, saved[name])
