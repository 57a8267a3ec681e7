"""The shapes that learning curves are fitted with: a small family, none of which is the truth.

Each falls from 1 at the first evaluation to 0 at the last one; what matters is how far below 0 it
is at the target, a point beyond the last evaluation. Where a shape is steep or bent is a grid, so
that all that is left to fit is linear.
"""

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from functools import cache
from itertools import product

import numpy as np

from dragoman.schedule import Floats

Shape = Callable[[Floats], Floats]

# How likely each family is before any evaluation is seen. Far fewer runs turn than it says here: an
# evaluation counts half (learning_curve.py), so that noise would be too ready an excuse for a rise.
FAMILY_PRIOR = {
    "power law": 0.08,
    "exponential": 0.065,
    "stretched exponential": 0.03,
    "sigmoid": 0.03,
    "two speeds": 0.03,
    "late fall": 0.015,
    "flat": 0.005,
    "turning": 0.745,
}
_TURNS = (0.15, 0.3, 0.45, 0.6, 0.75, 0.87, 0.93)  # Of the way to the last evaluation.


@dataclass(frozen=True)
class Design:
    """One curve of the grid: a level, falls that slow down, and perhaps a rise after a turn."""

    family: str
    falls: tuple[Shape, ...]
    turn: float | None = None
    is_speeding_up: bool = False  # The rise.


def all_designs() -> list[Design]:
    """The whole grid."""
    return [
        *(Design("power law", (_power(alpha, shift),)) for alpha, shift in _powers()),
        *(Design("exponential", (_exponential(rate),)) for rate in _EXPONENTIALS),
        *(Design("stretched exponential", (_exponential(rate, 0.5),)) for rate in _STRETCHED),
        *(Design("sigmoid", (_hill(*which),)) for which in product(_HALVES, (1.5, 3.0))),
        *(Design("two speeds", pair) for pair in _pairs()),
        *(Design("late fall", pair) for pair in _late_falls()),
        Design("flat", ()),
        *(
            Design("turning", falls, turn, is_speeding_up)
            for falls, turn, is_speeding_up in product(_before_a_turn(), _TURNS, (False, True))
        ),
    ]


_EXPONENTIALS = (0.02, 0.04, 0.07, 0.12, 0.2, 0.3, 0.5, 0.8, 1.5)
_STRETCHED = (0.002, 0.01, 0.03, 0.08, 0.2, 0.5)
_HALVES = (0.05, 0.15, 0.3, 0.6, 1.2, 2.5)


def _powers() -> Iterator[tuple[float, float]]:
    return product((0.0, 0.25, 0.5, 0.8, 1.2, 2.0, 3.0), (0.0, 0.1))


def _pairs() -> Iterator[tuple[Shape, ...]]:
    quick = (_exponential(rate) for rate in (0.04, 0.1, 0.2))
    return product(quick, (_power(0.0, 0.0), _power(0.7, 0.0)))


def _late_falls() -> Iterator[tuple[Shape, ...]]:
    """Someone lowered the rate by hand, or the model has got the hang of something."""
    begins = (
        lambda progress, begin=begin: -np.maximum(progress, begin) for begin in (0.5, 0.75, 0.9)
    )
    return product((_exponential(0.07), _power(0.5, 0.0)), begins)


def _before_a_turn() -> Iterator[tuple[Shape, ...]]:
    """As steep and as bent as curves that do not turn: else a poor fit early on hides the turn."""
    yield ()
    yield from ((_exponential(rate),) for rate in (0.02, 0.04, 0.07, 0.12, 0.25))
    yield from ((_exponential(rate, 0.5),) for rate in (0.002, 0.01, 0.03, 0.1))
    yield from ((_power(alpha, 0.0),) for alpha in (0.0, 0.25, 0.5, 0.8, 1.2, 2.0, 3.0))


def _power(alpha: float, shift: float) -> Shape:
    """A power law, whose limit of exponent zero is a logarithm."""
    if alpha == 0:
        return lambda progress: -np.log(progress + shift)
    return lambda progress: (progress + shift) ** -alpha


def _exponential(rate: float, power: float = 1.0) -> Shape:
    # Beyond what a float can hold it is nothing.
    return lambda progress: np.exp(-np.minimum((progress / rate) ** power, 600.0))


def _hill(half: float, power: float) -> Shape:
    return lambda progress: 1 / (1 + (progress / half) ** power)


def columns(designs: Iterable[Design], progress: Floats) -> list[list[Floats]]:
    """What each fall, and the rise, adds to a curve; progress is 1 at the last evaluation."""

    @cache  # Many curves fall or rise alike.
    def fallen(fall: Shape) -> Floats:
        end = fall(np.ones(1))
        height = fall(progress[:1]) - end
        column: Floats = (fall(progress) - end) / np.maximum(height, 1e-300)
        return column

    @cache
    def risen(turn: float, is_speeding_up: bool) -> Floats:
        # A rise is taken to go on for as long as it has lasted.
        beyond = np.clip(progress, turn, 2 - turn)
        column: Floats = np.log(beyond / turn) / -np.log(turn)
        if is_speeding_up:
            column = ((beyond - turn) / (1 - turn)) ** 2
        return column

    return [
        [fallen(fall) for fall in one.falls]
        + ([] if one.turn is None else [risen(one.turn, one.is_speeding_up)])
        for one in designs
    ]
