import re
from pathlib import Path
from unicodedata import is_normalized

import pytest
from babel.numbers import format_currency, format_decimal

from dragoman.corpus import demo
from dragoman.corpus.demo import DemoCorpus, SentencePair, Slot
from dragoman.demo import write_text_and_config
from dragoman.files import write_whole


@pytest.fixture(scope="module")
def corpus() -> DemoCorpus:
    return demo.generate()


@pytest.fixture(scope="module")
def pairs(corpus: DemoCorpus) -> list[SentencePair]:
    return [*corpus.train, *corpus.validation, *corpus.test]


def test_the_sets_have_the_sizes_asked_for(corpus: DemoCorpus) -> None:
    assert len(corpus.train) == 20_000
    assert len(corpus.validation) == len(corpus.test) == 500


def test_the_same_seed_gives_the_same_corpus_and_another_seed_another(corpus: DemoCorpus) -> None:
    assert demo.generate() == corpus
    assert demo.generate(seed=2).test != corpus.test


def test_held_out_sets_stay_when_the_training_set_shrinks(corpus: DemoCorpus) -> None:
    small = demo.generate(train_pairs=100)
    assert small.train == corpus.train[:100]
    assert (small.validation, small.test) == (corpus.validation, corpus.test)


def test_no_source_occurs_twice_in_any_set(pairs: list[SentencePair]) -> None:
    # So no held-out sentence was seen in training, and every source has exactly one target.
    assert len({pair.source for pair in pairs}) == len(pairs)


def test_lines_are_clean(pairs: list[SentencePair]) -> None:
    for line in (line for pair in pairs for line in (pair.source, pair.target)):
        assert re.fullmatch(r"[\w€£][\w €£%.,:'-]+[.?]", line), line
        assert line == " ".join(line.split()), "a blank other than one plain space"
        assert line[0] == line[0].upper()
        assert is_normalized("NFC", line)


def test_sentences_are_as_long_as_real_ones(pairs: list[SentencePair]) -> None:
    lengths = [len(pair.source.split()) for pair in pairs]
    assert min(lengths) >= 5
    assert max(lengths) <= 25
    assert 10 <= sum(lengths) / len(lengths) <= 12


def test_every_frame_occurs_in_training(corpus: DemoCorpus) -> None:
    text = "\n".join(pair.source for pair in corpus.train)
    for frame in demo.FRAMES:
        pattern = ".+".join(re.escape(part) for part in re.split(r"{\w+}", frame))
        assert len(re.findall(f"^{pattern}$", text, re.MULTILINE)) > 100, frame


def test_both_sides_of_a_frame_have_the_same_slots() -> None:
    for english, german in demo.FRAMES.items():
        slots = [sorted(re.findall(r"{(\w+)", frame)) for frame in (english, german)]
        assert slots[0] == slots[1], english


def test_no_slot_value_has_two_translations() -> None:
    for name, pool in demo.slot_pools().items():
        assert len({slot.english for slot in pool}) == len(pool), name


def fill(beginning: str, **slots: Slot) -> tuple[str, str]:
    """Fill the one frame that begins so."""
    (frame,) = (frame for frame in demo.FRAMES if frame.startswith(beginning))
    pair = demo.fill(frame, slots)
    return pair.source, pair.target


def same(name: str) -> Slot:
    return Slot(name, name)


TUESDAY = demo.day(426, "EEEE, d MMMM y", "EEEE', dem 'd. MMMM y")
SUNDAY = demo.day(4, "EEEE", "EEEE")
RICE = Slot("rice", "Reis")


def test_a_country_with_an_article_is_declined() -> None:
    past_six = demo.clock(6, "a quarter past {0}")
    assert fill("The plane", country=demo.country("CH"), date=TUESDAY, clock=past_six) == (
        "The plane to Switzerland takes off on Tuesday, 3 March 2026, at a quarter past six.",
        "Das Flugzeug in die Schweiz hebt am Dienstag, dem 3. März 2026, um Viertel nach sechs ab.",
    )
    countries = {"country": demo.country("IQ"), "country_2": demo.country("NL")}
    crowd = demo.both(format_decimal, 1250)
    assert fill("{crowd}", crowd=crowd, **countries) == (
        "1,250 spectators watched the match between Iraq and the Netherlands.",
        "1.250 Zuschauer sahen das Spiel zwischen dem Irak und den Niederlanden.",
    )
    stay = demo.counted(1, "duration-day")
    may = demo.day(130, "MMMM", "MMMM")
    assert fill("In {month}, it", month=may, stay=stay, country=demo.country("IQ")) == (
        "In May, it rained for one day in Iraq.",
        "Im Mai regnete es im Irak einen Tag lang.",
    )


