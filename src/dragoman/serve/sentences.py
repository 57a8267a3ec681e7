"""Text -> sentences and what is between them -> text again."""

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass

import sentencex

# Characters. The splitter looks at every quotation mark from every other: hostile text has many.
LONGEST_STRETCH = 5_000
# Good places to cut a sentence that is too long, best first.
_CUTS = (re.compile(r"(?<=[;:,\u2014\u3001\uff0c])\s*"), re.compile(r"\s+"))


@dataclass(frozen=True)
class Kept:
    """What goes out as it came in: blanks, line ends, rules, tags."""

    text: str


@dataclass(frozen=True)
class Sentence:
    """What is translated."""

    text: str


@dataclass(frozen=True)
class Span:
    """Words of a sentence with tags around them."""

    opening: str
    text: str
    closing: str


@dataclass(frozen=True)
class Marked:
    """A sentence with tags inside: translated whole if its spans are found again, else in parts."""

    whole: str
    spans: tuple[Span, ...]
    parts: tuple[Kept | Sentence, ...]


Part = Kept | Sentence | Marked


@dataclass(frozen=True)
class Splitter:
    """How a model wants its text: in sentences of its language that are not too long."""

    language: str
    fits: Callable[[str], bool]

    def split_text(self, text: str) -> list[Part]:
        """Take text apart; a line is a paragraph."""
        parts: list[Part] = []
        for line in text.splitlines(keepends=True):
            parts += self.split_paragraph(line)
        return parts

    def split_paragraph(self, text: str) -> Iterator[Kept | Sentence]:
        """The sentences of a paragraph, and the blanks around them."""
        for start, stop in self.bounds(text):
            yield from self.split_sentence(text[start:stop])

    def bounds(self, text: str) -> Iterator[tuple[int, int]]:
        """Where the sentences of a paragraph begin and end, the blanks after them included."""
        body = text.rstrip()
        lead = len(body) - len(body.lstrip())
        if lead:
            yield 0, lead
        place = lead
        while place < len(body):
            stretch = _first_stretch(body, place)
            for sentence in sentencex.segment(base_language(self.language), stretch):
                yield place, place + len(sentence)
                place += len(sentence)
        assert place == len(body), "the splitter keeps every character of a line"
        if place < len(text):
            yield place, len(text)

    def split_sentence(self, text: str) -> Iterator[Kept | Sentence]:
        """One sentence, or the pieces of one that is too long; and the blanks around them."""
        body = text.strip()
        if not any(character.isalnum() for character in body):
            yield Kept(text)
            return
        before = text.index(body)
        if before:
            yield Kept(text[:before])
        if self.fits(body) or len(body) < 2:
            yield Sentence(body)
        else:
            place = _cut(body)
            yield from self.split_sentence(body[:place])
            yield from self.split_sentence(body[place:])
        if before + len(body) < len(text):
            yield Kept(text[before + len(body) :])


def _first_stretch(text: str, start: int) -> str:
    """As much text as the splitter is given at a time, up to the end of a word if there is one."""
    stop = start + LONGEST_STRETCH
    if stop < len(text):
        stop = text.rfind(" ", start + LONGEST_STRETCH // 2, stop) + 1 or stop
    return text[start:stop]


def base_language(code: str) -> str:
    """The language of a code such as pt-BR."""
    return re.split("[-_]", code)[0].lower()


def _cut(text: str) -> int:
    """The best place to cut near the middle: after a comma, between words, or anywhere."""
    quarter, middle = len(text) // 4, len(text) // 2
    for pattern in _CUTS:
        places = [
            found.end()
            for found in pattern.finditer(text, quarter, len(text) - quarter)
            if quarter < found.end() < len(text) - quarter
        ]
        if places:
            return min(places, key=lambda place: abs(place - middle))
    return middle


def wanted(parts: Sequence[Part]) -> Iterator[str]:
    """Every text that has to be translated to put the parts together again."""
    for part in parts:
        if isinstance(part, Sentence):
            yield part.text
        elif isinstance(part, Marked):
            yield part.whole
            yield from (span.text for span in part.spans)
            yield from wanted(part.parts)


def join(
    parts: Sequence[Part], translations: Mapping[str, str], escape: Callable[[str], str] = str
) -> str:
    """Put the translations in the place of their sentences."""
    joined = []
    for part in parts:
        if isinstance(part, Kept):
            joined.append(part.text)
        elif isinstance(part, Sentence):
            joined.append(escape(translations[part.text]))
        else:
            marked = _mark(part, translations, escape)
            joined.append(join(part.parts, translations, escape) if marked is None else marked)
    return "".join(joined)


def _mark(
    sentence: Marked, translations: Mapping[str, str], escape: Callable[[str], str]
) -> str | None:
    """The whole translation with its spans marked, if each of them is found in it just once."""
    whole = translations[sentence.whole]
    found: list[tuple[int, int, Span]] = []
    for span in sentence.spans:
        words = translations[span.text].strip()
        if not span.text.endswith((".", "!", "?")):
            words = words.rstrip(".!?")  # A model likes to end what it takes for a sentence.
        places = list(re.finditer(rf"(?<!\w){re.escape(words)}(?!\w)", whole, re.IGNORECASE))
        if not words or len(places) != 1:
            return None
        found.append((*places[0].span(), span))
    found.sort(key=lambda one: one[0])
    marked, place = [], 0
    for start, stop, span in found:
        if start < place:
            return None
        marked += [escape(whole[place:start]), span.opening, escape(whole[start:stop])]
        marked.append(span.closing)
        place = stop
    return "".join([*marked, escape(whole[place:])])
