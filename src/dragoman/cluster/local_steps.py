"""Workers that step alone and synchronize periodically: an outer step on the mean difference.

Between two synchronizations every worker goes its own way from the common weights. The mean
distance that the workers have gone is taken for a gradient, and the common weights make a Nesterov
step along it (DiLoCo). The weights are cut into fragments that set out one after the other, each
mean travelling while the workers go on and applied some steps later (streaming), so that the link
is used evenly and nobody waits.
"""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from dragoman.cluster.mean_exchange import MeanExchange, MeanUnderWay, cut_evenly
from dragoman.cluster.wire_format import HAS_KERNELS, ROUNDED
from dragoman.config import DistributedSettings


@dataclass
class _Fragment:
    """A part of the weights that sets out together."""

    part: slice
    offset: int  # It sets out at steps that leave this rest.
    under_way: "MeanUnderWay | _Arrived | None" = None


@dataclass(frozen=True)
class _Arrived:
    """The mean of one worker's vector alone."""

    vector: Tensor

    def wait(self) -> tuple[Tensor, None]:
        """Give it."""
        return self.vector, None


class OuterSteps:
    """The common weights and their momentum, alike everywhere, and what each worker adds."""

    def __init__(
        self,
        model: nn.Module,
        settings: DistributedSettings,
        exchange: MeanExchange | None,
    ) -> None:
        self._model = model
        self._settings = settings
        self._exchange = exchange
        self._weights = flat_weights(model)
        self._own = self._weights  # This worker's, also while the model has the common ones.
        self.common = self._weights.clone()
        self._momentum = torch.zeros_like(self._weights)
        self._sent = torch.zeros_like(self._weights)  # What each fragment set out with.
        # What rounding has kept back so far, to be sent along.
        is_rounded = settings.compression in ROUNDED
        self._error = torch.zeros_like(self._weights) if is_rounded else None
        every, count = settings.local_steps, settings.local_fragments
        self._delay = every // count if settings.local_delay is None else settings.local_delay
        self._fragments = [
            _Fragment(part, every * place // count)
            for place, part in enumerate(cut_evenly(len(self._weights), count))
        ]

    def synchronizes_at(self, step: int) -> bool:
        """Whether some fragment sets out, or comes home, after this step."""
        return any(
            (step - one.offset) % self._settings.local_steps in (0, self._delay)
            for one in self._fragments
        )

    def after_step(self, step: int) -> bool:
        """Let come home what is due, and set out what is; tell whether that changed the weights."""
        every = self._settings.local_steps
        is_changed = self._delay == 0
        for one in self._fragments:
            if one.under_way and (step - one.offset - self._delay) % every == 0:
                self._bring_home(one)
                is_changed = True
        for one in self._fragments:
            if (step - one.offset) % every == 0:
                self._set_out(one)
                if self._delay == 0:
                    self._bring_home(one)
        return is_changed

    def settle(self) -> None:
        """Let everything synchronize now, so that all workers have the common weights."""
        for one in self._fragments:
            if one.under_way:
                self._bring_home(one)
        for one in self._fragments:
            self._set_out(one)
            self._bring_home(one)

    def wait_for_means(self) -> None:
        """Let what is under way arrive: until then, what each fragment set out with is read."""
        for one in self._fragments:
            if one.under_way:
                one.under_way.wait()

    @contextmanager
    def common_weights(self) -> Iterator[None]:
        """Let the model have the common weights for a while, for scoring and saving."""
        self._own = self._weights.clone()
        self._weights.copy_(self.common)
        try:
            yield
        finally:
            self._weights.copy_(self._own)
            self._own = self._weights

    def tensors(self) -> dict[str, Tensor]:
        """All there is beside the common weights, by parameter; writing to it changes it."""
        kinds = {"local": self._own, "outer_momentum": self._momentum, "sent": self._sent}
        if self._error is not None:
            kinds["error"] = self._error
        return {
            f"{name}.{kind}": view
            for kind, buffer in kinds.items()
            for name, view in views_of(self._model, buffer).items()
        }

    def take_common(self) -> None:
        """Take the model's weights as they are for the common ones."""
        self.common.copy_(self._weights)

    def load(self, tensors: Mapping[str, Tensor]) -> None:
        """Go on from saved tensors; older checkpoints lack some."""
        for name, view in self.tensors().items():
            if name in tensors:
                view.copy_(tensors[name])

    @property
    def is_settled(self) -> bool:
        """Whether nothing is under way."""
        return all(one.under_way is None for one in self._fragments)

    def begin(self, step: int) -> None:
        """Send again what was under way at this step; all workers have the same common weights."""
        for one in self._fragments:
            since = (step - one.offset) % self._settings.local_steps
            if since < self._delay and step > since:
                self._send(one)

    def _set_out(self, one: _Fragment) -> None:
        part = one.part
        torch.sub(self.common[part], self._weights[part], out=self._sent[part])
        self._send(one)

    def _send(self, one: _Fragment) -> None:
        error = self._error[one.part] if self._error is not None else None
        vector = self._sent[one.part]
        one.under_way = self._exchange.start(vector, error) if self._exchange else _Arrived(vector)

    def _bring_home(self, one: _Fragment) -> None:
        """Wait for a mean and make the outer step; what was learned meanwhile is kept."""
        exchange, one.under_way = one.under_way, None
        assert exchange is not None
        mean, kept_back = exchange.wait()
        part, settings = one.part, self._settings
        if self._error is not None and kept_back is not None:
            self._error[part].copy_(kept_back)
        outer_step(
            mean,
            self._sent[part],
            self._momentum[part],
            self.common[part],
            self._weights[part],
            settings.outer_learning_rate,
            settings.outer_momentum,
        )


def outer_step(
    mean: Tensor,
    sent: Tensor,
    momentum: Tensor,
    common: Tensor,
    weights: Tensor,
    learning_rate: float,
    decay: float,
) -> None:
    """Make the Nesterov step of the common weights, and bring a worker's own along.

    It was at common - sent when the fragment set out, and has gone on since.
    """
    if mean.is_cuda and HAS_KERNELS:
        from dragoman.cluster import wire_kernels

        wire_kernels.outer_step(mean, sent, momentum, common, weights, learning_rate, decay)
        return
    momentum.mul_(decay).add_(mean)
    change = learning_rate * (mean + decay * momentum)
    common.sub_(change)
    weights.add_(sent - change)


def flat_weights(model: nn.Module) -> Tensor:
    """All weights as one vector that the parameters are views of; made so if they are not."""
    parameters = list(model.parameters())
    storage = parameters[0].untyped_storage()
    if any(one.untyped_storage().data_ptr() != storage.data_ptr() for one in parameters):
        flat = torch.cat([one.detach().flatten() for one in parameters])
        start = 0
        for one in parameters:
            one.data = flat[start : start + one.numel()].view_as(one)
            start += one.numel()
        return flat
    return torch.empty(0, device=parameters[0].device).set_(storage)


def views_of(model: nn.Module, buffer: Tensor) -> dict[str, Tensor]:
    """The places of the parameters in a buffer laid out as the weights are, by name."""
    return {
        name: buffer[one.storage_offset() : one.storage_offset() + one.numel()].view_as(one)
        for name, one in model.named_parameters()
    }
