"""The embedded English-German corpus: sentence frames filled from CLDR data and number words."""

import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from datetime import date, time, timedelta
from decimal import Decimal
from functools import cache
from itertools import islice
from pathlib import Path
from random import Random
from unicodedata import normalize

from babel import Locale
from babel.dates import format_date, format_time
from babel.numbers import format_currency, format_decimal, format_percent, get_currency_name
from babel.units import format_unit
from num2words import num2words

from dragoman.files import write_whole

LOCALES = (ENGLISH, GERMAN) = (Locale.parse("en_GB"), Locale.parse("de_DE"))


@dataclass(frozen=True)
class SentencePair:
    """One English sentence and its German translation."""

    source: str
    target: str


@dataclass(frozen=True)
class DemoCorpus:
    """Three sets of pairs; no source sentence occurs twice, neither within a set nor across."""

    train: tuple[SentencePair, ...]
    validation: tuple[SentencePair, ...]
    test: tuple[SentencePair, ...]


@dataclass(frozen=True)
class Forms:
    """German words in the forms that the frames ask for; only countries have the last two."""

    nominative: str
    accusative: str
    dative: str
    to: str = ""
    inside: str = ""


@dataclass(frozen=True)
class Slot:
    """What fills a slot of a frame, in both languages."""

    english: str
    german: str | Forms


def generate(train_pairs: int = 20_000, held_out_pairs: int = 500, seed: int = 1) -> DemoCorpus:
    """Make the corpus; the held-out sets do not depend on the number of training pairs."""
    pairs = distinct_pairs(Random(seed))
    validation = tuple(islice(pairs, held_out_pairs))
    test = tuple(islice(pairs, held_out_pairs))
    return DemoCorpus(tuple(islice(pairs, train_pairs)), validation, test)


def write_demo(folder: Path) -> None:
    """Write train, validation and test as parallel text files `*.en` and `*.de`."""
    folder.mkdir(parents=True, exist_ok=True)
    for name, pairs in vars(generate()).items():
        write_whole(folder / f"{name}.en", "".join(f"{pair.source}\n" for pair in pairs).encode())
        write_whole(folder / f"{name}.de", "".join(f"{pair.target}\n" for pair in pairs).encode())


def distinct_pairs(random: Random) -> Iterator[SentencePair]:
    """Draw frames and what fills them for ever, each English sentence once."""
    frames, pools = list(FRAMES), slot_pools()
    seen: set[str] = set()
    while True:
        frame = frames[below(random, len(frames))]
        slots: dict[str, Slot] = {}
        for name in re.findall(r"{(\w+)}", frame):
            pool = pools[name.removesuffix("_2")]
            while (slot := pool[below(random, len(pool))]) in slots.values():
                pass
            slots[name] = slot
        pair = fill(frame, slots)
        if pair.source not in seen:
            seen.add(pair.source)
            yield pair


def below(random: Random, bound: int) -> int:
    """Draw an index; across versions, Python promises equal numbers of `random()` alone."""
    return int(random.random() * bound)


def fill(frame: str, slots: Mapping[str, Slot]) -> SentencePair:
    """Put the same things into an English frame and into its German one."""
    source = frame.format(**{name: slot.english for name, slot in slots.items()})
    target = FRAMES[frame].format(**{name: slot.german for name, slot in slots.items()})
    return SentencePair(as_sentence(source), as_sentence(target))


def as_sentence(text: str) -> str:
    """Begin with a capital; the no-break and narrow spaces of CLDR become plain ones."""
    text = normalize("NFC", " ".join(text.split()))
    return text[0].upper() + text[1:]


