"""The loop, the optimizer, the schedule and the precision."""
