"""The training loop, the kinds of steps, and the life of a run from start to end."""
