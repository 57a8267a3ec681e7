"""Documents taken apart and put together; a translation is the same in capitals."""

import random
import time
from collections.abc import Sequence
from html.parser import HTMLParser

import pytest

from dragoman.serve.html_text import escape, split_html
from dragoman.serve.sentences import Marked, Part, Sentence, Splitter, join, wanted

LONGEST = 60
ENGLISH = Splitter("en", lambda text: len(text) <= LONGEST)
PIECES = [
    "Hello there.",
    "How are you?",
    "Dr. No",
    "a, b; c",
    " ",
    "  ",
    "\t",
    "\n",
    "\r\n",
    "\n\n",
]
PIECES += [
    "- ",
    "***",
    "…",
    "word " * 30,
    "x" * 150,
    "你好。",
    "\u2028",
    "😀",
    "3.5",
    "e.g. this",
    "\x1c",
]
TAGS = [
    "<p>",
    "</p>",
    "<b>",
    "</b>",
    "<i class='a>b'>",
    "</i>",
    "<br/>",
    "<!-- no -->",
    "<U>",
    "</U>",
]
TAGS += ["&amp;", "&lt;", "<code>if a</code>", "<script>a<b</script>", " > ", "<img src=x>"]
MALFORMED = [
    "<a",
    "<",
    "</",
    "<!",
    "'",
    '"',
    "&",
    "<code>",
    "<b c='",
    "</script>",
    "<style>",
    "<!--",
]


