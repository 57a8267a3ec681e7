"""What an answer is."""

import math
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np

Confidence = Literal["high", "medium", "low"]
Tone = Literal["good", "caution", "bad", "plain"]


@dataclass(frozen=True)
class Answer:
    """One of the eleven questions, answered from files alone."""

    id: str
    question: str
    verdict: str | float | list[str]
    headline: str  # The verdict as a card shows it.
    tone: Tone  # Whether that is good news.
    answer: str  # One or two plain sentences with the numbers in them.
    evidence: dict[str, Any]  # The numbers themselves, ready for JSON.
    confidence: Confidence
    next_step: str

    def to_json(self) -> dict[str, Any]:
        """The public fields of report.json."""
        names = ("id", "question", "verdict", "answer", "evidence", "confidence", "next_step")
        return {name: plain(getattr(self, name)) for name in names}


def plain(value: Any) -> Any:
    """Turn arrays' numbers into Python's; JSON has no NaN and no infinity."""
    if isinstance(value, dict):
        return {str(key): plain(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [plain(item) for item in value]
    if isinstance(value, np.generic):
        value = value.item()
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    return value