def test_a_country_without_article_stands_alone() -> None:
    half_past_twelve = demo.clock(12, "half past {0}")
    assert fill("The plane", country=demo.country("PT"), date=TUESDAY, clock=half_past_twelve) == (
        "The plane to Portugal takes off on Tuesday, 3 March 2026, at half past twelve.",
        "Das Flugzeug nach Portugal hebt am Dienstag, dem 3. März 2026, um halb eins ab.",
    )
    millions = demo.spelled(1_000_000)
    assert fill("About", millions=millions, country=demo.country("US")) == (
        "About one million people visit the United States every year.",
        "Etwa eine Million Menschen besuchen jedes Jahr die Vereinigten Staaten.",
    )


def test_units_agree_with_their_number_and_case() -> None:
    people = {"person": same("Anna"), "person_2": same("Ben")}
    assert fill("{person} and", span=demo.counted(1, "duration-year"), **people) == (
        "Anna and Ben have known each other for one year.",
        "Anna und Ben kennen sich seit einem Jahr.",
    )
    assert fill("{person} and", span=demo.counted(3, "duration-month"), **people) == (
        "Anna and Ben have known each other for three months.",
        "Anna und Ben kennen sich seit drei Monaten.",
    )
    price = demo.both(format_currency, 24.5, "EUR")
    assert fill("She", price=price, weight=demo.counted(1, "mass-kilogram"), food=RICE) == (
        "She paid €24.50 for one kilogram of rice at the market.",
        "Sie bezahlte auf dem Markt 24,50 € für ein Kilogramm Reis.",
    )


def test_currencies_and_languages_are_declined_as_adjectives() -> None:
    weight = demo.counted(3, "mass-kilogram")
    assert fill("He", weight=weight, food=RICE, cash=demo.cash(50, "SEK")) == (
        "He would like to pay for three kilograms of rice with 50 Swedish kronor.",
        "Er möchte drei Kilogramm Reis mit 50 schwedischen Kronen bezahlen.",
    )
    assert fill("The book", language=demo.language("fi"), language_2=demo.language("sw")) == (
        "The book has been translated from Finnish into Swahili.",
        "Das Buch wurde aus dem Finnischen ins Suaheli übersetzt.",
    )


def test_ordinals_and_hours_follow_the_german_rules() -> None:
    slots = {"ordinal": demo.spelled(21, "ordinal"), "city": demo.city("Vienna")}
    assert fill("Our", day=demo.day(6), **slots) == (
        "Our twenty-first meeting will take place in Vienna on 7 January.",
        "Unser einundzwanzigstes Treffen findet am 7. Januar in Wien statt.",
    )
    zoo = Slot("the zoo", demo.decline("der", "Zoo"))
    assert fill("Let us", weekday=SUNDAY, clock=demo.clock(1, "{0} o'clock"), place=zoo) == (
        "Let us meet on Sunday at one o'clock in front of the zoo.",
        "Treffen wir uns am Sonntag um ein Uhr vor dem Zoo.",
    )


def test_the_files_hold_the_corpus_line_by_line(tmp_path: Path, corpus: DemoCorpus) -> None:
    demo.write_demo(tmp_path / "text")
    for name, pairs in vars(corpus).items():
        for suffix, lines in (
            ("en", [pair.source for pair in pairs]),
            ("de", [pair.target for pair in pairs]),
        ):
            content = (tmp_path / "text" / f"{name}.{suffix}").read_bytes()
            assert content.decode() == "\n".join(lines) + "\n"
    assert len(list((tmp_path / "text").iterdir())) == 6


@pytest.mark.parametrize("writes", range(6))
def test_a_kill_at_any_moment_leaves_no_half_of_the_text(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, writes: int
) -> None:
    monkeypatch.setattr(demo, "generate", lambda: DemoCorpus(*[(SentencePair("a", "b"),)] * 3))
    written: list[Path] = []

    def write_until_killed(path: Path, content: bytes) -> None:
        if len(written) == writes:
            raise KeyboardInterrupt
        written.append(path)
        write_whole(path, content)

    with monkeypatch.context() as patch:
        patch.setattr(demo, "write_whole", write_until_killed)
        with pytest.raises(KeyboardInterrupt):
            write_text_and_config(tmp_path)
    assert write_text_and_config(tmp_path) == tmp_path / "demo.toml"
    names = {f"{name}.{side}" for name in ("train", "validation", "test") for side in ("en", "de")}
    assert {path.name for path in (tmp_path / "text").iterdir()} == names
    assert {path.name for path in tmp_path.iterdir()} == {"demo.toml", "text"}
