"""All weights of a Transformer in one flat buffer, and likewise their gradients and moments."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from itertools import groupby
from typing import assert_never

import torch
from torch import Tensor, nn

from dragoman.config import OptimizerKind
from dragoman.model.muon import is_matrix, map_shape, matrices_of

# Every parameter starts on a border of 128 bytes in 16 bits, so that products use wide loads.
BORDER = 64


@dataclass(frozen=True)
class Weight:
    """One parameter, or several adjacent ones, as the kernels see it."""

    value: Tensor  # float32.
    copy: Tensor  # In the type of the matrix products; the optimizer keeps it up to date.
    gradient: Tensor  # float32; the kernels add to it.


@dataclass(frozen=True)
class Stack:
    """Maps of one shape, one after the other in the buffers, from `start` on every `stride`."""

    start: int
    stride: int
    count: int
    rows: int
    columns: int


class FlatWeights:
    """Weights, gradients and moments in float32 and copies in 16 bits, one buffer each.

    The parameters of the model become views of the weights: names and shapes stay as they are.
    The matrices come last, so that what Muon does not need, their squares, is left out.
    """

    def __init__(
        self, model: nn.Module, copy_type: torch.dtype, kind: OptimizerKind = "adam"
    ) -> None:
        parameters = dict(model.named_parameters())
        self._shapes = {name: parameter.shape for name, parameter in parameters.items()}
        self._starts, size = lay_out(self._shapes)
        match kind:
            case "adam":
                self.of_muon = []
            case "muon":
                self.of_muon = sorted(matrices_of(self._shapes), key=self._starts.__getitem__)
            case _:
                assert_never(kind)
        self.of_adam = [name for name in self._shapes if name not in set(self.of_muon)]
        device = next(iter(parameters.values())).device
        self.values, self.gradients, self.means = (
            torch.zeros(size, device=device) for _ in range(3)
        )
        adams = self._starts[self.of_muon[0]] if self.of_muon else size
        self.squares = torch.zeros(adams, device=device)
        self.copies = torch.zeros(size, device=device, dtype=copy_type)
        for name, parameter in parameters.items():
            view = self.view(self.values, [name])
            view.copy_(parameter.detach())
            parameter.data = view
        self.refresh_copies()

    def refresh_copies(self) -> None:
        """Make the copies anew after someone else has written the weights."""
        self.copies.copy_(self.values)

    def view(self, buffer: Tensor, names: Iterable[str]) -> Tensor:
        """The part of a buffer that belongs to a parameter, or to several adjacent ones."""
        first, *others = names
        start, shape = self._starts[first], self._shapes[first]
        for place, name in enumerate(others, start=1):
            assert self._shapes[name] == shape, f"{name} is not shaped like {first}"
            assert self._starts[name] == start + place * shape.numel(), f"{name} is elsewhere"
        count = 1 + len(others)
        part = buffer[start : start + count * shape.numel()]
        return part.view(count * shape[0], *shape[1:])

    def views(self, buffer: Tensor) -> dict[str, Tensor]:
        """The parts of a buffer by the names of the parameters."""
        return {name: self.view(buffer, [name]) for name in self._shapes}

    def stacks(self) -> list[Stack]:
        """The maps that Muon updates, those of like shape together."""
        found = []
        for shape, names in groupby(self.of_muon, lambda name: map_shape(name, self._shapes[name])):
            stride, count, start = on_border(shape.numel()), 0, None
            for name in names:
                start = self._starts[name] if start is None else start
                maps = self._shapes[name].numel() // shape.numel()
                assert self._starts[name] == start + count * stride, f"{name} is elsewhere"
                assert maps == 1 or stride == shape.numel(), f"{name} has maps off the border"
                count += maps
            assert start is not None
            found.append(Stack(start, stride, count, shape[0], shape[1]))
        return found

    def weight(self, *names: str) -> Weight:
        """A parameter, or several adjacent ones as one, for the kernels."""
        return Weight(
            *(self.view(one, names) for one in (self.values, self.copies, self.gradients))
        )


def lay_out(shapes: Mapping[str, torch.Size]) -> tuple[dict[str, int], int]:
    """Where each parameter starts, and the size of the whole.

    Matrices come last, those of like maps together, so that few kernels serve all of them. The
    keys' and values' projections of all decoder layers read the same encoded source: they are
    adjacent too, so that together they are one matrix and need one product.
    """

    def rank(name: str) -> tuple[bool, tuple[int, ...], bool]:
        if not is_matrix(name, shapes[name]):
            return False, (), False
        is_read_together = name.endswith(".cross.key_value.weight")
        return True, map_shape(name, shapes[name]), is_read_together

    starts, end = {}, 0
    for name in sorted(shapes, key=rank):
        starts[name] = end
        end += on_border(shapes[name].numel())
    return starts, end


def on_border(size: int) -> int:
    """A size with what is left to the next border."""
    return -(-size // BORDER) * BORDER
