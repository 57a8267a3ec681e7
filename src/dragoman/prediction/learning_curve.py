"""Where a learning curve leads: many simple curves, weighted by how well each predicted it.

Every curve of the grid is linear in what is left to fit, so that its posterior is known exactly
(normal and inverse gamma). Its weight is its marginal likelihood, the product of how probable each
evaluation was given those before it. Draws from the posterior of all of them together are turned
into whatever is asked: what more steps would bring, or how far the loss lies above its minimum.
"""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cache
from itertools import product

import numpy as np
from numpy.typing import NDArray

from dragoman.prediction.curve_shapes import FAMILY_PRIOR, Design, all_designs, columns
from dragoman.prediction.evaluation_noise import rough_noise, running_median, seen_rise
from dragoman.prediction.recalibration import GAIN, TURN
from dragoman.prediction.run_schedule import RunSchedule
from dragoman.schedule import Floats

FURTHER_STEPS = 1.5
DRAWS = 6_000
_FEWEST_POSSIBLE = 0.02  # Of the draws of a curve; fewer are taken for so many.
MOST_POINTS = 120  # More evaluations are averaged in groups: what they say is the same.
# How much neighbouring evaluations vary together, and how likely each is.
_CORRELATIONS = {0.0: 0.35, 0.3: 0.35, 0.6: 0.2, 0.85: 0.1}
# No curve of the grid is the true one: so far off it may be, as part of the distance to its end.
_MISFITS = {0.03: 0.5, 0.15: 0.5}
_TRUST = 0.5  # What an evaluation counts, for the same reason,
_STRAY = 0.45  # and the deviation of the logarithm of what a curve foretells from what happens.
_NOISE = 0.3  # Of an evaluation, in units of a meaningful gain,
_NOISE_WEIGHT = 1.0  # taken as seriously as two evaluations.
_TURN_SCALE = 10.0  # How far curves rise after a turn, in the same units.
_DECAY_MEAN, _DECAY_SCALE = 5.0, 4.0  # What lowering the learning rate to zero brings.
_PATH_POINTS = 40  # Up to the last evaluation, and as many beyond it.
_NOW = _PATH_POINTS - 1


@dataclass(frozen=True)
class Curve:
    """A measure that falls as a model gets better; BLEU is turned upside down."""

    steps: Floats
    values: Floats
    unit: float  # A gain that is worth having.
    lowest: float  # What it can never fall below.
    highest: float = math.inf  # Nor rise above.


@dataclass(frozen=True)
class Forecast:
    """Draws of what may be true, each as likely as the other."""

    gain: Floats  # What half as many steps again would bring.
    rise: Floats  # How far the curve lies above its minimum now,
    seen_rise: float  # and the evaluations, noise and all, above theirs.
    best_step: Floats  # Where the minimum is.
    path_steps: Floats  # From the first evaluation on, and beyond the last one.
    path: Floats  # Draws by path_steps: the curve without noise.
    noise: float  # Of one evaluation.
    families: dict[str, float]  # Share of the draws that each family has.
    is_scheduled: bool  # Whether the learning rate has an end to fall to.

    @property
    def last_step(self) -> float:
        """Of the last evaluation."""
        return float(self.path_steps[_NOW])

    def gain_probability(self, at_least: float) -> float:
        """How likely so much is gained."""
        share = float((self.gain >= at_least).mean())
        return GAIN[self.is_scheduled].probability(share)

    def rise_probability(self, at_least: float) -> float:
        """How likely the curve has risen so far."""
        share = float((self.rise >= at_least).mean())
        return TURN.probability(share, self.seen_rise / at_least)

    def change_since(self, step: float) -> Floats:
        """How far the curve has risen since a step, up to the last evaluation."""
        then = self.path[:, int(np.argmin(np.abs(self.path_steps - step)))]
        change: Floats = self.path[:, _NOW] - then
        return change


@dataclass(frozen=True)
class _Axis:
    """How far learning has come at each step, and how far the learning rate has come down."""

    progress: Floats
    decay: Floats


def forecast(curve: Curve, schedule: RunSchedule | None, seed: int = 0) -> Forecast:
    """Fit the whole curve and draw what may be true of it."""
    steps, values = _in_groups(curve.steps, curve.values)
    last = float(steps[-1])
    path_steps = np.linspace(steps[0], last, _PATH_POINTS)
    path_steps = np.append(path_steps, np.linspace(1.0, FURTHER_STEPS, _PATH_POINTS)[1:] * last)
    everywhere = np.concatenate((steps, path_steps))
    axes = _axes(everywhere, steps, schedule)
    groups = [group for axis, share in axes for group in _fit_all(axis, values, curve.unit, share)]
    end = float(np.median(values[-3:]))
    return _draw(groups, path_steps, curve, end, seed, is_scheduled=len(axes) > 1)


def _in_groups(steps: Floats, values: Floats) -> tuple[Floats, Floats]:
    groups = np.array_split(np.arange(len(steps)), min(len(steps), MOST_POINTS))
    means = [(float(steps[group].mean()), float(values[group].mean())) for group in groups]
    steps, values = np.array(means).T
    return steps, values


