"""Workers that step alone and meet now and then: an outer step on the averaged difference.

Between meetings every worker goes its own way from the common weights. At a meeting the mean
distance that the workers have gone is taken for a gradient, and the common weights make a
Nesterov step along it (DiLoCo). The parameters may be cut into fragments that meet at different
times, each sum travelling while the workers go on (streaming), so that the link is used evenly.
"""

from collections.abc import Mapping
from dataclasses import dataclass

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
        names = cut_evenly(
            {name: one.numel() for name, one in parameters.items()}, settings.local_fragments
        )
        self._fragments = [_Fragment({name: parameters[name] for name in part}) for part in names]

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
        """The momentum of every parameter, by name."""
        return {
            f"{name}.outer_momentum": part
            for fragment in self._fragments
            for name, part in fragment.named(fragment.momentum).items()
        }

    def load(self, tensors: Mapping[str, Tensor]) -> None:
        """Go on from saved momentum."""
        for fragment in self._fragments:
            for name, part in fragment.named(fragment.momentum).items():
                part.copy_(tensors[f"{name}.outer_momentum"])

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
    """Some of the parameters, as one vector."""

    parameters: dict[str, Tensor]

    def __post_init__(self) -> None:
        self.common = self.gather()
        self.momentum = torch.zeros_like(self.common)
        self.before = self.common  # The worker's weights when the sum set out.
        self.travelling: Reduced | None = None
        self.met_at = -1

    def gather(self) -> Tensor:
        """The worker's weights, as a new vector on the CPU."""
        return torch.cat([one.detach().reshape(-1).cpu() for one in self.parameters.values()])

    def scatter(self, vector: Tensor) -> None:
        """Overwrite the worker's weights."""
        for name, part in self.named(vector).items():
            self.parameters[name].data.copy_(part)

    def named(self, vector: Tensor) -> dict[str, Tensor]:
        """The vector's part for each parameter, in its shape."""
        parts = torch.split(vector, [one.numel() for one in self.parameters.values()])
        return {
            name: part.view(one.shape)
            for (name, one), part in zip(self.parameters.items(), parts, strict=True)
        }


def cut_evenly(sizes: Mapping[str, int], count: int) -> list[list[str]]:
    """Cut names, in their order, into parts of nearly equal size; none is empty."""
    total, seen = sum(sizes.values()), 0
    parts: list[list[str]] = [[] for _ in range(count)]
    for name, size in sizes.items():
        parts[min(count - 1, count * (2 * seen + size) // (2 * total))].append(name)
        seen += size
    return [part for part in parts if part]


def _arrived(vector: Tensor) -> Reduced:
    future: torch.futures.Future[Tensor] = torch.futures.Future()
    future.set_result(vector)
    return future
