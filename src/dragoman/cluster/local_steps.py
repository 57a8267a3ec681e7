"""Workers that step alone and meet now and then: an outer step on the averaged difference.

Between meetings every worker goes its own way from the common weights. At a meeting the mean
distance that the workers have gone is taken for a gradient, and the common weights make a
Nesterov step along it (DiLoCo). The parameters may be cut into fragments that meet at different
times, each sum travelling while the workers go on (streaming), so that the link is used evenly.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from itertools import pairwise

import torch
from torch import Tensor

from dragoman.cluster.sync import BufferSum, InOrder, Reduced
from dragoman.config import DistributedSettings


class OuterSteps:
    """The common weights and their momentum, kept on the CPU; the same on every worker."""

    def __init__(
        self,
        parameters: Mapping[str, Tensor],
        workers: int,
        settings: DistributedSettings,
        total: BufferSum | None,
    ) -> None:
        self._workers = workers
        self._settings = settings
        self._sums = InOrder(total) if total else None
        self._parameters = parameters
        self._momentum = torch.zeros(sum(one.numel() for one in parameters.values()))
        self._fragments = [
            _Fragment(pieces_of(parameters.values(), part), self._momentum[part])
            for part in cut_evenly(len(self._momentum), settings.local_fragments)
        ]

    def meets_at(self, step: int) -> bool:
        """Whether some fragment sets out, or comes home, after this step."""
        return any(self._sets_out(place, step) for place in range(len(self._fragments)))

    def meet(self, step: int) -> None:
        """Let the fragments meet whose time has come."""
        # A sum comes home when the next one sets out: it had that long to travel.
        self._bring_home()
        for place, fragment in enumerate(self._fragments):
            if self._sets_out(place, step):
                self._set_out(fragment, step)
        if len(self._fragments) == 1:
            self._bring_home()

    def settle(self, step: int) -> None:
        """Let everything meet now, so that all workers have the common weights."""
        self._bring_home()
        for fragment in self._fragments:
            if fragment.met_at != step:
                self._set_out(fragment, step)
                self._bring_home()

    def tensors(self) -> dict[str, Tensor]:
        """The momentum of every parameter, by name; writing to it changes it."""
        parts = torch.split(self._momentum, [one.numel() for one in self._parameters.values()])
        return {
            f"{name}.outer_momentum": part.view(one.shape)
            for (name, one), part in zip(self._parameters.items(), parts, strict=True)
        }

    def load(self, tensors: Mapping[str, Tensor]) -> None:
        """Go on from saved momentum."""
        for name, part in self.tensors().items():
            part.copy_(tensors[name])

    def begin(self) -> None:
        """Take the weights as they are for the common ones; all workers have the same by now."""
        for fragment in self._fragments:
            fragment.common = fragment.gather()

    def _sets_out(self, place: int, step: int) -> bool:
        every = self._settings.local_steps
        return (step - every * place // len(self._fragments)) % every == 0

    def _set_out(self, fragment: "_Fragment", step: int) -> None:
        fragment.met_at = step
        fragment.before = fragment.gather()
        difference = fragment.common - fragment.before
        fragment.travelling = self._sums.start(difference) if self._sums else _arrived(difference)

    def _bring_home(self) -> None:
        """Wait for the sums on their way and make their outer steps."""
        for fragment in self._fragments:
            if fragment.travelling is not None:
                difference = fragment.travelling.wait()
                if self._sums:
                    self._sums.raise_failure()
                self._outer_step(fragment, difference / self._workers)
                fragment.travelling = None

    def _outer_step(self, fragment: "_Fragment", difference: Tensor) -> None:
        momentum = self._settings.outer_momentum
        fragment.momentum.mul_(momentum).add_(difference)
        ahead = difference + momentum * fragment.momentum
        fragment.common.sub_(ahead, alpha=self._settings.outer_learning_rate)
        # What the worker learned while the sum travelled is kept.
        learned = fragment.gather() - fragment.before
        fragment.scatter(fragment.common + learned)


@dataclass
class _Fragment:
    """Some of the parameters' elements, as one vector."""

    pieces: list[Tensor]  # Flat views of the worker's weights.
    momentum: Tensor

    def __post_init__(self) -> None:
        self.common = self.gather()
        self.before = self.common  # The worker's weights when the sum set out.
        self.travelling: Reduced | None = None
        self.met_at = -1

    def gather(self) -> Tensor:
        """The worker's weights, as a new vector on the CPU."""
        return torch.cat([piece.cpu() for piece in self.pieces])

    def scatter(self, vector: Tensor) -> None:
        """Overwrite the worker's weights."""
        parts = torch.split(vector, [len(piece) for piece in self.pieces])
        for piece, part in zip(self.pieces, parts, strict=True):
            piece.copy_(part)


def cut_evenly(size: int, count: int) -> list[slice]:
    """Cut a vector into parts whose sizes differ by one at most."""
    ends = [size * place // count for place in range(count + 1)]
    return [slice(*pair) for pair in pairwise(ends)]


def pieces_of(parameters: Iterable[Tensor], part: slice) -> list[Tensor]:
    """What lies in a part of all parameters, one after the other, as flat views of them."""
    pieces, first = [], 0
    for parameter in parameters:
        start, stop = (max(edge - first, 0) for edge in (part.start, part.stop))
        pieces.append(parameter.data.view(-1)[start:stop])
        first += parameter.numel()
    return [piece for piece in pieces if len(piece)]


def _arrived(vector: Tensor) -> Reduced:
    future: torch.futures.Future[Tensor] = torch.futures.Future()
    future.set_result(vector)
    return future
