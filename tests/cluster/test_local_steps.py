"""The outer step, by hand: two workers in threads, whose means are made by the test."""

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import pytest
import torch
from torch import Tensor, nn

from dragoman.cluster.local_steps import OuterSteps, flat_weights, views_of
from dragoman.cluster.mean_exchange import cut_evenly
from dragoman.config import DistributedSettings


class Weights(nn.Module):
    """A few parameters of different shapes."""

    def __init__(self) -> None:
        super().__init__()
        self.a = nn.Parameter(torch.zeros(2, 2))
        self.b = nn.Parameter(torch.zeros(3))
        self.c = nn.Parameter(torch.zeros(1))

    @torch.no_grad()
    def move(self, distance: float) -> None:
        for parameter in self.parameters():
            parameter.add_(distance)


class Table:
    """Where two workers, threads of one process, lay their vectors down."""

    def __init__(self) -> None:
        self.barrier = threading.Barrier(2)
        self.vectors: dict[int, Tensor] = {}


@dataclass
class Mean:
    """A mean that is made when a worker waits for it."""

    table: Table
    worker: int
    vector: Tensor

    def wait(self) -> tuple[Tensor, None]:
        self.table.vectors[self.worker] = self.vector
        self.table.barrier.wait()
        mean = (self.table.vectors[0] + self.table.vectors[1]) / 2
        self.table.barrier.wait()
        return mean, None


@dataclass
class Exchange:
    """The means of one worker."""

    table: Table
    worker: int

    def start(self, vector: Tensor, error: Tensor | None) -> Mean:
        return Mean(self.table, self.worker, vector.clone())


def local(**changes: object) -> DistributedSettings:
    plain = {"outer_learning_rate": 1.0, "outer_momentum": 0.0}
    return DistributedSettings(sync="local", **plain | changes)  # type: ignore[arg-type]


@contextmanager
def two_workers() -> Iterator[list[threading.Thread]]:
    threads: list[threading.Thread] = []
    yield threads
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


def go(
    settings: DistributedSettings, moves: list[list[float]], *, settle: bool = False
) -> list[Weights]:
    """Let two workers move all weights by the given amounts, and return where they end."""
    table, ends = Table(), [Weights(), Weights()]

    def work(worker: int) -> None:
        outer = OuterSteps(ends[worker], settings, Exchange(table, worker))  # type: ignore[arg-type]
        for step, move in enumerate(moves[worker], start=1):
            ends[worker].move(move)
            if outer.synchronizes_at(step):
                outer.after_step(step)
        if settle:
            outer.settle()

    with two_workers() as threads:
        threads += [threading.Thread(target=work, args=(worker,)) for worker in range(2)]
    return ends


def test_without_momentum_a_synchronization_is_the_mean() -> None:
    settings = local(local_steps=2, local_delay=0)
    for end in go(settings, [[1.0, 1.0, 2.0, 2.0], [3.0, 3.0, 0.0, 0.0]]):
        # (2 + 6) / 2 = 4 after the first, then (4 + 0) / 2 = 2 more.
        assert end.c.tolist() == [6.0]


def test_the_outer_step_is_nesterov() -> None:
    rate, momentum = 0.5, 0.8
    settings = local(
        local_steps=1, local_delay=0, outer_learning_rate=rate, outer_momentum=momentum
    )
    # torch's own optimizer on the mean difference is the reference.
    reference = torch.zeros(1, requires_grad=True)
    optimizer = torch.optim.SGD([reference], lr=rate, momentum=momentum, nesterov=True)
    moves = [[1.0, -2.0, 0.5], [3.0, 1.0, 0.25]]
    for pair in zip(*moves, strict=True):
        reference.grad = -torch.tensor([sum(pair) / 2])
        optimizer.step()
    for end in go(settings, moves):
        torch.testing.assert_close(end.c.detach(), reference.detach())


def test_what_was_learned_while_a_mean_travelled_is_kept() -> None:
    settings = local(local_steps=4, local_delay=2)
    first, second = go(settings, [[1.0] * 6, [3.0] * 6])
    # Set out after step 4 with 4 and 12, came home after step 6 as 8; two steps were made since.
    assert first.c.item() == 8.0 + 2.0
    assert second.c.item() == 8.0 + 6.0


