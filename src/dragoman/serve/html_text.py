"""HTML -> its sentences with the tags around and inside them."""

import html
import re
import string
from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from dragoman.serve.sentences import Kept, Marked, Part, Sentence, Span, Splitter

# Tags that may stand inside a sentence; all others end it.
_INLINE = frozenset(
    ["a", "abbr", "b", "bdi", "bdo", "big", "cite", "data", "del", "dfn", "em", "font", "i"]
    + ["ins", "label", "mark", "q", "s", "small", "span", "strike", "strong", "sub", "sup"]
    + ["time", "tt", "u", "wbr"]
)
_RAW_TEXT = frozenset(["script", "style", "textarea", "title"])  # No tags inside but their end.
_NEVER_TRANSLATED = frozenset(
    ["code", "kbd", "math", "pre", "samp", "script", "style", "svg", "textarea", "var"]
)
_VOID = frozenset(
    ["area", "base", "br", "col", "embed", "hr", "img", "input", "link", "meta", "param"]
    + ["source", "track", "wbr"]
)
_SMALL_LETTERS = {ord(letter): letter.lower() for letter in string.ascii_uppercase}
_BLANKS = str.maketrans(dict.fromkeys("\t\r\n\f\v\x1c\x1d\x1e\x85\u2028\u2029", " "))
_LONGEST_LOOK = 1_000  # Characters of a tag in which a wish not to be translated is looked for.
_NAME = re.compile(r"</?([a-zA-Z][^\s/>]*)")
_MARK = re.compile("[>\"']")
_NO_TRANSLATION = re.compile(
    r"""\stranslate\s*=\s*["']?no\b|\sclass\s*=\s*["']?[^"'>]*\bnotranslate\b""", re.IGNORECASE
)


@dataclass(frozen=True)
class _Token:
    """A tag, a comment or a run of text, as it is written."""

    raw: str
    name: str  # Of a tag, in small letters; "" for text, "!" for comments and declarations.

    @property
    def is_closing(self) -> bool:
        return self.raw.startswith("</")


def split_html(splitter: Splitter, text: str) -> list[Part]:
    """Take HTML apart: the tags are kept, the text between them is translated."""
    parts: list[Part] = []
    run: list[_Token] = []
    for token in _without_untranslated(_scan(text)):
        if token.name in ("", *_INLINE):
            run.append(token)
            continue
        parts += _split_run(splitter, run)
        run = []
        parts.append(Kept(token.raw))
    return parts + _split_run(splitter, run)


def escape(text: str) -> str:
    """Text as HTML writes it."""
    return html.escape(text, quote=False)


def _scan(text: str) -> Iterator[_Token]:
    """Cut into tags and text. One look at each character: requests may be hostile."""
    small = text.translate(_SMALL_LETTERS)
    start = place = 0
    while (place := text.find("<", place)) >= 0:
        end = _end_of_tag(text, place)
        if end is None:
            place += 1
            continue
        if end < 0:
            break  # It never ends: the rest is text.
        if start < place:
            yield _Token(text[start:place], "")
        raw = text[place:end]
        named = _NAME.match(raw)
        name = named[1].lower() if named else "!"
        yield _Token(raw, name)
        start = place = end
        if name in _RAW_TEXT and not raw.startswith("</"):
            place = small.find(f"</{name}", end)
            if place < 0:
                break
    if start < len(text):
        yield _Token(text[start:], "")


def _end_of_tag(text: str, start: int) -> int | None:
    """Where a tag ends: None if this is none, -1 if it never ends."""
    if text.startswith("<!--", start):
        return _after(text, "-->", start + 4)
    following = text[start + 1 : start + 3].lstrip("/")[:1]
    if not (following.isascii() and following.isalpha()) and following not in ("!", "?"):
        return None
    place = start + 1
    while True:
        mark = _MARK.search(text, place)
        if mark is None:
            return -1
        if mark[0] == ">":
            return mark.end()
        place = _after(text, mark[0], mark.end())
        if place < 0:
            return -1


def _after(text: str, mark: str, start: int) -> int:
    place = text.find(mark, start)
    return -1 if place < 0 else place + len(mark)


def _without_untranslated(tokens: Iterator[_Token]) -> Iterator[_Token]:
    """Make one comment-like token of every element that must stay as it is."""
    kept: list[str] = []
    name, depth = "", 0
    for token in tokens:
        if not depth:
            is_kept = token.name in _NEVER_TRANSLATED or _NO_TRANSLATION.search(
                token.raw, 0, _LONGEST_LOOK
            )
            is_opening = token.name not in ("", "!", *_VOID) and not token.is_closing
            if is_kept and is_opening and not token.raw.endswith("/>"):
                name, depth, kept = token.name, 1, [token.raw]
            else:
                yield token
            continue
        kept.append(token.raw)
        if token.name == name:
            depth += -1 if token.is_closing else 1
            if not depth:
                yield _Token("".join(kept), "!")
    if depth:
        yield _Token("".join(kept), "!")


