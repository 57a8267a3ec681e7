"""Every threshold a verdict rests on, in one place, each with its reason."""

from dataclasses import dataclass


@dataclass(frozen=True)
class Threshold:
    """A number that divides one verdict from another."""

    value: float
    unit: str
    reason: str


EVALUATIONS_NEEDED = Threshold(
    5,
    "evaluations in the last third",
    "A line and its bend take three degrees of freedom; fewer leave next to nothing for noise.",
)
MEANINGFUL_LOSS_GAIN = Threshold(
    0.02,
    "nats per token",
    "Two per cent of perplexity: less is smaller than what another seed changes.",
)
MEANINGFUL_BLEU_GAIN = Threshold(
    0.5,
    "BLEU",
    "About the smallest difference that a test set of a few thousand sentences can show.",
)
OVERFITTING_RISE = Threshold(
    0.02,
    "nats per token",
    "The same two per cent of perplexity, lost again after the minimum.",
)
GPU_FULL = Threshold(
    90.0,
    "per cent busy",
    "Evaluations and checkpoints alone cost a healthy run a few per cent.",
)
GPU_PARTIAL = Threshold(
    50.0,
    "per cent busy",
    "Below half, the GPU waits longer than it works.",
)
GPU_DIP = Threshold(
    50.0,
    "per cent busy",
    "A second in which a GPU waits longer than it works is a dip worth a cause.",
)
NETWORK_IS_BOTTLENECK = Threshold(
    0.25,
    "of step time",
    "An infinite network would make every step a third faster or better: 1 / (1 - 0.25).",
)
NETWORK_IS_NOT_BOTTLENECK = Threshold(
    0.15,
    "of step time",
    "An infinite network would save less than a change of precision or batch size usually does.",
)
MODEL_AGREEMENT = Threshold(
    0.25,
    "of step time",
    "Calibration and run differ by clocks and load; beyond a quarter something else is going on.",
)
EXPLAINED_WAIT = Threshold(
    0.5,
    "of the wait",
    "If the bytes take less than half the time that workers wait, they wait for something else.",
)
TRAFFIC_AGREEMENT = Threshold(
    0.10,
    "of theory",
    "Packet headers and resent packets explain a few per cent, not more.",
)
WARM_UP_STEPS = Threshold(
    3,
    "steps after each start",
    "The first steps compile, allocate and fill caches; they say nothing about the others.",
)
WINDOWS_NEEDED = Threshold(
    8,
    "windows",
    "A correlation of fewer points has an interval as wide as the whole range.",
)
WINDOW_TRAINING_SHARE = Threshold(
    0.9,
    "of a window",
    "Windows with an evaluation, a checkpoint or a restart in them measure something else.",
)
LEARNING_RATE_DEVIATION = Threshold(
    1e-3,
    "of the law",
    "Float32 and rounding in a log explain a millionth; a thousandth is another law.",
)
UNEXPLAINED_GAP = Threshold(
    300.0,
    "seconds",
    "Longer than anything a healthy run does without writing a line about it.",
)
SILENCE = Threshold(
    300.0,
    "seconds",
    "A live run writes a step, an evaluation or a monitor sample far more often.",
)


def all_thresholds() -> dict[str, Threshold]:
    """Every threshold by name, for the page and the tests."""
    return {name: value for name, value in globals().items() if isinstance(value, Threshold)}
