"""What a step would take elsewhere: formulas fitted to measurements, before or after a run."""
