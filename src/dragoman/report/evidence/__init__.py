"""Run folder -> evidence: reads files only, and says what is missing or damaged."""

from dragoman.report.evidence.run_evidence import Evidence, load_evidence

__all__ = ["Evidence", "load_evidence"]
