"""Which language a sentence is in, by py3langid, which ships its model."""

from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING, Literal

from dragoman.errors import UserError

if TYPE_CHECKING:
    from py3langid.langid import LanguageIdentifier

Side = Literal["source", "target"]

# Shorter lines, and those that are mostly names and numbers, say too little.
FEWEST_LETTERS = 25
# That a line is in another language than it should be. Of clean lines so long none in 20,000 is
# taken for another language with this certainty, and one of another language seldom with less.
LEAST_CERTAINTY = 0.7


@dataclass(frozen=True)
class LanguagesFound:
    """What the two sides of a pair are in, if that is not what they should be."""

    is_swapped: bool
    wrong_sides: tuple[Side, ...]


class PairLanguages:
    """Judges pairs of sentences that should be in two given languages."""

    def __init__(self, source: str, target: str) -> None:
        self._expected = [code_of(source), code_of(target)]
        self._identifier = identifier()

    def judge(self, source: str, target: str) -> LanguagesFound:
        """Look at both sides; what says too little counts as right."""
        if min(map(count_letters, (source, target))) < FEWEST_LETTERS:
            return LanguagesFound(is_swapped=False, wrong_sides=())
        found = [self._identifier.classify(line) for line in (source, target)]
        languages = [str(language) for language, _ in found]
        is_wrong = [
            language != expected and certainty >= LEAST_CERTAINTY
            for (language, certainty), expected in zip(found, self._expected, strict=True)
        ]
        # Where one side is surely in the other's language, the other need not be as sure.
        is_swapped = any(is_wrong) and languages == self._expected[::-1]
        sides: tuple[Side, Side] = ("source", "target")
        wrong = [side for side, one in zip(sides, is_wrong, strict=True) if one]
        return LanguagesFound(is_swapped, () if is_swapped else tuple(wrong))


def count_letters(text: str) -> int:
    """Letters of any script."""
    return sum(map(str.isalpha, text))


def knows(language: str) -> bool:
    """Whether a label of the config is a language that can be told from others."""
    return _code(language) in known_languages()


def code_of(language: str) -> str:
    """The two letters of a label such as de, de_DE or de-AT."""
    if not knows(language):
        raise UserError(
            f"the language {language!r} cannot be identified; set corpus.source_language and "
            f"target_language to two of {', '.join(known_languages())}"
        )
    return _code(language)


def _code(language: str) -> str:
    return language.replace("_", "-").split("-")[0].lower()


@cache
def known_languages() -> tuple[str, ...]:
    """All two-letter codes that the model tells apart."""
    return tuple(sorted(identifier().labels))


@cache
def identifier() -> "LanguageIdentifier":
    """The model, loaded once in each process that asks."""
    from py3langid.langid import MODEL_FILE, LanguageIdentifier

    return LanguageIdentifier.from_model_file(MODEL_FILE, norm_probs=True)
