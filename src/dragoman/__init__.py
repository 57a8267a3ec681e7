"""Trains translation models in lockstep across machines, and tells the truth about the run."""

__version__ = "0.1.0"