def _axes(
    everywhere: Floats, steps: Floats, schedule: RunSchedule | None
) -> list[tuple[_Axis, float]]:
    """Progress by steps and, where the schedule has an end, by the sum of learning rates too."""
    last = float(steps[-1])
    by_steps = _Axis(everywhere / last, np.zeros_like(everywhere))
    if schedule is None or not schedule.has_end or not schedule.peak:
        return [(by_steps, 1.0)]
    longer = schedule.lasting(FURTHER_STEPS * last)
    seen = everywhere <= last
    decay = np.where(seen, schedule.decay(everywhere), longer.decay(everywhere))
    summed = np.where(seen, schedule.summed(everywhere), longer.summed(everywhere))
    # A longer schedule stays high for longer: at the same step it has come further.
    by_rates = np.maximum(summed / schedule.summed(steps[-1:]), 1e-6)
    return [
        (_Axis(everywhere / last, decay), 0.5),
        (_Axis(by_rates, decay), 0.5),
    ]


@dataclass(frozen=True)
class _Fits:
    """The posteriors of curves of the grid with as many coefficients each."""

    families: list[str]
    log_weights: Floats
    means: Floats
    roots: Floats  # Of the covariances, but for the noise.
    shape: float  # Of the noise's inverse gamma distribution,
    scales: Floats  # and its scale.
    paths: Floats  # What each coefficient adds to the path.


@cache
def _designs() -> tuple[tuple[Design, float], ...]:
    designs = all_designs()
    sizes = {family: sum(one.family == family for one in designs) for family in FAMILY_PRIOR}
    return tuple((one, FAMILY_PRIOR[one.family] / sizes[one.family]) for one in designs)


@dataclass(frozen=True)
class _Prior:
    """A curve of the grid over all points, and what its coefficients are before any evaluation."""

    family: str
    log_share: float
    rows: Floats
    means: tuple[float, ...]
    scales: tuple[float, ...]


def _priors(axis: _Axis, values: Floats, unit: float, share: float) -> Iterator[_Prior]:
    span = float(np.ptp(values))
    level = np.ones_like(axis.progress)
    found = columns((design for design, _ in _designs()), axis.progress)
    for (design, likely), shapes in zip(_designs(), found, strict=True):
        rows = [level, *shapes]
        means = [0.0] + [0.5 * span] * len(design.falls)
        scales = [max(span, unit)] * (1 + len(design.falls))
        if design.turn is not None:
            means.append(0.0)
            scales.append(_TURN_SCALE * unit)
        if axis.decay.any():
            rows.append(-axis.decay)
            means.append(_DECAY_MEAN * unit)
            scales.append(_DECAY_SCALE * unit)
        yield _Prior(
            design.family, math.log(share * likely), np.array(rows), tuple(means), tuple(scales)
        )


def _fit_all(axis: _Axis, values: Floats, unit: float, share: float) -> Iterator[_Fits]:
    """Fit every curve of the grid, those with as many coefficients at once."""
    end = float(np.median(values[-3:]))
    noise = max(rough_noise(values), 0.1 * unit)
    excess = np.abs(running_median(values) - end) / noise
    by_size: dict[int, list[_Prior]] = {}
    for prior in _priors(axis, values, unit, share):
        by_size.setdefault(len(prior.means), []).append(prior)
    for group in by_size.values():
        for (together, likely), (misfit, common) in product(
            _CORRELATIONS.items(), _MISFITS.items()
        ):
            weights = 1 / np.sqrt(1 + (misfit * excess) ** 2)
            log_share = math.log(likely * common)
            yield _fit(group, values - end, weights, together, noise, _NOISE * unit, log_share)


def _fit(
    group: Sequence[_Prior],
    values: Floats,
    weights: Floats,
    together: float,
    noise: float,
    usual_noise: float,
    log_share: float,
) -> _Fits:
    """Posteriors given how neighbours vary together and how much each evaluation weighs."""
    count = len(values)
    rows = np.array([prior.rows for prior in group])
    means = np.array([prior.means for prior in group])
    spreads = np.array([prior.scales for prior in group]) / noise
    white_rows = math.sqrt(_TRUST) * _whiten(rows[..., :count], weights, together)
    white = math.sqrt(_TRUST) * _whiten(values, weights, together)
    precision = spreads**-2.0
    total = white_rows @ white_rows.transpose(0, 2, 1) + precision[..., None] * np.eye(
        means.shape[1]
    )
    right = white_rows @ white + precision * means
    found = np.linalg.solve(total, right[..., None])[..., 0]
    square = float(white @ white) + (precision * means**2).sum(1) - (right * found).sum(1)
    counted = _TRUST * count
    shape = _NOISE_WEIGHT + counted / 2
    first_scale = _NOISE_WEIGHT * usual_noise**2
    scales = first_scale + np.maximum(square, 0.0) / 2
    log_weights = (
        np.array([prior.log_share for prior in group])
        + log_share
        - np.log(spreads).sum(1)
        - 0.5 * np.linalg.slogdet(total)[1]
        + _NOISE_WEIGHT * math.log(first_scale)
        - shape * np.log(scales)
        + _TRUST * float(np.log(weights).sum())
        - 0.5 * (counted - _TRUST) * math.log(1 - together**2)
    )
    roots = np.linalg.cholesky(np.linalg.inv(total))
    families = [prior.family for prior in group]
    return _Fits(families, log_weights, found, roots, shape, scales, rows[..., count:])


