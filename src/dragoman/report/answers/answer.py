"""What an answer is."""

import math
from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import Any, Generic, Literal, TypeVar

import numpy as np

Confidence = Literal["high", "medium", "low"]
Tone = Literal["good", "caution", "bad", "plain"]
Verdict = str | float | list[str]
Case = TypeVar("Case")
Value = TypeVar("Value")


@dataclass(frozen=True)
class Answer:
    """One question of the report, answered from files alone."""

    id: str
    question: str
    verdict: Verdict
    headline: str  # The verdict as a card shows it.
    answer: str  # One or two plain sentences with the numbers in them.
    evidence: dict[str, Any]  # The numbers themselves, ready for JSON.
    confidence: Confidence
    next_step: str
    tone: Tone = "plain"  # Whether the verdict is good news.
    note: str = ""  # The fact beside the verdict on the card.
    details: tuple[str, ...] = ()  # What else supports it, a sentence each.

    def to_json(self) -> dict[str, Any]:
        """The public fields of report.json."""
        names = ("id", "question", "verdict", "answer", "evidence", "confidence", "next_step")
        values = {name: plain(getattr(self, name)) for name in names}
        if self.details:
            values["evidence"]["details"] = list(self.details)
        return values


@dataclass(frozen=True)
class Row(Generic[Case]):
    """All that one reason stands for; what depends on the case is a function of it."""

    verdict: Verdict | Callable[[Case], Verdict]
    confidence: Confidence | Callable[[Case], Confidence]
    words: str | Callable[[Case], str]
    advice: str | Callable[[Case], str]
    tone: Tone | Callable[[Case], Tone] = "plain"
    note: str | Callable[[Case], str] = ""
    headline: str | Callable[[Case], str] = ""  # The verdict, if none is given.

    def answer(
        self,
        identity: str,
        question: str,
        evidence: dict[str, Any],
        case: Case,
        details: tuple[str, ...] = (),
    ) -> Answer:
        """The answer that this row gives in a case."""
        verdict = self.verdict(case) if callable(self.verdict) else self.verdict
        return Answer(
            id=identity,
            question=question,
            verdict=verdict,
            headline=in_case(self.headline, case) or str(verdict).capitalize(),
            tone=in_case(self.tone, case),
            note=in_case(self.note, case),
            answer=in_case(self.words, case),
            evidence=evidence,
            confidence=in_case(self.confidence, case),
            next_step=in_case(self.advice, case),
            details=details,
        )


def in_case(value: Value | Callable[[Case], Value], case: Case) -> Value:
    """What stands in a row, or what it comes to in a case."""
    return value(case) if callable(value) else value


SEE_WHAT_IS_MISSING = "See what is missing or odd, at the top of the report."
HISTORY_IS_LOST = "The run's history is lost, including all evaluations."


def unknown(
    identity: str,
    question: str,
    words: str,
    next_step: str = SEE_WHAT_IS_MISSING,
) -> Answer:
    """The answer where the evidence carries none."""
    return Answer(
        id=identity,
        question=question,
        verdict="unclear",
        headline="Unclear",
        answer=words,
        evidence={},
        confidence="low",
        next_step=next_step,
    )


def facts_of(found: Any) -> dict[str, Any]:
    """A finding as evidence: all its numbers, under the names that the code has for them."""
    return {name: value for name, value in asdict(found).items() if name != "verdict"}


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
