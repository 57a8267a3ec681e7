"""Learning curves of known truth, of shapes and noises other than those that the report fits."""

import math
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from dragoman.config import ScheduleSettings
from dragoman.prediction.run_schedule import RunSchedule
from dragoman.schedule import Floats

FURTHER = 1.5
Curve = Callable[[Floats], Floats]


@dataclass(frozen=True)
class Settings:
    """What a made-up run is made of."""

    fewest: int = 6
    most: int = 100
    loss_noise: tuple[float, float] = (0.002, 0.01)
    bleu_noise: tuple[float, float] = (0.12, 0.45)


@dataclass(frozen=True)
class MadeUpRun:
    """Evaluations as a run has them, and what is true beside them."""

    steps: Floats
    loss: Floats
    sample_loss: Floats
    bleu: Floats
    schedule: RunSchedule | None
    kind: str
    loss_gain: float  # Of half as many steps again, without noise.
    bleu_gain: float
    rise: float  # Of the eval loss since its minimum, without noise.

    @property
    def worth(self) -> float:
        """The larger gain, as part of what is worth having."""
        return max(self.loss_gain / 0.02, self.bleu_gain / 0.5)

    @property
    def is_plain(self) -> bool:
        return not 0.25 <= self.worth <= 2


@dataclass(frozen=True)
class _Law:
    """The true curves over progress, which is 1 at the last step if the rate is constant."""

    loss: Curve
    bleu_of: Curve  # Of the loss without what overfitting adds.
    overfit: Curve
    decay_gain: float  # What a rate of zero brings.
    decay_power: float
    lag: float  # How far the effect of a lower rate comes after it, as part of the run.


def make_run(generator: np.random.Generator, settings: Settings) -> MadeUpRun:
    """Draw a run whose true gain is plainly little, plainly much or near what counts, as often."""
    wanted = str(generator.choice(["little", "near", "much"], p=[0.35, 0.3, 0.35]))
    while True:
        run = _draw_run(generator, settings)
        size = "little" if run.worth < 0.25 else "near" if run.worth <= 2 else "much"
        # Of steps that someone moved, two may be one.
        if size == wanted and len(run.steps) >= settings.fewest:
            return run


def _draw_run(generator: np.random.Generator, settings: Settings) -> MadeUpRun:
    count = round(math.exp(generator.uniform(*np.log((settings.fewest, settings.most)))))
    last = float(10 ** generator.uniform(3.3, 5.3))
    kind = str(
        generator.choice(["steady", "overfits", "decays", "is cut short"], p=[0.5, 0.2, 0.18, 0.12])
    )
    schedule = _schedule(generator, kind, last)
    law = _law(generator, kind)
    steps = np.linspace(1 / count, 1.0, count) * last
    if generator.random() < 0.3:  # Someone changed how often to evaluate, or a resume moved it.
        inner = np.sort(generator.uniform(steps[0], last, max(count - 2, 1)))
        steps = np.unique(np.round(np.concatenate((steps[:1], inner, steps[-1:]))))
    loss, sample, bleu = _true(law, steps, last, schedule)
    rise = 0.0
    if kind == "overfits":  # Every other curve falls to its end.
        dense = np.linspace(steps[0], last, 2_000)
        rise = float(loss[-1] - _true(law, dense, last, schedule)[0].min())
    ahead_loss, _, ahead_bleu = _ahead(law, last, schedule)
    noise = _noise(generator, steps / last, settings)
    return MadeUpRun(
        steps=np.round(steps),
        loss=loss + noise[0],
        sample_loss=sample + noise[2],
        bleu=np.clip(bleu + noise[1], 0.0, 100.0),
        schedule=schedule,
        kind=kind,
        loss_gain=float(loss[-1] - ahead_loss),
        bleu_gain=float(ahead_bleu - bleu[-1]),
        rise=rise,
    )


def _schedule(generator: np.random.Generator, kind: str, last: float) -> RunSchedule | None:
    if kind not in ("decays", "is cut short"):
        return None
    total = last if kind == "decays" else last / generator.uniform(0.35, 0.9)
    warmup = max(1, round(total * generator.uniform(0.01, 0.08)))
    if generator.random() < 0.5:
        chosen = ScheduleSettings("cosine", peak=1e-3, warmup_steps=warmup)
    else:
        decay = round(total * generator.uniform(0.1, 0.4))
        chosen = ScheduleSettings(
            "warmup_stable_decay", peak=1e-3, warmup_steps=warmup, decay_steps=decay
        )
    return RunSchedule(chosen, 512, round(total))


