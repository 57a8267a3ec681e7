"""All weights of a Transformer end to end in one buffer, and so their gradients and moments."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

import torch
from torch import Tensor, nn

# Every parameter starts on a border of 128 bytes in 16 bits, so that products use wide loads.
BORDER = 64


@dataclass(frozen=True)
class Weight:
    """One parameter, or several adjacent ones, as the kernels see it."""

    value: Tensor  # float32.
    copy: Tensor  # In the type of the matrix products; the optimizer keeps it up to date.
    gradient: Tensor  # float32; the kernels add to it.


class FlatWeights:
    """Weights, gradients and moments in float32 and copies in 16 bits, one buffer each.

    The parameters of the model become views of the weights: names and shapes stay as they are.
    """

    def __init__(self, model: nn.Module, copy_type: torch.dtype) -> None:
        parameters = dict(model.named_parameters())
        self._shapes = {name: parameter.shape for name, parameter in parameters.items()}
        self._starts, size = lay_out({name: one.numel() for name, one in parameters.items()})
        device = next(iter(parameters.values())).device
        self.values, self.gradients, self.means, self.squares = (
            torch.zeros(size, device=device) for _ in range(4)
        )
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

    def weight(self, *names: str) -> Weight:
        """A parameter, or several adjacent ones as one, for the kernels."""
        return Weight(
            *(self.view(one, names) for one in (self.values, self.copies, self.gradients))
        )


def lay_out(sizes: Mapping[str, int]) -> tuple[dict[str, int], int]:
    """Where each parameter starts, and the size of the whole.

    The keys' and values' projections of all decoder layers read the same encoded source: they come
    last and adjacent, so that together they are one matrix and need one product.
    """
    names = sorted(sizes, key=lambda name: name.endswith(".cross.key_value.weight"))
    starts, end = {}, 0
    for name in names:
        starts[name] = end
        end += -(-sizes[name] // BORDER) * BORDER
    return starts, end