# An English line, then its German line; `{country_2}` is a second, different `{country}`.
FRAME_LINES = """
    The plane to {country} takes off on {date}, at {clock}.
    Das Flugzeug {country.to} hebt am {date}, um {clock} ab.
    The train from {city} to {city_2} leaves on {weekday} at {clock}.
    Der Zug von {city} nach {city_2} fährt am {weekday} um {clock} ab.
    In {month}, {person} spent {stay} in {country}.
    Im {month} verbrachte {person} {stay.accusative} {country.inside}.
    A ticket from {city} to {city_2} costs {price}.
    Eine Fahrkarte von {city} nach {city_2} kostet {price}.
    The flight from {country} lands at {hour} instead of {hour_2}.
    Der Flug aus {country.dative} landet um {hour} Uhr statt um {hour_2} Uhr.
    Have you ever been to {country} in {month}?
    Waren Sie schon einmal im {month} {country.inside}?
    {person} wants to cycle through {country} for {stay}.
    {person} möchte {stay.accusative} lang mit dem Fahrrad durch {country.accusative} fahren.
    She paid {price} for {weight} of {food} at the market.
    Sie bezahlte auf dem Markt {price} für {weight.accusative} {food}.
    {person} bought {grams} of {food} in the shop next to {place}.
    {person} kaufte im Laden neben {place.dative} {grams} {food}.
    The tourist exchanged {price} for {cash}.
    Der Tourist tauschte {price} in {cash.accusative} um.
    He would like to pay for {weight} of {food} with {cash}.
    Er möchte {weight.accusative} {food} mit {cash.dative} bezahlen.
    In {city}, it will be {degrees} on {weekday}.
    In {city} werden es am {weekday} {degrees}.
    In {month}, it rained for {stay} in {country}.
    Im {month} regnete es {country.inside} {stay.accusative} lang.
    The storm will reach {country} on {weekday} at about {clock}.
    Der Sturm wird {country.accusative} am {weekday} gegen {clock} erreichen.
    {person} says that the sun will shine in {city} until {weekday}.
    {person} sagt, dass in {city} bis {weekday} die Sonne scheinen wird.
    The meeting with {person} has been moved from {weekday} to {weekday_2}.
    Die Besprechung mit {person} wurde von {weekday} auf {weekday_2} verschoben.
    Let us meet on {weekday} at {clock} in front of {place}.
    Treffen wir uns am {weekday} um {clock} vor {place.dative}.
    {person} has cancelled the appointment on {date}.
    {person} hat den Termin am {date}, abgesagt.
    Our {ordinal} meeting will take place in {city} on {day}.
    Unser {ordinal}s Treffen findet am {day} in {city} statt.
    {person} and {person_2} have known each other for {span}.
    {person} und {person_2} kennen sich seit {span.dative}.
    {person} arrived {wait} late because the train from {city} was delayed.
    {person} kam {wait.accusative} zu spät, weil der Zug aus {city} Verspätung hatte.
    For this recipe, you need {grams} of {food} and {grams_2} of {food_2}.
    Für dieses Rezept brauchen Sie {grams} {food} und {grams_2} {food_2}.
    Add {grams} of {food} and let the soup simmer for {wait}.
    Geben Sie {grams} {food} hinzu und lassen Sie die Suppe {wait.accusative} köcheln.
    {person} forgot to buy {weight} of {food} for dinner on {weekday}.
    {person} hat vergessen, für das Abendessen am {weekday} {weight.accusative} {food} zu kaufen.
    {nation} beat {country} {score} in {city}.
    {nation.nominative} besiegte {country.accusative} in {city} mit {score}.
    {person} runs {distance} before breakfast every {weekday}.
    {person} läuft jeden {weekday} vor dem Frühstück {distance}.
    {person} took {ordinal} place in the marathon in {city}.
    {person} belegte beim Marathon in {city} den {ordinal}n Platz.
    {crowd} spectators watched the match between {country} and {country_2}.
    {crowd} Zuschauer sahen das Spiel zwischen {country.dative} und {country_2.dative}.
    {person}'s grandfather was born in {country} on {day} {year}.
    Der Großvater von {person} wurde am {day} {year} {country.inside} geboren.
    The old king died in {country} in {year_in_words}.
    Der alte König starb im Jahr {year_in_words} {country.inside}.
    Exactly {count} years ago, {person} left {country} and moved to {city}.
    Vor genau {count} Jahren verließ {person} {country.accusative} und zog nach {city}.
    About {millions} people visit {country} every year.
    Etwa {millions} Menschen besuchen jedes Jahr {country.accusative}.
    My neighbour speaks {language} and a little {language_2}.
    Mein Nachbar spricht {language.nominative} und ein wenig {language_2.nominative}.
    {person} has been learning {language} for {span}.
    {person} lernt seit {span.dative} {language.nominative}.
    The book has been translated from {language} into {language_2}.
    Das Buch wurde aus dem {language.dative} ins {language_2.accusative} übersetzt.
    {person} comes from {country} and speaks {language} very well.
    {person} kommt aus {country.dative} und spricht sehr gut {language.nominative}.
    The price of {food} rose by {percent} in {month}.
    Der Preis für {food} stieg im {month} um {percent}.
    The government in {country} wants to build {count} new schools.
    Die Regierung {country.inside} will {count} neue Schulen bauen.
    The election in {country} will take place on {date}.
    Die Wahl {country.inside} findet am {date}, statt.
    On {weekdays}, {place} in {city} opens at {hour}.
    {weekdays} öffnet {place.nominative} in {city} um {hour} Uhr.
    Tickets for {place} in {city} cost {price} on {weekdays}.
    Eintrittskarten für {place.accusative} in {city} kosten {weekdays} {price}.
"""
LINES = [line.strip() for line in FRAME_LINES.splitlines() if line.strip()]
FRAMES = dict(zip(LINES[::2], LINES[1::2], strict=True))


