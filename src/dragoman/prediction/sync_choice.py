"""Which sync settings to choose, and whether a single worker would be faster."""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

from dragoman.config import Compression, DistributedSettings
from dragoman.prediction.step_model import MeasuredRun, Prediction, Scenario, predict
from dragoman.thresholds import CHEAP_GRADIENTS, SAME_SPEED, SMALL_NETWORK_SHARE
from dragoman.wording import in_bits_per_second, in_percent, in_time

# In order of what they give up: nothing, bits of the gradients.
GRADIENTS = (
    Scenario(compression="none", local_steps=1, local_fragments=1),
    Scenario(compression="bf16", local_steps=1, local_fragments=1),
)
# Short rounds keep workers together; a few bits more are worth less than that. Long ones grow by a
# quarter at most, so that little of a link is left unused.
ROUNDS = (
    *(4, 8, 16, 20, 24, 28, 32, 40, 48, 56, 64, 72, 80, 96, 112, 128),
    *(144, 160, 192, 224, 256, 288, 320, 384, 448, 512),
)
# From the most to the fewest; 2 bits only where rounds would else be longer than usual.
BITS: tuple[Compression, ...] = ("int8", "int4", "int2")
# Of the time that a link may be busy: steps and links are not always as fast as when measured.
BUSY = 0.85
# Rounds shorter than this only where their outer steps take little of the computing.
USUAL_ROUND, SMALL_OUTER_SHARE = 16, 0.02
# Small fragments are home sooner, and what is mixed in is less stale.
FRAGMENTS, MOST_FRAGMENTS = 4, 24


@dataclass(frozen=True)
class SyncChoice:
    """How workers are to synchronize, and why."""

    way: Scenario
    reason: str

    def apply_to(self, settings: DistributedSettings) -> DistributedSettings:
        """The settings that say so."""
        way = self.way
        assert way.compression is not None
        if way.local_steps is None or way.local_steps == 1:
            return replace(settings, sync="gradients", compression=way.compression)
        assert way.local_fragments is not None
        return replace(
            settings,
            sync="local",
            compression=way.compression,
            local_steps=way.local_steps,
            local_fragments=way.local_fragments,
            local_delay=way.local_delay,
        )


def choose_sync(run: MeasuredRun) -> SyncChoice:
    """Gradients where they cost little; else local steps as the link can carry them."""
    plain, half = (predict(run, way) for way in GRADIENTS)
    if run.workers == 1:
        return SyncChoice(GRADIENTS[0], "there is only one worker")
    if run.machines == 1:
        return SyncChoice(GRADIENTS[0], "all workers are on one machine: no network is used")
    costs = f"gradients would spend {in_percent(plain.network_share)} of a step on the network"
    if plain.network_share <= CHEAP_GRADIENTS.value:
        return SyncChoice(GRADIENTS[0], costs)
    costs += f", in bf16 {in_percent(half.network_share)}"
    if half.network_share <= CHEAP_GRADIENTS.value:
        return SyncChoice(GRADIENTS[1], costs)
    way = choose_local_steps(run)
    own = way.apply_to(run)
    link = in_bits_per_second(run.bytes_per_second)
    verb = "hide" if own.hidden_seconds == own.exchange_seconds else "cannot hide"
    return SyncChoice(
        way,
        f"{costs}; {way.compression} differences take {in_time(own.exchange_seconds)} at {link}, "
        f"which {way.local_steps} steps of {in_time(own.seconds_alone)} {verb}",
    )


def in_words(way: Scenario) -> str:
    """How workers synchronize, as a person would say it."""
    packed = "" if way.compression == "none" else f"{way.compression} "
    if way.local_steps == 1:
        return f"{packed}gradients"
    words = f"{way.local_steps} {packed}local steps"
    if way.local_fragments and way.local_fragments > 1:
        words += f" in {way.local_fragments} fragments"
    return words if way.local_delay is None else f"{words}, delay {way.local_delay}"


def choose_local_steps(run: MeasuredRun) -> Scenario:
    """The shortest rounds, and in these the most bits, that leave the link some rest."""
    for steps in ROUNDS:
        for compression in BITS if steps >= USUAL_ROUND else BITS[:-1]:
            way = _local_steps(run, steps, compression)
            own = way.apply_to(run)
            computing = steps * own.seconds_alone
            is_cheap = own.outer_seconds <= SMALL_OUTER_SHARE * computing
            is_hidden = (
                own.link_seconds <= BUSY * computing and own.hidden_seconds == own.exchange_seconds
            )
            if is_hidden and (is_cheap or steps >= USUAL_ROUND):
                return way
    return _local_steps(run, ROUNDS[-1], BITS[-1])


def _local_steps(run: MeasuredRun, steps: int, compression: Compression) -> Scenario:
    # In long rounds one sets out at every other step, if that does not make too many.
    fragments = FRAGMENTS if steps <= USUAL_ROUND else min(steps // 2, MOST_FRAGMENTS)
    way = Scenario(compression=compression, local_steps=steps, local_fragments=fragments)
    own = way.apply_to(run)
    # Twice what a fragment needs: it may find another one on the way.
    travel = math.ceil(2 * own.exchange_seconds / fragments / own.seconds_alone)
    return replace(way, local_delay=min(max(1, travel), steps - 1))


def choose_way(ways: Sequence[Prediction], alone: Prediction) -> Prediction:
    """The first on which the network takes little and that beats one worker; else the fastest."""
    for one in ways:
        is_small = one.network_share <= SMALL_NETWORK_SHARE.value
        if is_small and not is_slower(one.seconds_step, alone.seconds_step):
            return one
    return min(ways, key=lambda one: one.seconds_step)


def is_slower(seconds: float, others: float) -> bool:
    """Whether a step is slower than another by more than two runs of the same config differ."""
    return seconds * (1 - SAME_SPEED.value) > others
