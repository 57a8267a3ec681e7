"""Which synthetic pairs are worth learning from: the filters, each with a name and a count."""

from collections.abc import Sequence
from dataclasses import dataclass

from dragoman.corpus.clean import count_words
from dragoman.corpus.languages import PairLanguages
from dragoman.corpus.suspects import LEAST_WORDS
from dragoman.documents import LINE, item

# In the order they are applied; a pair counts for the first that catches it.
PAIR_FILTERS = {
    "invalid_utf8": "the line is not UTF-8",
    "empty": "a side is empty",
    "loop": "the translation repeats itself",
    "copy": "the line was copied, not translated",
    "length": "one side much longer than the other",
    "language": "a side in another language",
    "score": "the model itself thinks little of it",
}

LONGEST_PHRASE, LONGEST_STRING = 8, 20  # In words and characters, of what may come in a row.
FEWEST_COPIES, FEWEST_CHARACTERS = 3, 12  # Of a loop: how often in a row, and how long in a word.
SHARED_WORDS = 0.8  # Of a translation that is a copy.
WORDS_TO_SPARE = 3  # Added to both lengths: in short sentences a word more or less means nothing.


@dataclass(frozen=True)
class PairLimits:
    """What a pair must keep to."""

    max_length_ratio: float = item("of words, with a few to spare on both sides", minimum=1)
    min_score: float | None = item("of a translation, if there is such a limit")
    languages: tuple[str, ...] = item("of line and translation; none: not looked at", pattern=LINE)


class PairFilter:
    """Judges lines and their translations."""

    def __init__(self, limits: PairLimits) -> None:
        self._limits = limits
        self._languages = PairLanguages(*limits.languages) if limits.languages else None

    def reason(self, line: str, translation: str, score: float) -> str | None:
        """Name the first filter that catches a pair."""
        limits = self._limits
        if not line or not translation:
            return "empty"
        if is_loop(translation) and not is_loop(line):
            return "loop"
        if is_copy(line, translation):
            return "copy"
        shorter, longer = sorted(WORDS_TO_SPARE + count_words(one) for one in (line, translation))
        if longer > limits.max_length_ratio * shorter:
            return "length"
        if self._languages:
            found = self._languages.judge(line, translation)
            if found.is_swapped or found.wrong_sides:
                return "language"
        if limits.min_score is not None and score < limits.min_score:
            return "score"
        return None


def is_loop(text: str) -> bool:
    """Whether a phrase comes three times in a row, a word four times, or a word is made so."""
    words = text.split()
    if _repeats(words, LONGEST_PHRASE, FEWEST_COPIES):
        return True
    # Scripts without blanks make one long word of a sentence.
    long = [word for word in words if len(word) > FEWEST_CHARACTERS]
    return any(_repeats(word, LONGEST_STRING, FEWEST_CHARACTERS) for word in long)


def _repeats(items: Sequence[str], longest: int, fewest: int) -> bool:
    """Whether at least so many items in a row are each the same as the one a period before."""
    for period in range(1, min(longest, len(items) // FEWEST_COPIES) + 1):
        wanted = max(fewest, (FEWEST_COPIES - 1) * period)
        run = 0
        for item_, earlier in zip(items[period:], items, strict=False):
            run = run + 1 if item_ == earlier else 0
            if run >= wanted:
                return True
    return False


def is_copy(line: str, translation: str) -> bool:
    """Whether nearly all words of a translation stand in the line; few words may well do."""
    words = [word for word in translation.casefold().split() if any(map(str.isalpha, word))]
    if len(words) < LEAST_WORDS:
        return False
    known = set(line.casefold().split())
    return sum(word in known for word in words) >= SHARED_WORDS * len(words)