def glossary(text: str) -> dict[str, str]:
    """Read `key=value, key=value`."""
    return dict(entry.strip().split("=") for entry in text.split(","))


# Codes whose names CLDR has long kept, so that the text does not follow the version of Babel.
COUNTRIES = """AR AT AU BE BG BR CA CH CL CN CO CU CZ DE DK EC EE EG ES FI FR GR HR HU ID IE IN IQ
    IS IT JP KE KR LB LT LU LV MA MN MX NL NO NP NZ PE PL PT RO RS SE SI SK TH TN UA US UY VN ZA"""
COUNTRY_ARTICLES = glossary("CH=die, MN=die, SK=die, UA=die, IQ=der, LB=der, NL=plural, US=plural")
LANGUAGES = """ar bg ca cs da de el en es et fa fi fr ga he hi hr hu is it ja ko lt lv nl no pl pt
    ro ru sk sl sq sr sv sw tr uk vi zh"""
CURRENCIES = "AUD CAD CHF CZK DKK GBP HUF INR JPY MXN NOK PLN SEK THB USD ZAR"
CITIES = """Amsterdam Athens Belgrade Berlin Brussels Bucharest Budapest Copenhagen Dublin Helsinki
    Lisbon London Madrid Oslo Paris Prague Riga Rome Stockholm Vienna Vilnius Warsaw Zurich"""
SCORES = "1-0 2-0 2-1 3-0 3-1 3-2 4-0 4-1 4-2 4-3 5-0 5-1 5-2"
PEOPLE = """Alexander Anna Ben Clara Daniel David Emma Felix Hannah Jonas Julia Laura Maria Martin
    Nina Paul Peter Sarah Simon Sophie"""
FOODS = glossary("""apples=Äpfel, butter=Butter, carrots=Karotten, cheese=Käse, flour=Mehl,
    mushrooms=Pilze, onions=Zwiebeln, potatoes=Kartoffeln, rice=Reis, tomatoes=Tomaten""")
PLACES = glossary("""castle=das Schloss, cathedral=der Dom, cinema=das Kino, gallery=die Galerie,
    museum=das Museum, opera=die Oper, palace=der Palast, theatre=das Theater, zoo=der Zoo""")
CLOCK = glossary("""{0} o'clock={0} Uhr, half past {0}=halb {1}, ten past {0}=zehn nach {0},
    ten to {1}=zehn vor {1}, a quarter past {0}=Viertel nach {0},
    a quarter to {1}=Viertel vor {1}""")
# The word for one before each unit, in the accusative, which tells the genders apart.
ONE = glossary("minute=eine, hour=eine, day=einen, week=eine, month=einen, year=ein, kilogram=ein")
# Nominative, accusative and dative.
ARTICLES = glossary("""der=der den dem, die=die die der, das=das das dem, plural=die die den,
    einen=ein einen einem, eine=eine eine einer, ein=ein ein einem""")


def decline(article: str, noun: str) -> Forms:
    """Put an article or a number before a noun; in the dative plural, Tage become Tagen."""
    nominative, accusative, dative = ARTICLES.get(article, f"{article} " * 3).split()
    is_plural = article == "plural" or article not in ARTICLES
    ending = "n" if is_plural and noun.endswith("e") else ""
    return Forms(f"{nominative} {noun}", f"{accusative} {noun}", f"{dative} {noun}{ending}")


def country(code: str) -> Slot:
    """Name a country: nach Portugal, but in die Schweiz."""
    english, german = (locale.territories[code] for locale in LOCALES)
    article = COUNTRY_ARTICLES.get(code)
    if article is None:
        return Slot(english, Forms(german, german, german, f"nach {german}", f"in {german}"))
    # CLDR's Vereinigte Staaten stand alone; after an article the adjective is weak.
    noun = german.replace("Vereinigte ", "Vereinigten ")
    forms = decline(article, noun)
    inside = f"in {forms.dative}".replace("in dem ", "im ")
    forms = replace(forms, to=f"in {forms.accusative}", inside=inside)
    return Slot(f"the {english}" if article == "plural" else english, forms)


def city(name: str) -> Slot:
    """Name a European city, which CLDR knows as the place of a time zone."""
    return Slot(name, GERMAN.time_zones.get(f"Europe/{name}", {}).get("city", name))


def language(code: str) -> Slot:
    """Name a language: ins Finnische, aus dem Finnischen, but ins Hindi, aus dem Hindi."""
    english, german = (locale.languages[code] for locale in LOCALES)
    return Slot(english, Forms(german, *(re.sub("sch$", end, german) for end in ("sche", "schen"))))


