"""Which way to meet to choose, and whether one worker alone would be faster."""

from collections.abc import Sequence

from dragoman.prediction.questions import USUAL_LOCAL_STEPS
from dragoman.prediction.step_model import Prediction, Scenario
from dragoman.thresholds import SAME_SPEED, SMALL_NETWORK_SHARE

# In order of what they give up: nothing, bits of the gradients, meeting every step.
WAYS = (
    Scenario(compression="none", local_steps=1, local_fragments=1),
    Scenario(compression="bf16", local_steps=1, local_fragments=1),
    Scenario(compression="bf16", local_steps=USUAL_LOCAL_STEPS, local_fragments=1),
)


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
