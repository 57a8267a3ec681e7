"""Muon: which weights it updates, and how it makes their updates orthogonal.

A matrix moves by its momentum with all singular values made equal: directions that gradients
seldom take are learned as fast as those they always take. Embeddings, norms and biases are no
maps between hidden states, and keep to Adam.
"""

import math
from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

# The root mean square of Adam's updates, about: with it, both get along with one learning rate.
ADAM_SIZE = 0.2
# Odd polynomials a x + b x^3 + c x^5, applied to the singular values one after the other. Each is
# the best there is for what the one before leaves of the interval from 0.003 to 1 (by Remez's
# algorithm); together they bring it to 0.78 .. 1.22. Inputs may be 1% above, where rounding puts
# them.
COEFFICIENTS = (
    (8.13772, -22.71371, 16.32544),
    (3.96716, -2.83779, 0.52272),
    (3.50166, -2.57398, 0.50374),
    (2.51188, -1.82447, 0.42291),
)
# A momentum that fades away altogether is not to be blown up by what rounding leaves of its norm.
SMALLEST_NORM = 1e-15
# Matrices that hold several maps, whose singular values have nothing to do with each other.
MAPS_IN_ONE = {"query_key_value.weight": 3, "key_value.weight": 2}


def matrices_of(shapes: Mapping[str, torch.Size]) -> list[str]:
    """The parameters that Muon updates; Adam has the others."""
    return [name for name, shape in shapes.items() if is_matrix(name, shape)]


def is_matrix(name: str, shape: torch.Size) -> bool:
    """Whether a parameter maps hidden states to hidden states."""
    return len(shape) == 2 and "embedding" not in name


def map_shape(name: str, shape: torch.Size) -> torch.Size:
    """The shape of the one map, or of each of those, that a matrix holds."""
    own_name = ".".join(name.split(".")[-2:])
    return torch.Size((shape[0] // MAPS_IN_ONE.get(own_name, 1), shape[1]))


def update_size(rows: int, columns: int) -> float:
    """What an orthogonal matrix is multiplied by to be as large as an update of Adam's."""
    return ADAM_SIZE * math.sqrt(max(rows, columns))


def arithmetic_type(device: torch.device) -> torch.dtype:
    """What `orthogonalize` computes in: bfloat16 is exact enough, where it is fast."""
    is_fast = device.type == "cuda" and torch.cuda.get_device_capability(device) >= (8, 0)
    return torch.bfloat16 if is_fast else torch.float32


def orthogonalize(stacks: Sequence[Tensor]) -> list[Tensor]:
    """Bring the singular values of every matrix of every stack [count, rows, columns] near 1.

    What comes back has the memory layout of what was given, if that has no gaps.
    """
    return raise_singular_values([_at_most_one(stack) for stack in stacks])


def raise_singular_values(stacks: Sequence[Tensor]) -> list[Tensor]:
    """The same for matrices none of whose singular values is larger than 1."""
    found: list[Tensor] = list(stacks)
    wide = [stack if stack.shape[1] <= stack.shape[2] else stack.mT for stack in stacks]
    for side in sorted({one.shape[1] for one in wide}):
        places = [place for place, one in enumerate(wide) if one.shape[1] == side]
        for place, one in zip(places, _raise([wide[p] for p in places]), strict=True):
            found[place] = one if wide[place] is stacks[place] else one.mT
    return found


def _raise(stacks: list[Tensor]) -> list[Tensor]:
    """The same for stacks of wide matrices of the same number of rows."""
    counts, side = [len(stack) for stack in stacks], stacks[0].shape[1]
    outs, spares = ([torch.empty_like(stack) for stack in stacks] for _ in range(2))
    grams = stacks[0].new_empty(sum(counts), side, side)
    polynomials = torch.empty_like(grams)
    for a, b, c in COEFFICIENTS:
        for stack, gram in zip(stacks, torch.split(grams, counts), strict=True):
            torch.bmm(stack, stack.mT, out=gram)
        # a + b g + c g^2 = c (g + b / 2c)^2 + a - b^2 / 4c: what is no product touches diagonals
        # alone, and few large products serve all matrices.
        grams.diagonal(dim1=1, dim2=2).add_(b / (2 * c))
        torch.baddbmm(polynomials, grams, grams, beta=0, alpha=c, out=polynomials)
        polynomials.diagonal(dim1=1, dim2=2).add_(a - b * b / (4 * c))
        for stack, polynomial, out in zip(
            stacks, torch.split(polynomials, counts), outs, strict=True
        ):
            torch.bmm(polynomial, stack, out=out)
        stacks, outs, spares = outs, spares, outs
    return stacks


def _at_most_one(stack: Tensor) -> Tensor:
    """Divide each matrix by its norm, which no singular value is larger than."""
    norms = torch.linalg.vector_norm(stack, dim=(1, 2), keepdim=True)
    return stack / norms.clamp(min=SMALLEST_NORM)
