"""Noise of learning curves."""

from dragoman.report.evidence.series import Floats


def drifting(noise: Floats, correlation: float) -> Floats:
    """Let every value, along the last axis, take over a part of the one before."""
    for place in range(1, noise.shape[-1]):
        noise[..., place] += correlation * noise[..., place - 1]
    return noise