def _law(generator: np.random.Generator, kind: str) -> _Law:
    loss = _loss(generator)
    top = float(generator.uniform(5, 60)) if generator.random() < 0.93 else 99.8
    middle, width = float(generator.uniform(0.35, 1.6)), float(generator.uniform(0.25, 0.7))
    floor = float(loss(np.array([1e6]))[0])

    def bleu_of(values: Floats) -> Floats:
        excess = np.maximum(values - floor, 0.0)
        scaled: Floats = top / (1 + np.exp((excess - middle) / width))
        scale = 1 + math.exp(-middle / width)
        return scaled * scale

    turn, size = float(generator.uniform(0.1, 0.9)), float(10 ** generator.uniform(-1.5, 0.2))
    power = float(generator.uniform(1.0, 2.0))
    overfit = (
        (lambda u: size * np.maximum(u - turn, 0.0) ** power)
        if kind == "overfits"
        else np.zeros_like
    )
    return _Law(
        loss,
        bleu_of,
        overfit,
        decay_gain=float(generator.uniform(0.03, 0.25)),
        decay_power=float(generator.uniform(0.7, 1.5)),
        lag=float(generator.uniform(0.0, 0.05)),
    )


def _loss(generator: np.random.Generator) -> Curve:
    """One of five laws, none of which is in the fitted family as it stands."""
    floor, height = float(generator.uniform(1.0, 3.5)), float(generator.uniform(3.0, 7.0))
    speed = float(10 ** generator.uniform(0.2, 2.8))  # How many of its own times a run lasts.
    which = int(generator.integers(5))
    if which == 0:  # A smoothly broken power law.
        slow, quick = float(generator.uniform(0.05, 0.4)), float(generator.uniform(0.5, 2.0))
        return lambda u: (
            floor + height * (0.2 + speed * u) ** -slow * (1 + (speed * u / 8)) ** -quick
        )
    if which == 1:  # Janoschek's, which a Weibull distribution also has.
        bend = float(generator.uniform(0.35, 1.4))
        return lambda u: floor + height * np.exp(-((speed * u) ** bend))
    if which == 2:  # A power of a logarithm.
        power = float(generator.uniform(1.0, 4.0))
        return lambda u: floor + height * np.log(math.e + 3 * speed * u) ** -power
    if which == 3:  # Two things learned one after the other.
        part = float(generator.uniform(0.02, 0.25))
        late, width = float(generator.uniform(0.2, 1.2)), float(generator.uniform(0.1, 0.4))
        return lambda u: (
            floor
            + height * (1 - part) * (1 + speed * u) ** -1.1
            + height * part * 0.5 * (1 - np.tanh(np.log(u / late) / (2 * width))) * 0.3
        )
    # A sum of exponentials, as of many tasks of different difficulty.
    times = np.geomspace(0.3, 60, 12)
    shares = generator.dirichlet(np.full(12, 0.7))
    return lambda u: floor + height * (np.exp(-np.multiply.outer(speed * u, 1 / times)) @ shares)


def _true(
    law: _Law, steps: Floats, last: float, schedule: RunSchedule | None
) -> tuple[Floats, Floats, Floats]:
    """Loss on unseen text, on the training sample, and BLEU, without noise."""
    progress = steps / last
    helped = np.zeros_like(steps)
    if schedule is not None:
        constant = schedule.peak * last
        progress = np.maximum(schedule.summed(steps) / constant, 1e-5) ** 0.9
        before = np.maximum(steps - law.lag * last, 1.0)
        helped = law.decay_gain * schedule.decay(before) ** law.decay_power
    learned = law.loss(progress) - helped
    loss = learned + law.overfit(progress)
    sample = learned - 0.15 * progress**0.5
    return loss, sample, law.bleu_of(learned)


def _ahead(law: _Law, last: float, schedule: RunSchedule | None) -> tuple[float, float, float]:
    """The same after half as many steps again, on a schedule that is long enough for them."""
    further = np.array([FURTHER * last])
    longer = schedule.lasting(FURTHER * last) if schedule else None
    loss, sample, bleu = _true(law, further, last, longer)
    return float(loss[0]), float(sample[0]), float(bleu[0])


def _noise(generator: np.random.Generator, progress: Floats, settings: Settings) -> Floats:
    """Of the three measures: heavy-tailed, correlated, larger early on, or bumped by a resume."""
    count = len(progress)
    kind = int(generator.integers(5))
    raw = generator.standard_normal((3, count))
    if kind == 1:
        raw = generator.standard_t(4, (3, count)) / math.sqrt(2)
    correlation = (
        float(generator.uniform(0.2, 0.8)) if kind == 2 else float(generator.uniform(0, 0.2))
    )
    for place in range(1, count):
        raw[:, place] = (
            correlation * raw[:, place - 1] + math.sqrt(1 - correlation**2) * raw[:, place]
        )
    if kind == 3:
        raw = raw * (1 + 3 * (1 - progress) ** 2)
    shared = float(generator.uniform(0, 0.6))  # A good checkpoint is good by both measures.
    raw[1] = -shared * raw[0] + math.sqrt(1 - shared**2) * raw[1]
    sizes = [
        math.exp(generator.uniform(*np.log(settings.loss_noise))),
        math.exp(generator.uniform(*np.log(settings.bleu_noise))),
    ]
    noise: Floats = raw * np.array([sizes[0], sizes[1], sizes[0]])[:, None]
    if kind == 4:  # Moments that were lost cost a little for a while.
        at = generator.uniform(0.2, 0.85)
        bump = np.where(progress > at, np.exp(-(progress - at) / 0.02), 0.0)
        noise += np.array([0.03, -0.6, 0.03])[:, None] * bump
    return noise