def cash(amount: int, code: str) -> Slot:
    """Name an amount of a currency: 50 polnische Złoty, mit 50 polnischen Złoty."""
    english, german = (f"{amount} {get_currency_name(code, amount, locale)}" for locale in LOCALES)
    # CLDR gives the adjective a capital, as in a table.
    german = re.sub(r"\w+e ", lambda adjective: adjective[0].lower(), german)
    return Slot(english, Forms(german, german, german.replace("e ", "en ")))


def counted(number: int, unit: str) -> Slot:
    """Count a unit in words: eine Stunde, seit einem Jahr, seit drei Tagen."""
    count, measure = spelled(number), both(format_unit, number, unit)
    article = ONE[unit.rpartition("-")[2]] if number == 1 else f"{count.german}"
    forms = decline(article, f"{measure.german}".split()[1])
    return Slot(measure.english.replace(str(number), count.english), forms)


def clock(hour: int, phrase: str) -> Slot:
    """Tell the time as people do: half past seven is halb acht."""
    hours = (spelled(hour), spelled(hour % 12 + 1))
    german = CLOCK[phrase].format(*(name.german for name in hours))
    english = phrase.format(*(name.english for name in hours))
    return Slot(english, german.replace("eins Uhr", "ein Uhr"))


def day(offset: int, english: str = "d MMMM", german: str = "d. MMMM") -> Slot:
    """Write the day that many days after New Year 2025, by a CLDR pattern for each language."""
    when = date(2025, 1, 1) + timedelta(offset)
    return Slot(format_date(when, english, ENGLISH), format_date(when, german, GERMAN))


def spelled(number: int, kind: str = "cardinal") -> Slot:
    """Write a number in words; the kinds are those of num2words."""
    return Slot(*(num2words(number, lang=locale.language, to=kind) for locale in LOCALES))


def both(formatter: Callable[..., str], *values: object) -> Slot:
    """Format the same values by the rules of both languages."""
    return Slot(*(formatter(*values, locale=locale) for locale in LOCALES))


@cache
def slot_pools() -> dict[str, list[Slot]]:
    """List all that can fill each slot; the pools are small, so that every value recurs often."""
    countries = [country(code) for code in COUNTRIES.split()]
    weekdays = [day(offset, "EEEE", "EEEE") for offset in range(7)]
    times = [time(quarter // 4, quarter % 4 * 15) for quarter in range(32, 84)]
    halves = [Decimal(half) / 2 for half in range(5, 100)]

    def counts(*units: str) -> list[Slot]:
        return [counted(number, unit) for unit in units for number in range(1, 13)]

    return {
        "cash": [cash(ten * 10, code) for ten in range(2, 50) for code in CURRENCIES.split()],
        "city": [city(name) for name in CITIES.split()],
        "clock": [clock(hour, phrase) for hour in range(1, 13) for phrase in CLOCK],
        "count": [spelled(number) for number in range(2, 61)],
        "country": countries,
        "crowd": [both(format_decimal, number) for number in range(1000, 10_000, 50)],
        "date": [day(offset, "EEEE, d MMMM y", "EEEE', dem 'd. MMMM y") for offset in range(1461)],
        "day": [day(offset) for offset in range(365)],
        "degrees": [both(format_unit, number, "temperature-celsius") for number in range(2, 39)],
        "distance": [both(format_unit, half, "length-kilometer") for half in halves[:40]],
        "food": [Slot(*names) for names in FOODS.items()],
        "grams": [both(format_unit, number, "mass-gram") for number in range(100, 1000, 50)],
        "hour": [both(format_time, moment, "short") for moment in times],
        "language": [language(code) for code in LANGUAGES.split()],
        "millions": [spelled(number * 1_000_000) for number in range(1, 61)],
        "month": [day(31 * offset, "MMMM", "MMMM") for offset in range(12)],
        "nation": [slot for slot in countries if not slot.english.startswith("the ")],
        "ordinal": [spelled(number, "ordinal") for number in range(1, 41)],
        "percent": [both(format_percent, Decimal(number) / 100) for number in range(2, 61)],
        "person": [Slot(name, name) for name in PEOPLE.split()],
        "place": [Slot(f"the {name}", decline(*words.split())) for name, words in PLACES.items()],
        "price": [both(format_currency, half, code) for half in halves for code in ("EUR", "GBP")],
        "score": [Slot(score, score.replace("-", ":")) for score in SCORES.split()],
        "span": counts("duration-month", "duration-year"),
        "stay": counts("duration-day", "duration-week"),
        "wait": counts("duration-minute", "duration-hour"),
        "weekday": weekdays,
        "weekdays": [Slot(f"{name.english}s", f"{name.german}s".lower()) for name in weekdays],
        "weight": counts("mass-kilogram"),
        "year": [Slot(str(year), str(year)) for year in range(1900, 1960)],
        "year_in_words": [spelled(year, "year") for year in range(1801, 1900)],
    }
