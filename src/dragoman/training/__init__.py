"""The training loop, the kinds of steps, and how a run begins and ends."""
