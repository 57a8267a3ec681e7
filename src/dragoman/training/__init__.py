"""The loop, the ways to make a step, and the life of a run from its opening to its end."""