def _whiten(rows: Floats, weights: Floats, together: float) -> Floats:
    """Turn noise that neighbours share into noise that they do not."""
    scaled = rows * weights
    white: Floats = scaled.copy()
    white[..., 1:] = (scaled[..., 1:] - together * scaled[..., :-1]) / math.sqrt(1 - together**2)
    return white


@dataclass(frozen=True)
class _Draws:
    """Coefficients drawn from the posteriors of some curves."""

    fits: _Fits
    places: NDArray[np.intp]  # Of which curve each is,
    coefficients: Floats
    noise: Floats
    is_possible: NDArray[np.bool_]  # Falls fall, rises rise, and a lower rate helps.

    def paths(self) -> Floats:
        """The curves without noise."""
        chosen = self.coefficients[self.is_possible][:, None]
        paths: Floats = (chosen @ self.fits.paths[self.places[self.is_possible]])[:, 0]
        return paths

    def families(self) -> NDArray[np.str_]:
        """Of which family each is."""
        return np.array(self.fits.families)[self.places[self.is_possible]]


def _draw_from(fits: _Fits, numbers: Floats, generator: np.random.Generator) -> _Draws:
    """Draw from each posterior, on average as often as these numbers say."""
    whole = np.floor(numbers + generator.random(len(numbers))).astype(int)
    places = np.repeat(np.arange(len(numbers)), whole)
    noise = np.sqrt(fits.scales[places] / generator.gamma(fits.shape, size=len(places)))
    normal = generator.standard_normal((len(places), fits.means.shape[1], 1))
    spread = noise[:, None] * (fits.roots[places] @ normal)[..., 0]
    coefficients = fits.means[places] + spread
    possible = np.all(coefficients[:, 1:] >= 0, axis=1)
    return _Draws(fits, places, coefficients, noise, possible)


def _draw(
    groups: Sequence[_Fits],
    path_steps: Floats,
    curve: Curve,
    end: float,
    seed: int,
    *,
    is_scheduled: bool,
) -> Forecast:
    """Draw from all posteriors, each as often as it is likely."""
    shares = [_possible(fits) for fits in groups]
    log_weights = np.concatenate([fits.log_weights for fits in groups])
    log_weights += np.log(np.concatenate(shares))
    weights = np.exp(log_weights - log_weights.max())
    generator = np.random.default_rng(seed)
    counts = generator.multinomial(DRAWS, weights / weights.sum())
    sizes = np.cumsum([len(fits.families) for fits in groups])[:-1]
    draws = [
        _draw_from(fits, count / np.maximum(share, _FEWEST_POSSIBLE), generator)
        for fits, count, share in zip(groups, np.split(counts, sizes), shares, strict=True)
    ]
    if not any(drawn.is_possible.any() for drawn in draws):
        # No curve of the grid is like this one: take what comes nearest.
        draws = [replace(drawn, is_possible=~drawn.is_possible) for drawn in draws]
    paths = [drawn.paths() for drawn in draws]
    path = np.clip(np.concatenate(paths) + end, curve.lowest, curve.highest)
    strayed = np.exp(_STRAY * generator.standard_normal((len(path), 1)))
    path[:, _NOW:] = np.clip(
        path[:, [_NOW]] + strayed * (path[:, _NOW:] - path[:, [_NOW]]),
        curve.lowest,
        curve.highest,
    )
    past = path[:, : _NOW + 1]
    names = np.concatenate([drawn.families() for drawn in draws])
    return Forecast(
        gain=path[:, _NOW] - path[:, -1],
        rise=path[:, _NOW] - past.min(axis=1),
        seen_rise=seen_rise(curve.values),
        best_step=path_steps[np.argmin(past, axis=1)],
        path_steps=path_steps,
        path=path,
        noise=float(np.median(np.concatenate([one.noise[one.is_possible] for one in draws]))),
        families={name: float((names == name).mean()) for name in FAMILY_PRIOR},
        is_scheduled=is_scheduled,
    )


def _possible(fits: _Fits) -> Floats:
    """How likely the falls fall, the rise rises and a lower rate helps, each by itself."""
    variances = (fits.roots**2).sum(2) * (fits.scales / fits.shape)[:, None]
    each = fits.means[:, 1:] / np.sqrt(2 * variances[:, 1:])
    shares: Floats = np.prod(0.5 * (1 + np.vectorize(math.erf, otypes=[float])(each)), axis=1)
    return np.maximum(shares, 1e-300)
