"""The plain model's gradients by PyTorch's compiler, where the fused kernels cannot be used."""

import torch
from torch import Tensor

from dragoman.model.fused.flat_weights import FlatWeights
from dragoman.model.fused.loss import sums_and_gradient
from dragoman.model.transformer import RowTensors, Transformer


class CompiledTransformer:
    """Makes the gradients of a Transformer whose weights lie in flat buffers.

    Rows always have the shape of the first: it is compiled for. The loss has kernels of its own,
    which never hold all logits.
    """

    def __init__(self, model: Transformer, flat: FlatWeights, label_smoothing: float) -> None:
        self._model, self._flat, self._label_smoothing = model, flat, label_smoothing
        for name, parameter in model.named_parameters():
            parameter.grad = flat.view(flat.gradients, [name])
        self._compiled = torch.compile(self._hidden, dynamic=False)

    def add_gradients(
        self, rows: RowTensors, gradient_scale: Tensor, *, is_trial: bool = False
    ) -> Tensor:
        """Add gradient_scale x the gradients of the summed loss; return loss and nll, summed.

        A trial, of rows in any number, is not worth compiling, and needs a little more memory.
        """
        kind = self._flat.copies.dtype
        with torch.autocast("cuda", kind, enabled=kind != torch.float32):
            hidden = self._hidden(rows) if is_trial else self._compiled(rows)
        sums, gradient = sums_and_gradient(
            hidden.detach().to(kind),
            self._flat.weight("target_embedding.weight"),
            rows.target.flatten(),
            rows.target_segments.flatten(),
            self._label_smoothing,
            gradient_scale,
        )
        hidden.backward(gradient.to(hidden.dtype))
        return sums

    def _hidden(self, rows: RowTensors) -> Tensor:
        """Hidden states of all target slots, [N, D]."""
        return self._model.hidden_states(rows).flatten(0, 1)
