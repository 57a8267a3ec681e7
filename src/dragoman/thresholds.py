"""Every threshold a verdict rests on, in one place, each with its reason."""

from dataclasses import dataclass


@dataclass(frozen=True)
class Threshold:
    """A number that divides one verdict from another."""

    value: float
    unit: str
    reason: str


EVALUATIONS_NEEDED = Threshold(
    6,
    "evaluations",
    "A level, a fall, its bend and the noise take four; two more show whether these hold.",
)
EVALUATIONS_FOR_CONFIDENCE = Threshold(
    10,
    "evaluations",
    "From here on nine of ten plain cases get an answer (docs/results.md, Calibration).",
)
UNLIKELY = Threshold(
    0.15,
    "probability",
    "Below it a verdict is given: wrong once in seven times at the worst, far less on average.",
)
LIKELY = Threshold(
    0.85,
    "probability",
    "The same on the other side; in between, the verdict is unclear.",
)
VERY_LIKELY = Threshold(
    0.95,
    "probability",
    "Beyond it, on either side, the confidence is high: wrong once in twenty times at the worst.",
)
BLEU_CEILING = Threshold(
    99.0,
    "BLEU",
    "What is left to 100 is a word here and there: a lower loss no longer shows in translations.",
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
HARDLY_A_TRANSLATION = Threshold(
    1.0,
    "BLEU",
    "The same words for every sentence reach some tenths; what helps a reader has several.",
)
OVERFITTING_RISE = Threshold(
    0.02,
    "nats per token",
    "The same two per cent of perplexity, lost again after the minimum.",
)
RISE_BEYOND_NOISE = Threshold(
    10.0,
    "times the noise of an evaluation",
    "Of flat curves, even if neighbours correlate with 0.8, one in a hundred seems to rise so far.",
)
STEPS_WITHOUT_NUMBER = Threshold(
    10,
    "steps at the end",
    "A bad batch spoils one step and is skipped; weights that are no numbers spoil every one.",
)
RATE_HAS_RUN_DOWN = Threshold(
    0.1,
    "of the peak",
    "Near its end, what the loss does is mostly the fall of the learning rate itself.",
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
LITTLE_ARITHMETIC = Threshold(
    0.1,
    "of the devices' peak",
    "A GPU that is always busy yet does less mostly waits for memory, small kernels or others.",
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
SMALL_NETWORK_SHARE = Threshold(
    0.1,
    "of step time",
    "Sync settings that wait for less than a tenth of a step need no others that give up more.",
)
CHEAP_GRADIENTS = Threshold(
    0.05,
    "of step time",
    'With sync = "auto" gradients that cost no more are kept: they give nothing up.',
)
MODEL_AGREEMENT = Threshold(
    0.25,
    "of what was predicted",
    "Calibration and run differ by clocks and load; beyond a quarter something else is going on.",
)
EXPLAINED_WAIT = Threshold(
    0.5,
    "of the wait",
    "If the bytes take less than half the time that workers wait, they wait for something else.",
)
STRAGGLER_WORTH_NAMING = Threshold(
    0.02,
    "of step time",
    "Waiting less than a fiftieth of a step is not worth looking at a machine.",
)
WAITING_FOR_DATA = Threshold(
    0.1,
    "of step time",
    "Batches are made ahead while a step computes: a healthy run waits for next to none.",
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
STEADY_STEPS_NEEDED = Threshold(
    10,
    "steps",
    "A mean of fewer is at the mercy of a single step.",
)
STEPS_FOR_CONFIDENCE = Threshold(
    100,
    "steps",
    "The 5th and the 95th percentile then have five steps beyond them.",
)
UNEVEN_STEPS = Threshold(
    2.0,
    "times, from the 5th percentile to the median, or from it to the 95th",
    "A healthy step varies by some per cent; a twentieth at double or half is someone else's load.",
)
SAME_SPEED = Threshold(
    0.02,
    "of step time",
    "Two runs of the same config differ by a per cent or two.",
)
MUCH_ELSEWHERE = Threshold(
    0.1,
    "of the wall time",
    "A tenth of the run is worth some advice; less is the price of evaluating and saving.",
)
MUCH_REMOVED = Threshold(
    0.1,
    "of the pairs",
    "Clean corpora lose a few per cent; a tenth is worth a look at what was caught.",
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
NARROW_CORRELATION = Threshold(
    0.5,
    "between the ends of the interval",
    "A quarter of the whole range from -1 to 1: narrow enough to tell weak from strong.",
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
UNEXPLAINED_SHARE = Threshold(
    0.1,
    "of the wall time",
    "In a short run less is much already: a tenth of it changes what the answers say.",
)
SHORTEST_GAP = Threshold(
    30.0,
    "seconds",
    "Flushing to a slow disk or compiling anew takes seconds, and no line tells of it.",
)
CLOCK_STEP_BACK = Threshold(
    1.0,
    "seconds",
    "Time daemons set a clock back by less in silence.",
)
SILENCE = Threshold(
    300.0,
    "seconds",
    "A live run writes a line or a sample far more often; three of its longest steps, if longer.",
)


def all_thresholds() -> dict[str, Threshold]:
    """Every threshold by name, for the page and the tests."""
    return {name: value for name, value in globals().items() if isinstance(value, Threshold)}
