"""The findings of an inspection that matter: how often, how certain, and examples."""

import json
import math
from dataclasses import dataclass
from typing import Literal

from dragoman.config import CleaningSettings
from dragoman.documents import item

EXAMPLES = 10


@dataclass(frozen=True)
class Kind:
    """One thing that can be wrong: what it is, from which rate on it is told, what drops it."""

    title: str
    meaning: str
    least_rate: float  # Of pairs; a few odd lines stand in every clean corpus.
    setting: str = ""  # Empty if prepare drops such pairs in any case.
    value: bool | str = True  # Of the setting.
    better: str = ""  # Than dropping pairs.

    @property
    def remedy(self) -> str:
        """The line of a config that drops such pairs."""
        return f"{self.setting} = {json.dumps(self.value)}" if self.setting else ""

    def is_dropped(self, cleaning: CleaningSettings) -> bool:
        """Whether the config has that line, or none is needed."""
        if not self.setting:
            return True
        return bool(getattr(cleaning, self.setting.removeprefix("cleaning.")) == self.value)


KINDS = {
    "invalid_utf8": Kind(
        "Not UTF-8",
        "Such a line cannot be read or checked for anything else, and stops prepare unless it is "
        "skipped. If there are many, the file has another encoding: convert it.",
        0.0,
        "cleaning.invalid_utf8",
        "skip",
        "convert the file",
    ),
    "unusable": Kind(
        "Unusable lines",
        "A side is empty, has control characters or too many words, or is many times as long as "
        "the other. Prepare drops such pairs; if there are many, look for the reason.",
        0.05,
    ),
    "leaked": Kind(
        "Test or validation sentences in the training text",
        "Unless they are dropped, scores on these sets will be too high: the model has seen the "
        "answers.",
        0.0,
        "cleaning.drop_leaked",
    ),
    "swapped_sides": Kind(
        "Source and target swapped",
        "The source is in the target's language and the target in the source's.",
        0.001,
        "cleaning.drop_swapped_sides",
    ),
    "wrong_language": Kind(
        "Wrong language",
        "A side long enough to be identified is clearly in another language.",
        0.005,
        "cleaning.drop_wrong_language",
    ),
    "misaligned": Kind(
        "Misaligned lines",
        "Over whole stretches, the lengths fit a neighbouring line far better.",
        0.002,
        "cleaning.drop_misaligned",
    ),
    "copied": Kind(
        "Copied, not translated",
        "Both sides are the same sentence of several words.",
        0.002,
        "cleaning.drop_identical",
    ),
    "near_duplicate": Kind(
        "Near duplicates",
        "Pairs that differ from an earlier one only in case, punctuation or spaces.",
        0.01,
        "cleaning.drop_near_duplicates",
    ),
    "mojibake": Kind(
        "Encoding damage",
        "Text that was decoded with the wrong encoding.",
        0.0005,
        "cleaning.drop_mojibake",
    ),
    "markup": Kind(
        "HTML and boilerplate",
        "Tags, entities, template markup, or website boilerplate.",
        0.001,
        "cleaning.drop_markup",
    ),
    "numbers_differ": Kind(
        "Different numbers",
        "Each side has a number of several digits that the other lacks.",
        0.01,
        "cleaning.drop_differing_numbers",
    ),
}


@dataclass(frozen=True)
class Example:
    """A pair of lines, and where they stand."""

    file: str = item("of the source side")
    line: int = item("its number, from 1")
    source: str = item("as it is read")
    target: str = item("likewise")


@dataclass(frozen=True)
class Finding:
    """Something that is wrong with a part of the text."""

    id: str = item("what")
    side: str = item("source, target or both")
    count: int = item("pairs, extrapolated if sampled")
    rate: float = item("of all pairs")
    interval: tuple[float, float] | None = item("95%, of the rate; null if every pair was seen")
    examples: tuple[Example, ...] = item("up to ten")
    setting: str = item(
        "that drops such pairs if true, or with the value that it has to have; empty if none has to"
    )


@dataclass(frozen=True)
class SideSize:
    """How much text a side is."""

    words: int
    characters: int
    lengths: tuple[int, ...]  # Lines by words, WORDS_PER_BAR to a bar.
    scripts: dict[str, float]  # Shares of letters.


@dataclass(frozen=True)
class SetOverlap:
    """How many sentences of an evaluation set stand in the training text."""

    name: str
    sentences: int  # Long enough to tell.
    found: int


# In all texts, in those without a tag, or in none.
LanguagesChecked = Literal["everywhere", "untagged", "nowhere"]
BY_LANGUAGE = ("swapped_sides", "wrong_language")


@dataclass(frozen=True)
class Inspection:
    """All that is known about the training text of a config."""

    pairs: int
    sampled: int  # Pairs whose scripts were looked at, and languages where these are known.
    languages: tuple[str, str]
    languages_checked: LanguagesChecked
    languages_unchecked: str  # Why not everywhere; empty if everywhere.
    sides: tuple[SideSize, SideSize]
    overlaps: tuple[SetOverlap, ...]
    findings: tuple[Finding, ...]


def wilson(hits: int, tried: int) -> tuple[float, float]:
    """The 95% interval of a rate."""
    if not tried:
        return 0.0, 1.0
    z, rate = 1.96, hits / tried
    middle = rate + z * z / (2 * tried)
    spread = z * math.sqrt(rate * (1 - rate) / tried + z * z / (4 * tried * tried))
    scale = 1 + z * z / tried
    return max(0.0, (middle - spread) / scale), min(1.0, (middle + spread) / scale)
