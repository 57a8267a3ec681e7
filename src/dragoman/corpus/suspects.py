"""Problems in a sentence pair that can be seen from the pair alone."""

import hashlib
import re

# Letters that UTF-8's first bytes become when they are read as Latin-1 or Windows-1252, and the
# characters that its other bytes become.
_CONTINUATION = (
    "[\x80-\xbf\u20ac\u201a\u0192\u201e\u2026\u2020\u2021\u02c6\u2030\u0160\u2039\u0152\u017d"
    "\u2018\u2019\u201c\u201d\u2022\u2013\u2014\u02dc\u2122\u0161\u203a\u0153\u017e\u0178]"
)
_MOJIBAKE = re.compile(
    "\ufffd"
    # Most accents of western Europe; a capital A with a circumflex or tilde is rare before marks.
    f"|[\xc2\xc3]{_CONTINUATION}"
    # Quotes, dashes and dots.
    f"|\xe2(?:\u20ac|\x80){_CONTINUATION}"
    # Central Europe; quotation marks may well follow a word that ends in one of these letters.
    "|[\xc4\xc5][\x80-\xaa\xac-\xba\xbc-\xbf\u20ac\u0192\u2020\u2021\u02c6\u2030\u0160\u0152\u017d"
    "\u2022\u02dc\u2122\u0161\u0153\u017e\u0178]"
    # Cyrillic: two letters in a row.
    f"|(?:[\xd0\xd1]{_CONTINUATION}){{2}}"
)

_TAGS = (
    "a|abbr|b|blockquote|body|br|button|center|code|dd|div|dl|dt|em|font|footer|form|h[1-6]|head"
    "|header|hr|html|i|iframe|img|input|label|li|link|meta|nav|object|ol|option|p|pre|script"
    "|section|select|small|span|strong|style|sub|sup|table|tbody|td|th|thead|title|tr|u|ul"
)
_MARKUP = re.compile(
    rf"</?(?:{_TAGS})(?:\s[^<>]*)?/?>"
    r"|&(?:amp|lt|gt|quot|apos|nbsp|copy|[aeiou]uml|szlig|[aeiou]acute|#\d{2,5}|#x[\da-f]{2,4});"
    r"|<!--|-->|<!\[CDATA\[|\{\{[^{}]*\}\}",
    re.IGNORECASE,
)
_BOILERPLATE = (
    *("all rights reserved", "alle rechte vorbehalten", "tous droits réservés"),
    *("cookie policy", "click here to", "enable javascript"),
)

_NUMBER = re.compile(r"\d+")
_NOT_A_WORD = re.compile(r"[\W_]+")
_LETTER = re.compile(r"[^\W\d_]")

LEAST_WORDS = (
    4  # Shorter sentences are alike, or the same in two languages, without anyone's fault.
)


def is_same(source: str, target: str) -> bool:
    """Whether both sides are the same, but for their case."""
    return source == target or source.casefold() == target.casefold()


def is_copied(source: str, target: str) -> bool:
    """Whether a sentence was not translated; names, numbers and the like need not be."""
    if not is_same(source, target):
        return False
    words = source.split()
    return sum(bool(_LETTER.search(word)) for word in words) >= LEAST_WORDS


def is_mojibake(text: str) -> bool:
    """Whether text was decoded with the wrong encoding."""
    return not text.isascii() and _MOJIBAKE.search(text) is not None


def has_markup(text: str) -> bool:
    """Whether text holds HTML, templates or what stands on every page of a site."""
    if ("<" in text or "&" in text or "{{" in text or "-->" in text) and _MARKUP.search(text):
        return True
    lower = text.lower()
    return any(words in lower for words in _BOILERPLATE)


def numbers_differ(source: str, target: str) -> bool:
    """Whether each side has a number of several digits that the other lacks."""
    mine, theirs = _NUMBER.findall(source), _NUMBER.findall(target)
    if mine == theirs or not mine or not theirs:
        return False
    # 1,000 and 1 000, 10:30 and 30.10: the same digits.
    if sorted("".join(mine)) == sorted("".join(theirs)):
        return False
    return _has_other(mine, theirs) and _has_other(theirs, mine)


def _has_other(mine: list[str], theirs: list[str]) -> bool:
    digits = "".join(theirs)
    return any(len(number) > 1 and number not in digits for number in mine)


def key_of(text: str) -> int:
    """A number that sentences share which differ in case, blanks or marks alone."""
    plain = _NOT_A_WORD.sub("", text.casefold())
    return int.from_bytes(hashlib.blake2b(plain.encode(), digest_size=8).digest(), "little")


def telling_key(text: str) -> int | None:
    """The key of a sentence that is long enough for meeting it twice to mean something."""
    is_telling = len(text) >= 12 * LEAST_WORDS or len(text.split()) >= LEAST_WORDS
    return key_of(text) if is_telling else None


def near_key(source: int | None, target: int | None, exact: bytes) -> int:
    """A number that nearly equal pairs share; short ones are equal to themselves alone."""
    if source is None or target is None:
        return int.from_bytes(exact, "little")
    return (3 * source + target) % 2**64
