"""AdamW over flat buffers in one kernel, which also writes the 16-bit copies of the weights."""

import triton
import triton.language as tl
from torch import Tensor

from dragoman.model.fused.flat_weights import FlatWeights

BLOCK, WARPS = 1024, 4


def adam(flat: FlatWeights, numbers: Tensor, beta1: float, beta2: float, epsilon: float) -> None:
    """Update the weights that have squares; everything that changes by step is on the device.

    numbers [5]: 1 to skip the update; the gradients' factor; 1 - learning rate x weight decay;
    learning rate / (1 - beta1^updates); the root of 1 - beta2^updates.
    """
    count = flat.squares.numel()
    _adam[(triton.cdiv(count, BLOCK),)](
        flat.values,
        flat.gradients,
        flat.means,
        flat.squares,
        flat.copies,
        numbers,
        count,
        beta1,
        beta2,
        # Made here, in double precision: in float32 1 - 0.999 is off by 1e-5 of itself.
        1 - beta1,
        1 - beta2,
        epsilon,
        BLOCK=BLOCK,
        num_warps=WARPS,
    )


@triton.jit
def _adam(
    value_ptr,
    gradient_ptr,
    mean_ptr,
    square_ptr,
    copy_ptr,
    numbers_ptr,
    count,
    beta1,
    beta2,
    rest1,
    rest2,
    epsilon,
    BLOCK: tl.constexpr,
):
    if tl.load(numbers_ptr) == 0.0:
        factor = tl.load(numbers_ptr + 1)
        decay = tl.load(numbers_ptr + 2)
        step_size = tl.load(numbers_ptr + 3)
        root_correction = tl.load(numbers_ptr + 4)
        index = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
        inside = index < count
        gradient = tl.load(gradient_ptr + index, mask=inside, other=0.0) * factor
        mean = tl.load(mean_ptr + index, mask=inside, other=0.0)
        square = tl.load(square_ptr + index, mask=inside, other=0.0)
        value = tl.load(value_ptr + index, mask=inside, other=0.0)
        mean = beta1 * mean + rest1 * gradient
        square = beta2 * square + rest2 * gradient * gradient
        value = value * decay - step_size * mean / (tl.sqrt(square) / root_correction + epsilon)
        tl.store(mean_ptr + index, mean, mask=inside)
        tl.store(square_ptr + index, square, mask=inside)
        tl.store(value_ptr + index, value, mask=inside)
        tl.store(copy_ptr + index, value.to(copy_ptr.dtype.element_ty), mask=inside)