def _split_run(splitter: Splitter, run: Sequence[_Token]) -> list[Part]:
    """Text with tags inside sentences: cut into sentences as if the tags were not there."""
    pieces: list[str] = []
    tags: deque[_PlacedTag] = deque()
    length = 0
    for token in run:
        if token.name:
            tags.append(_PlacedTag(length, token))
            continue
        pieces.append(html.unescape(token.raw))
        length += len(pieces[-1])
    text = "".join(pieces)
    parts: list[Part] = []
    for start, stop in splitter.bounds(text.translate(_BLANKS)):  # A line end ends nothing here.
        body = text[start:stop].strip()
        first = start + text[start:stop].index(body)
        last = first + len(body)
        before = _take(tags, first)
        touching = _take(tags, last, with_closing=True)
        around = _sort_out(touching, first, last)
        parts += _interleave(text, start, first, [*before, *around.before])
        if around.inside:
            parts += _split_marked(splitter, text, first, last, around.inside)
        else:
            parts += _escaped(splitter.split_sentence(body))
        ending = _take(tags, stop)
        parts += _interleave(text, last, stop, [*around.after, *ending])
    return parts + [Kept(tag.token.raw) for tag in tags]


@dataclass(frozen=True)
class _PlacedTag:
    """A tag, and how much text stands before it."""

    place: int
    token: _Token


@dataclass(frozen=True)
class _TagsOfSentence:
    before: list[_PlacedTag]
    inside: list[_PlacedTag]
    after: list[_PlacedTag]


def _take(tags: deque[_PlacedTag], place: int, *, with_closing: bool = False) -> list[_PlacedTag]:
    """Take those before a place; those that close something just there too, if asked to."""
    taken = []
    while tags and (
        tags[0].place < place
        or (with_closing and tags[0].place == place and tags[0].token.is_closing)
    ):
        taken.append(tags.popleft())
    return taken


def _sort_out(tags: Sequence[_PlacedTag], first: int, last: int) -> _TagsOfSentence:
    """Leave outside what is around the whole sentence, or has its other end elsewhere."""
    partner: dict[int, int] = {}
    opened: list[int] = []
    for index, tag in enumerate(tags):
        if not tag.token.is_closing:
            opened.append(index)
        elif opened and tags[opened[-1]].token.name == tag.token.name:
            partner[index] = opened.pop()
            partner[partner[index]] = index

    def is_outside(index: int) -> bool:
        ends = {tags[index].place, tags[partner.get(index, index)].place}
        return ends <= {first, last} and (index not in partner or len(ends) == 2 or first == last)

    start, stop = 0, len(tags)
    while start < stop and tags[start].place == first and is_outside(start):
        start += 1
    while start < stop and tags[stop - 1].place == last and is_outside(stop - 1):
        stop -= 1
    return _TagsOfSentence(list(tags[:start]), list(tags[start:stop]), list(tags[stop:]))


def _interleave(text: str, start: int, stop: int, tags: Sequence[_PlacedTag]) -> Iterator[Kept]:
    """Blanks from start to stop with the tags among them; tags from before start come first."""
    for tag in tags:
        if start < tag.place:
            yield Kept(escape(text[start : tag.place]))
            start = tag.place
        yield Kept(tag.token.raw)
    if start < stop:
        yield Kept(escape(text[start:stop]))


def _split_marked(
    splitter: Splitter, text: str, first: int, last: int, tags: Sequence[_PlacedTag]
) -> Iterator[Part]:
    """A sentence with tags inside."""
    parts: list[Kept | Sentence] = []
    place = first
    for tag in tags:
        parts += _escaped(splitter.split_sentence(text[place : tag.place]))
        parts.append(Kept(tag.token.raw))
        place = tag.place
    parts += _escaped(splitter.split_sentence(text[place:last]))
    spans = _spans(text, tags)
    whole = _one_blank(text[first:last])
    if spans and splitter.fits(whole):
        yield Marked(whole, spans, tuple(parts))
    else:
        yield from parts


def _spans(text: str, tags: Sequence[_PlacedTag]) -> tuple[Span, ...]:
    """The words between each opening tag and its end; none if tags are nested or left open."""
    spans = []
    for first, second in zip(tags[::2], tags[1::2], strict=False):
        opening, closing = first.token, second.token
        is_pair = not opening.is_closing and closing.is_closing and opening.name == closing.name
        words = _one_blank(text[first.place : second.place])
        if not is_pair or not words:
            return ()
        spans.append(Span(opening.raw, words, closing.raw))
    return tuple(spans) if 2 * len(spans) == len(tags) else ()


def _escaped(parts: Iterator[Kept | Sentence]) -> Iterator[Kept | Sentence]:
    """Kept text as HTML writes it, sentences as a browser shows them: they are escaped later."""
    for part in parts:
        if isinstance(part, Kept):
            yield Kept(escape(part.text))
        else:
            yield Sentence(_one_blank(part.text))


def _one_blank(text: str) -> str:
    return " ".join(text.split())