class Seen(HTMLParser):
    """What a browser would see: tags as they are, text in capitals, blanks aside."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: list[str] = []
        self.text = ""
        self.is_kept = 0
        self.feed(text)
        self.close()

    def handle_starttag(self, tag: str, attrs: object) -> None:
        self.tags.append(f"{tag} {attrs}")
        self.is_kept += tag in ("code", "script")

    def handle_endtag(self, tag: str) -> None:
        self.tags.append(f"/{tag}")
        self.is_kept -= tag in ("code", "script")

    def handle_comment(self, data: str) -> None:
        self.tags.append(data)

    def handle_data(self, data: str) -> None:
        self.text += "".join((data if self.is_kept else data.upper()).split())


def in_capitals(parts: Sequence[Part]) -> str:
    return join(parts, {text: text.upper() for text in wanted(parts)})


def html_in_capitals(text: str) -> str:
    parts = split_html(ENGLISH, text)
    return join(parts, {one: one.upper() for one in wanted(parts)}, escape)


def sentences(text: str) -> list[str]:
    return [part.text for part in ENGLISH.split_text(text) if isinstance(part, Sentence)]


def test_any_text_comes_back_with_its_blanks_and_line_ends() -> None:
    chance = random.Random(6)
    for _ in range(500):
        text = "".join(chance.choices(PIECES, k=chance.randrange(12)))
        parts = ENGLISH.split_text(text)
        assert in_capitals(parts) == text.upper()
        for part in parts:
            if isinstance(part, Sentence):
                assert len(part.text) <= LONGEST
                assert part.text == part.text.strip()
                assert any(letter.isalnum() for letter in part.text)


def test_paragraphs_become_sentences() -> None:
    text = "Dr. Smith came.  He saw it!\n\n * * *\n\tIt cost 3.50 euros. Why?"
    expected = ["Dr. Smith came.", "He saw it!", "It cost 3.50 euros.", "Why?"]
    assert sentences(text) == expected


def test_long_sentences_are_cut_at_commas_then_between_words_then_anywhere() -> None:
    clauses = "this is the first of its clauses, " * 2 + "and here comes another one"
    assert sentences(clauses)[0].endswith("clauses,")
    assert all(part.split() == ["word"] * len(part.split()) for part in sentences("word " * 50))
    assert "".join(sentences("x" * 500)) == "x" * 500


def test_a_region_does_not_change_the_language() -> None:
    text = "Am 3. Oktober kam er z. B. nicht. Ja."
    german, austrian = (Splitter(code, bool).split_text(text) for code in ("de", "de-AT"))
    assert german == austrian
    assert len([part for part in german if isinstance(part, Sentence)]) == 2


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("<p>One two. <i>Three.</i></p>", "<p>ONE TWO. <i>THREE.</i></p>"),
        ("<b>This</b> is good.", "<b>THIS</b> IS GOOD."),
        ("a <a href='x>y'>link</a>!", "A <a href='x>y'>LINK</a>!"),
        ("<P>one <B>two. Three</B> four.</P>", "<P>ONE <B>TWO. THREE</B> FOUR.</P>"),
        ("x<br>y<img alt='z'>w", "X<br>Y<img alt='z'>W"),
        ("fish &amp; chips &lt; 3 &euro;", "FISH &amp; CHIPS &lt; 3 €"),
        ("a < b, <!-- not this --> ok", "A &lt; B, <!-- not this --> OK"),
        ("run <code>x = 1 < 2</code> now", "RUN <code>x = 1 < 2</code> NOW"),
        ("<script>if (a<b) c()</script>go", "<script>if (a<b) c()</script>GO"),
        (
            "<div translate=no>Acme <div>x</div></div> is",
            "<div translate=no>Acme <div>x</div></div> IS",
        ),
        ("<ul>\n  <li>One\n  line</li>\n\n</ul>", "<ul>\n  <li>ONE LINE</li>\n\n</ul>"),
        ("<i> in </i>out", "<i> IN </i>OUT"),
        ("never <ended", "NEVER &lt;ENDED"),
        ("<p></p>", "<p></p>"),
    ],
)
def test_tags_stay_around_their_text(text: str, expected: str) -> None:
    assert html_in_capitals(text) == expected


def test_tags_inside_a_sentence_follow_their_words() -> None:
    parts = split_html(ENGLISH, "It is <b>not</b> a <i>big</i> dog.")
    assert isinstance(parts[0], Marked)
    words = {"not": "kein", "big": "großer", "It is": "Es ist", "a": "ein", "dog.": "Hund."}
    whole = {"It is not a big dog.": "Ein großer Hund ist es & kein kleiner."}
    marked = join(parts, words | whole, escape)
    assert marked == "Ein <i>großer</i> Hund ist es &amp; <b>kein</b> kleiner."
    # Words that the whole does not have, or has twice: then part by part.
    for other in ("Es ist nicht so groß.", "kein Hund ist kein großer."):
        apart = join(parts, words | {"It is not a big dog.": other}, escape)
        assert apart == "Es ist <b>kein</b> ein <i>großer</i> Hund."


def test_a_browser_sees_the_same_tags_around_the_same_text() -> None:
    chance = random.Random(7)
    for _ in range(500):
        text = "".join(chance.choices(PIECES + TAGS, k=chance.randrange(14)))
        before, after = Seen(text), Seen(html_in_capitals(text))
        assert (after.tags, after.text) == (before.tags, before.text), text


def test_malformed_html_is_taken_as_it_comes() -> None:
    chance = random.Random(8)
    for _ in range(500):
        text = "".join(chance.choices(PIECES + TAGS + MALFORMED, k=chance.randrange(14)))
        assert html_in_capitals(text).count("\n") <= text.count("\n")


@pytest.mark.parametrize(
    "hostile",
    [
        "<b>a. A</b> ",
        "<a",
        "<",
        "<b>",
        "</b>",
        "<a class=",
        "<code>",
        "'",
        '<a "',
        "&",
        "<!--",
        "a ",
    ],
)
def test_hostile_text_takes_no_longer_than_its_length(hostile: str) -> None:
    def seconds(length: int) -> float:
        text = (hostile * length)[:length]
        started = time.process_time()
        split_html(ENGLISH, text)
        return time.process_time() - started

    seconds(2_000)
    # 64 times the text, not 4,096 times the work; a clock is coarse below a millisecond.
    assert seconds(128_000) < 1_000 * max(seconds(2_000), 0.001)
