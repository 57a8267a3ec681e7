"""What the filters of synthetic pairs catch, and what they leave alone."""

import pytest

from dragoman.inference.pair_filters import PAIR_FILTERS, PairFilter, PairLimits, is_copy, is_loop

LIMITS = PairLimits(max_length_ratio=2.0, min_score=-4.0, languages=("de", "en"))
GERMAN = "Der Ausschuss hat gestern über den Haushalt für das kommende Jahr beraten."
ENGLISH = "Yesterday the committee discussed the budget for the coming year."


@pytest.mark.parametrize(
    ("line", "translation", "score", "reason"),
    [
        (GERMAN, ENGLISH, -1.0, None),
        (GERMAN, "", -1.0, "empty"),
        (GERMAN, "The committee of the committee of the committee of the House.", -1.0, "loop"),
        (GERMAN, GERMAN, -1.0, "copy"),
        (GERMAN, GERMAN.replace("beraten", "discussed"), -1.0, "copy"),
        (GERMAN, "Yes.", -1.0, "length"),
        (GERMAN, "Le comité a examiné hier le budget de l'année prochaine.", -1.0, "language"),
        (GERMAN, ENGLISH, -4.5, "score"),
        ("Ja.", "Yes, it is so.", -1.0, None),
        ("Paris, Berlin", "Paris, Berlin", -1.0, None),
    ],
)
def test_the_first_filter_that_catches_a_pair_is_named(
    line: str, translation: str, score: float, reason: str | None
) -> None:
    assert reason is None or reason in PAIR_FILTERS
    assert PairFilter(LIMITS).reason(line, translation, score) == reason


def test_a_translation_may_repeat_what_its_line_repeats() -> None:
    limits = PairLimits(max_length_ratio=2.0, min_score=None, languages=())
    assert PairFilter(limits).reason("nein nein nein nein", "no no no no", 0.0) is None
    assert PairFilter(limits).reason("nein, und zwar laut", "no no no no", 0.0) == "loop"


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("very very very good", False),
        ("very very very very good", True),
        ("and so and so it goes", False),
        ("and so and so and so it goes", True),
        ("1,000,000,000 ........ ------", False),
        ("hahahahahahahahaha", True),
        ("我同意我同意我同意我同意我同意我同意", True),
        ("Donaudampfschifffahrtsgesellschaftskapitän", False),
        ("", False),
    ],
)
def test_loops(text: str, expected: bool) -> None:
    assert is_loop(text) is expected


def test_few_words_are_no_copy() -> None:
    assert not is_copy("Angela Merkel, Berlin", "Angela Merkel, Berlin")
    assert is_copy("das ist nicht wahr", "Das ist nicht wahr")
    assert not is_copy("das ist nicht wahr", "that is not true")