def test_fragments_synchronize_in_turn() -> None:
    settings = local(local_steps=4, local_fragments=2)
    first, second = go(settings, [[1.0] * 4, [3.0] * 4])
    # The second half sets out after step 2 and is home after step 4, when the first half sets out.
    assert (first.a[0, 0].item(), second.a[0, 0].item()) == (4.0, 12.0)
    assert (first.c.item(), second.c.item()) == (4.0 + 2.0, 4.0 + 6.0)


@pytest.mark.parametrize("fragments", [1, 2, 4])
@pytest.mark.parametrize("delay", [0, 1, 4])
def test_plain_averaging_never_moves_the_mean_of_the_workers(fragments: int, delay: int) -> None:
    """So a delay costs no progress; it only lets workers be further apart."""
    settings = DistributedSettings(
        sync="local", local_steps=4, local_fragments=fragments, local_delay=delay
    )
    moves = [[1.0, 2.0, -1.0, 4.0] * 3, [3.0, 0.0, 5.0, 1.0] * 3]
    for steps in range(1, 13):
        first, second = go(settings, [one[:steps] for one in moves])
        mean = (flat_weights(first) + flat_weights(second)) / 2
        gone = sum(sum(one[:steps]) for one in moves) / 2
        torch.testing.assert_close(mean, torch.full_like(mean, gone))


@pytest.mark.parametrize("fragments", [1, 2, 3])
def test_in_the_end_everyone_has_the_mean(fragments: int) -> None:
    settings = local(local_steps=4, local_fragments=fragments)
    for end in go(settings, [[1.0] * 7, [3.0] * 7], settle=True):
        for parameter in end.parameters():
            torch.testing.assert_close(parameter.detach(), torch.full_like(parameter, 14.0))


def test_scores_are_those_of_the_common_weights_and_training_goes_on_from_its_own() -> None:
    model = Weights()
    outer = OuterSteps(model, local(local_steps=4, compression="int8"), None)
    model.move(1.0)
    with outer.common_weights():
        assert model.c.item() == 0.0
        assert outer.tensors()["c.local"].item() == 1.0, "what is saved is the worker's own"
    assert model.c.item() == 1.0


@pytest.mark.parametrize("delay", [0, 1, 3, 4])
@pytest.mark.parametrize("stop", range(1, 12))
def test_a_run_goes_on_exactly_wherever_it_was_stopped(stop: int, delay: int) -> None:
    """With a mean under way or not: it is sent again."""
    settings = local(
        local_steps=4, local_fragments=1, local_delay=delay, outer_momentum=0.5, compression="int8"
    )
    moves = [[1.0, 2.0, -1.0, 4.0] * 3, [3.0, 0.0, 5.0, 1.0] * 3]
    whole = go(settings, moves)
    table, ends = Table(), [Weights(), Weights()]

    def work(worker: int) -> None:
        outer = OuterSteps(ends[worker], settings, Exchange(table, worker))  # type: ignore[arg-type]
        for step, move in enumerate(moves[worker], start=1):
            ends[worker].move(move)
            outer.after_step(step)
            if step == stop:
                saved = {name: one.clone() for name, one in outer.tensors().items()}
                common = outer.common.clone()
                ends[worker] = Weights()
                outer = OuterSteps(ends[worker], settings, Exchange(table, worker))  # type: ignore[arg-type]
                flat_weights(ends[worker]).copy_(common)
                outer.take_common()
                outer.load(saved)
                outer.begin(step)

    with two_workers() as threads:
        threads += [threading.Thread(target=work, args=(worker,)) for worker in range(2)]
    for end, other in zip(ends, whole, strict=True):
        assert torch.equal(flat_weights(end), flat_weights(other))


@pytest.mark.parametrize("count", [1, 2, 3, 8])
def test_every_element_is_in_one_of_so_many_fragments_of_one_size(count: int) -> None:
    parts = cut_evenly(71, count)
    assert [place for part in parts for place in range(71)[part]] == list(range(71))
    sizes = [part.stop - part.start for part in parts]
    assert max(sizes) - min(sizes) <= 1


def test_all_weights_become_one_vector_once() -> None:
    model = Weights()
    flat = flat_weights(model)
    flat.copy_(torch.arange(8.0))
    assert model.b.tolist() == [4.0, 5.0, 6.0]
    assert flat_weights(model).data_ptr() == flat.data_ptr()
    shapes = {name: view.shape for name, view in views_of(model, flat).items()}
    assert shapes == {name: one.shape for name, one in model.named_parameters()}
