"""What 50% more steps would bring, in words."""

from dragoman.prediction.outlook import MEANINGFUL, Measure
from dragoman.report.findings.convergence import Convergence, Gain
from dragoman.wording import in_percent, plural


def how_likely(found: Convergence) -> str:
    """How likely a longer run is to be worth it."""
    on_schedule = " on a schedule of that length" if found.rate == "has run down" else ""
    worth = " or ".join(_worth(measure) for measure in found.gains)
    return (
        f"The probability that 50% more steps{on_schedule} would gain {worth} is "
        f"{in_percent(found.probability)}."
    )


def what_it_rests_on(found: Convergence) -> tuple[str, ...]:
    """What is expected, and what that rests on."""
    gains = found.gains
    if not gains:
        return ()
    expected = " and ".join(_gain_words(*item) for item in gains.items())
    noise = " and ".join(_noise_words(*item) for item in gains.items())
    return (
        f"Expected from 50% more steps: {expected}; 90% intervals in brackets.",
        f"Based on {plural(found.evaluations, 'evaluation')} (noise of about {noise} each) and "
        "on a family of learning curves, weighted by how well each predicted them.",
    )


def _worth(measure: Measure) -> str:
    return f"{MEANINGFUL[measure]:g} {'nats' if measure == 'loss' else measure}"


def _gain_words(measure: Measure, gain: Gain) -> str:
    if measure == "BLEU":
        return f"{gain.expected:+z.2f} BLEU ({gain.low:+z.2f} to {gain.high:+z.2f})"
    return f"{-gain.expected:+z.3f} nats of eval loss ({-gain.high:+z.3f} to {-gain.low:+z.3f})"


def _noise_words(measure: Measure, gain: Gain) -> str:
    return f"{gain.noise:.2f} BLEU" if measure == "BLEU" else f"{gain.noise:.3f} nats"
