"""Every threshold behind a verdict, in one place, each with its reason."""

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
    "Level, fall, bend and noise need four points; two more show whether they hold.",
)
EVALUATIONS_FOR_CONFIDENCE = Threshold(
    10,
    "evaluations",
    "From here on, nine of ten clear cases get an answer (docs/results.md, Calibration).",
)
UNLIKELY = Threshold(
    0.15,
    "probability",
    "Below it a verdict is given: wrong at most one time in seven, far less on average.",
)
LIKELY = Threshold(
    0.85,
    "probability",
    "The same on the other side; in between, the verdict is unclear.",
)
VERY_LIKELY = Threshold(
    0.95,
    "probability",
    "Beyond it, on either side, confidence is high: wrong at most one time in twenty.",
)
BLEU_CEILING = Threshold(
    99.0,
    "BLEU",
    "The remaining point is a word here and there: a lower loss no longer shows in translations.",
)
MEANINGFUL_LOSS_GAIN = Threshold(
    0.02,
    "nats per token",
    "Two per cent of perplexity: smaller differences are within the variation between seeds.",
)
MEANINGFUL_BLEU_GAIN = Threshold(
    0.5,
    "BLEU",
    "About the smallest difference that a test set of a few thousand sentences can show.",
)
HARDLY_A_TRANSLATION = Threshold(
    1.0,
    "BLEU",
    "Repeating the same words for every sentence scores a few tenths; a useful translation "
    "several points.",
)
OVERFITTING_RISE = Threshold(
    0.02,
    "nats per token",
    "The same two per cent of perplexity, lost after the minimum.",
)
RISE_BEYOND_NOISE = Threshold(
    10.0,
    "times the noise of an evaluation",
    "One in a hundred flat curves seems to rise this far, even if neighbours correlate with 0.8.",
)
STEPS_WITHOUT_NUMBER = Threshold(
    10,
    "steps at the end",
    "A bad batch spoils one step and is skipped; NaN weights spoil every one.",
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
    "A second in which a GPU waits longer than it works is a dip that needs a cause.",
)
LITTLE_ARITHMETIC = Threshold(
    0.1,
    "of the devices' peak",
    "A GPU that is always busy yet does less mostly waits for memory, small kernels or other "
    "workers.",
)
NETWORK_IS_BOTTLENECK = Threshold(
    0.25,
    "of step time",
    "An infinitely fast network would speed up every step by a third or more: 1 / (1 - 0.25).",
)
NETWORK_IS_NOT_BOTTLENECK = Threshold(
    0.15,
    "of step time",
    "An infinitely fast network would save less than a change of precision or batch size "
    "usually does.",
)
SMALL_NETWORK_SHARE = Threshold(
    0.1,
    "of step time",
    "If the network takes less than a tenth of a step, settings with a larger trade-off are not "
    "needed.",
)
CHEAP_GRADIENTS = Threshold(
    0.05,
    "of step time",
    'With sync = "auto", gradients that cost no more are kept: they have no trade-off.',
)
MODEL_AGREEMENT = Threshold(
    0.25,
    "of what was predicted",
    "Calibration and run differ by clock speed and load; beyond a quarter something else is "
    "going on.",
)
EXPLAINED_WAIT = Threshold(
    0.5,
    "of the wait",
    "If sending the bytes takes less than half the wait, workers are waiting for something else.",
)
STRAGGLER_WORTH_NAMING = Threshold(
    0.02,
    "of step time",
    "Waiting for less than a fiftieth of a step does not justify looking at a machine.",
)
WAITING_FOR_DATA = Threshold(
    0.1,
    "of step time",
    "Batches are packed ahead while a step computes: a healthy run hardly ever waits for one.",
)
TRAFFIC_AGREEMENT = Threshold(
    0.10,
    "of theory",
    "Packet headers and retransmissions explain a few per cent, not more.",
)
SAME_LINK = Threshold(
    0.1,
    "of what a link carries",
    "Two short measurements of one link differ by a few per cent.",
)
WARM_UP_STEPS = Threshold(
    3,
    "steps after each start",
    "The first steps compile, allocate and fill caches; they are not representative.",
)
STEADY_STEPS_NEEDED = Threshold(
    10,
    "steps",
    "With fewer steps, a single one dominates the mean.",
)
STEPS_FOR_CONFIDENCE = Threshold(
    100,
    "steps",
    "Then five steps lie beyond the 5th and the 95th percentile.",
)
UNEVEN_STEPS = Threshold(
    2.0,
    "times, from the 5th percentile to the median, or from it to the 95th",
    "Healthy steps vary by a few per cent; if one in twenty takes double or half, something "
    "else is running.",
)
OUTLIER = Threshold(
    10.0,
    "times the median step",
    "A cut link or a stopped machine does this; evaluations and checkpoints are not counted.",
)
SAME_SPEED = Threshold(
    0.02,
    "of step time",
    "Two runs of the same config differ by a per cent or two.",
)
MUCH_ELSEWHERE = Threshold(
    0.1,
    "of the wall time",
    "A tenth of the run justifies advice; less is the normal cost of evaluating and saving.",
)
MUCH_REMOVED = Threshold(
    0.1,
    "of the pairs",
    "Clean corpora lose a few per cent; if a tenth is removed, look at what was caught.",
)
WINDOWS_NEEDED = Threshold(
    8,
    "windows",
    "With fewer points, the interval of a correlation spans almost the whole range.",
)
WINDOW_TRAINING_SHARE = Threshold(
    0.9,
    "of a window",
    "Windows that include an evaluation, a checkpoint or a restart measure something else.",
)
NARROW_CORRELATION = Threshold(
    0.5,
    "between the ends of the interval",
    "A quarter of the whole range from -1 to 1: narrow enough to tell weak from strong.",
)
LEARNING_RATE_DEVIATION = Threshold(
    1e-3,
    "of the schedule",
    "Float32 and rounding in the log explain a millionth; a thousandth means another schedule.",
)
UNEXPLAINED_GAP = Threshold(
    300.0,
    "seconds",
    "Longer than anything a healthy run does without writing a line about it.",
)
UNEXPLAINED_SHARE = Threshold(
    0.1,
    "of the wall time",
    "In a short run, less already matters: a tenth of it changes the answers.",
)
SHORTEST_GAP = Threshold(
    30.0,
    "seconds",
    "Flushing to a slow disk or recompiling takes seconds, without a log line.",
)
CLOCK_STEP_BACK = Threshold(
    1.0,
    "seconds",
    "Time daemons routinely set clocks back by less.",
)
SILENCE = Threshold(
    300.0,
    "seconds",
    "A live run writes a line or a sample far more often; or three of its longest steps, if "
    "longer. Where no process of the only machine holds the run, SHORTEST_GAP is enough.",
)


def all_thresholds() -> dict[str, Threshold]:
    """Every threshold by name, for the page and the tests."""
    return {name: value for name, value in globals().items() if isinstance(value, Threshold)}
