"""Predicted step times and learning curves, from measurements before, during or after a run."""
