"""Good text, damaged in known ways: each kind is found with its rate, and nothing in clean text."""

import html
import json
import re
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from random import Random

import pytest

from dragoman.config import CleaningSettings, Config
from dragoman.config_file import load_config
from dragoman.corpus.build import build
from dragoman.corpus.demo import SentencePair, generate
from dragoman.corpus.inputs import OldRun, OldSet, find_inputs
from dragoman.corpus.manifest import read_manifest
from dragoman.corpus.prepare import DROPPED, prepare
from dragoman.inspection import command, inspect
from dragoman.inspection.findings import KINDS, Inspection, wilson
from dragoman.inspection.page import summary, write_inspection
from dragoman.inspection.tally import NearDuplicates
from support import refusal, run_dragoman, write_lines

DEMO = generate(train_pairs=4_000, held_out_pairs=200)
Lines = list[tuple[str, str]]
CLEAN: Lines = [(pair.source, pair.target) for pair in DEMO.train]
FEWER = CLEAN[:2_000]
RATE = 0.06
WITHIN = 0.02

CONFIG = """\
[corpus]
folder = "prepared"
train = [{ source = "train.en", target = "train.de" }]
validation.dev = { source = "dev.en", target = "dev.de" }
test.test = { source = "test.en", target = "test.de" }
[vocabulary]
size = 400
"""


def write_corpus(folder: Path, lines: Lines, *overrides: str) -> Config:
    sets: dict[str, tuple[SentencePair, ...]] = {"dev": DEMO.validation, "test": DEMO.test}
    texts = {"train": lines} | {
        name: [(pair.source, pair.target) for pair in pairs] for name, pairs in sets.items()
    }
    for name, pairs in texts.items():
        for side, column in zip(("en", "de"), zip(*pairs, strict=True), strict=True):
            # Half characters stand for bytes that are not UTF-8.
            text = "".join(f"{line}\n" for line in column)
            (folder / f"{name}.{side}").write_bytes(text.encode(errors="surrogateescape"))
    (folder / "config.toml").write_text(CONFIG)
    return load_config(folder / "config.toml", overrides)


def inspected(folder: Path, lines: Lines) -> Inspection:
    config = write_corpus(folder, lines)
    return inspect.inspect_text(config, find_inputs(config), 1)


def some(damage: Callable[[str, str], tuple[str, str]]) -> Callable[[Lines], Lines]:
    """Damage single pairs here and there."""

    def apply(lines: Lines) -> Lines:
        chosen = set(Random(5).sample(range(len(lines)), round(RATE * len(lines))))
        return [damage(*pair) if place in chosen else pair for place, pair in enumerate(lines)]

    return apply


def shifted(lines: Lines) -> Lines:
    """In one stretch the target is that of the line before."""
    start, count = 1_000, round(RATE * len(lines))
    targets = [target for _, target in lines]
    targets[start + 1 : start + count + 1] = targets[start : start + count]
    return list(zip((source for source, _ in lines), targets, strict=True))


def nearly_repeated(lines: Lines) -> Lines:
    """Some pairs are earlier ones in other clothes."""
    chosen = Random(5).sample(range(len(lines) // 2, len(lines)), round(RATE * len(lines)))
    damaged = list(lines)
    for place in chosen:
        source, target = lines[place - len(lines) // 2]
        damaged[place] = (source.upper(), f"{target[:-1]} !")
    return damaged


def leaking(lines: Lines) -> Lines:
    """Some pairs are those of the test set."""
    chosen = Random(5).sample(range(len(lines)), 120)
    damaged = list(lines)
    for place, pair in zip(chosen, DEMO.test, strict=False):
        damaged[place] = (pair.source, pair.target)
    return damaged


def shown(text: str) -> str:
    return text.encode(errors="surrogateescape").decode(errors="replace")


def misread(text: str) -> str:
    return text.encode().decode("cp1252", errors="replace")


FOREIGN = "Cette phrase est bien du français, sans un seul mot des deux autres langues."

PAIR_DAMAGES: dict[str, tuple[str, Callable[[str, str], tuple[str, str]]]] = {
    "wrong_language": ("target", lambda source, _: (source, FOREIGN)),
    "swapped_sides": ("both", lambda source, target: (target, source)),
    "copied": ("both", lambda source, _: (source, source)),
    "mojibake": ("target", lambda source, target: (source, misread(f"{target} Ä"))),
    "markup": ("source", lambda source, target: (f"<p>{source}&nbsp;</p>", target)),
    "numbers_differ": ("both", lambda source, target: (f"{source} 7391", f"{target} 8462")),
    "invalid_utf8": ("target", lambda source, target: (source, f"{target} \udcfc")),
    "unusable": ("both", lambda source, _: (source, "")),
}
DAMAGES: dict[str, tuple[str, Callable[[Lines], Lines], float]] = {
    **{name: (side, some(damage), RATE) for name, (side, damage) in PAIR_DAMAGES.items()},
    "misaligned": ("both", shifted, RATE),
    "near_duplicate": ("both", nearly_repeated, RATE),
    "leaked": ("both", leaking, 120 / len(FEWER)),
}


def test_every_kind_of_damage_is_tried() -> None:
    assert DAMAGES.keys() == KINDS.keys()


def test_the_documented_rates_are_those_of_the_code() -> None:
    page = (Path(__file__).parents[2] / "docs/your-own-text.md").read_text()
    told = " ".join(page.split())
    for name, kind in KINDS.items():
        assert f"`{name}` |" in told
        if kind.setting:
            assert f"`{kind.setting if kind.value is True else kind.remedy}`" in told
        if kind.least_rate:
            (rate,) = re.findall(rf"([\d.]+)% for (?:`\w+` and )?`{name}`", told)
            assert float(rate) / 100 == pytest.approx(kind.least_rate)


def test_empty_lines_are_no_clean_text(tmp_path: Path) -> None:
    found = inspected(tmp_path, [(f"line {number}", "") for number in range(9)])
    (line,) = summary(found, CleaningSettings())
    assert line == "WARNING: one side of all 9 pairs of the training text is empty"


@pytest.mark.parametrize(
    ("language", "reason"),
    [
        ("english", "corpus.source_language = 'english' is not the code of a language"),
        ("de", "corpus.source_language = 'de' and target_language = 'de' cannot be told apart"),
    ],
)
def test_why_languages_are_not_checked_is_said_and_shown(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], language: str, reason: str
) -> None:
    config = write_corpus(tmp_path, CLEAN[:9])
    odd = replace(config, corpus=replace(config.corpus, source_language=language))
    found = inspect.inspect_text(odd, find_inputs(odd), 1)
    assert found.languages_checked == "nowhere"
    assert reason in capsys.readouterr().err
    assert reason in html.unescape(write_inspection(tmp_path, odd, found).read_text())


def test_clean_text_gives_an_empty_list(tmp_path: Path) -> None:
    found = inspected(tmp_path, CLEAN)
    assert found.findings == ()
    page = write_inspection(tmp_path / "prepared", load_config(tmp_path / "config.toml"), found)
    assert json.loads((tmp_path / "prepared/inspect.json").read_text()) == []
    assert "Nothing found" in page.read_text()
    assert summary(found, CleaningSettings()) == ["no problems found in 4,000 pairs"]
    assert found.languages_checked == "everywhere"
    assert found.sampled == found.pairs == 4_000
    assert found.sides[0].words == sum(len(source.split()) for source, _ in CLEAN)
    assert sum(found.sides[1].lengths) == 4_000
    assert found.sides[1].scripts["Latin"] > 0.99


@pytest.mark.parametrize("name", DAMAGES)
def test_each_damage_is_found_with_its_rate_and_no_other(tmp_path: Path, name: str) -> None:
    side, damage, rate = DAMAGES[name]
    damaged = damage(FEWER)
    found = inspected(tmp_path, damaged)
    write_inspection(tmp_path / "prepared", load_config(tmp_path / "config.toml"), found)
    (finding,) = json.loads((tmp_path / "prepared/inspect.json").read_text())
    assert (finding["id"], finding["side"]) == (name, side)
    assert finding["rate"] == pytest.approx(rate, abs=WITHIN)
    assert finding["count"] == pytest.approx(rate * len(FEWER), abs=WITHIN * len(FEWER))
    kind = KINDS[name]
    assert finding["setting"] == (kind.setting if kind.value is True else kind.remedy)
    assert len(finding["examples"]) == 10
    for example in finding["examples"]:
        source, target = damaged[example["line"] - 1]
        assert (example["source"], example["target"]) == (source, shown(target))
        if name != "misaligned":  # Whole stretches are told, ends included.
            assert (source, target) != FEWER[example["line"] - 1]
    page = html.unescape((tmp_path / "prepared/inspect.html").read_text())
    assert kind.title in page
    assert kind.remedy in page
    for example in finding["examples"]:
        for side in ("source", "target"):
            assert f'<td dir="auto">{example[side]}</td>' in page


def damaged_in_every_way() -> Lines:
    """240 pairs of each kind, no pair in two ways."""
    lines = shifted(CLEAN)
    untouched = [place for place in range(len(CLEAN)) if not 950 <= place <= 1_300]
    Random(7).shuffle(untouched)
    for _, damage in PAIR_DAMAGES.values():
        for _ in range(240):
            place = untouched.pop()
            lines[place] = damage(*lines[place])
    for _ in range(240):
        source, target = lines[untouched.pop()]
        lines[untouched.pop()] = (source.upper(), f"{target[:-1]} !")
    for pair in DEMO.test:
        lines[untouched.pop()] = (pair.source, pair.target)
    return lines


def test_the_settings_of_all_findings_drop_what_was_found(tmp_path: Path) -> None:
    damaged = damaged_in_every_way()
    settings = [kind.remedy.replace(" ", "") for kind in KINDS.values() if kind.setting]
    manifest = prepare(write_corpus(tmp_path, damaged, *settings), processes=1)
    dropped = json.loads((tmp_path / "prepared" / DROPPED).read_text())
    for kind in KINDS:
        name = {"copied": "identical_sides", "unusable": "empty_side"}.get(kind, kind)
        expected = len(DEMO.test) if kind == "leaked" else 240
        assert manifest.filters[name] == pytest.approx(expected, abs=60), name
        assert len(dropped[name]) == 20
        for sample in dropped[name]:
            pair = (sample["source"], sample["target"])
            if name == "invalid_utf8":
                assert pair == (damaged[sample["line"] - 1][0], "")
                continue
            assert pair in damaged
            if sample["line"]:
                assert damaged[sample["line"] - 1] == pair
    assert manifest.pairs.prepared == len(CLEAN) - sum(manifest.filters.values())
    assert read_manifest(tmp_path / "prepared") == manifest


def test_leaks_are_told_loudly(tmp_path: Path) -> None:
    found = inspected(tmp_path, leaking(FEWER))
    assert [(one.name, one.found) for one in found.overlaps] == [
        ("validation.dev", 0),
        ("test.test", 240),
    ]
    assert summary(found, CleaningSettings())[0].startswith("WARNING: 240 of ")


def test_leaks_of_several_sets_and_of_the_old_run_are_found_and_dropped(tmp_path: Path) -> None:
    old = [(f"{source} indeed", f"{target} genau") for source, target in CLEAN[:50]]
    config = write_corpus(tmp_path, [*leaking(FEWER), *old], "cleaning.drop_leaked=true")
    test = replace(config.corpus.validation["dev"], source=str(tmp_path / "test.en"))
    test = replace(test, target=str(tmp_path / "test.de"))
    config = replace(config, corpus=replace(config.corpus, validation={"same": test}))
    sources, targets = zip(*old, strict=True)
    old_run = OldRun("parent", (), {"news": OldSet(sources, targets, "")})
    inputs = find_inputs(config, old_run)
    overlaps = inspect.inspect_text(config, inputs, 1).overlaps
    assert {one.name: one.found for one in overlaps} == {
        "validation.same": 240,
        "test.test": 240,
        "old.news": len(set(sources)) + len(set(targets)),
    }
    (tmp_path / "built").mkdir()
    manifest = build(config, inputs, tmp_path / "built", 1, "0" * 64).manifest
    assert manifest.filters["leaked"] == 120 + 50


def test_what_is_dropped_already_is_told_without_alarm_or_advice(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    damaged = [*leaking(FEWER), *DAMAGES["markup"][1](CLEAN[2_000:])]
    config = write_corpus(
        tmp_path, damaged, "cleaning.drop_leaked=true", "cleaning.drop_markup=true"
    )
    prepare(config, processes=1)
    command.inspect_prepared(config, 1)
    told = capsys.readouterr().out
    assert "WARNING" not in told
    assert "240 of 400 sentences of test.test are in the raw training text; prepare drops" in told
    assert re.search(r"HTML and boilerplate .* pairs; prepare drops them \(cleaning", told)
    page = (tmp_path / "prepared/inspect.html").read_text()
    assert "Scores will be too high" not in page
    assert "240 (60%, dropped by prepare)" in page
    assert page.count("120 pairs, dropped by prepare") == 4  # Of both, as card and verdict.
    command.inspect_prepared(config, 1)
    assert not capsys.readouterr().out, "nothing is left that has to be told every time"


def test_text_that_cannot_be_read_is_not_called_clean(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    config = write_corpus(tmp_path, FEWER)
    lines = [f"{target}\n".encode("latin-1", errors="replace") for _, target in FEWER]
    (tmp_path / "train.de").write_bytes(b"".join(lines))
    unreadable = [number for number, line in enumerate(lines, 1) if not line.isascii()]
    command.inspect_corpus(config, 1)
    told = capsys.readouterr().out
    assert f"{len(unreadable):,} pairs; convert the file, or cleaning.invalid_utf8 =" in told
    (finding,) = json.loads((tmp_path / "prepared/inspect.json").read_text())
    assert (finding["id"], finding["side"]) == ("invalid_utf8", "target")
    assert finding["count"] == len(unreadable)
    assert {one["line"] for one in finding["examples"]} <= set(unreadable)
    assert all("\ufffd" in one["target"] for one in finding["examples"])
    page = (tmp_path / "prepared/inspect.html").read_text()
    assert f"{len(unreadable):,} lines that are not UTF-8" in page


@pytest.mark.parametrize("target", ["", "\x07Ring", "Ja " * 90, "Ja"], ids=range(4))
def test_lines_that_prepare_drops_are_told(tmp_path: Path, target: str) -> None:
    source = "One two three four five six seven eight nine ten."
    lines = [(source, target) if place % 2 else pair for place, pair in enumerate(FEWER)]
    config = write_corpus(tmp_path, lines)
    found = inspect.inspect_text(config, find_inputs(config), 1)
    told = summary(found, config.cleaning)
    assert "Unusable lines (both sides): 50%, 1,000 pairs; prepare drops them" in told
    manifest = prepare(config, processes=1)
    assert sum(manifest.filters.values()) == pytest.approx(1_000, abs=5)


def test_a_blank_line_is_read(tmp_path: Path) -> None:
    assert inspected(tmp_path, [*FEWER, ("\N{NO-BREAK SPACE}", "x")]).findings == ()


def test_no_text_is_not_called_clean(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    config = write_corpus(tmp_path, FEWER)
    for side in ("en", "de"):
        (tmp_path / f"train.{side}").write_bytes(b"")
    command.inspect_corpus(config, 1)
    assert "there are no pairs in the training text\n" in capsys.readouterr().out
    page = (tmp_path / "prepared/inspect.html").read_text()
    assert "0 kinds of damage checked" in page


TAGGED = '{ source = "back.de", target = "back.en", tag = "<2en>", name = "back" }'


def write_tagged(folder: Path, lines: Lines, texts: str, *overrides: str) -> Config:
    """A text without a tag, and one in the other direction with a tag."""
    write_corpus(folder, lines)
    for side, column in zip(("en", "de"), zip(*CLEAN[2_000:], strict=True), strict=True):
        write_lines(folder / f"back.{side}", column)
    (folder / "config.toml").write_text(re.sub("train = .*", f"train = [{texts}]", CONFIG))
    return load_config(folder / "config.toml", overrides)


UNTAGGED = '{ source = "train.en", target = "train.de", name = "plain" }'
BY_LANGUAGE = ("cleaning.drop_swapped_sides=true", "cleaning.drop_wrong_language=true")


@pytest.mark.parametrize("name", ["wrong_language", "swapped_sides"])
def test_languages_are_checked_where_no_tag_may_change_them(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], name: str
) -> None:
    damaged = DAMAGES[name][1](FEWER)
    config = write_tagged(tmp_path, damaged, f"{UNTAGGED}, {TAGGED}", *BY_LANGUAGE)
    found = inspect.inspect_text(config, find_inputs(config), 1)
    assert "texts with a tag (<2en>) are not checked for wrong lang" in capsys.readouterr().err
    assert [one.id for one in found.findings] == [name]
    assert found.findings[0].count == pytest.approx(120, abs=40)
    assert {one.file for one in found.findings[0].examples} == {"train.en"}
    page = write_inspection(tmp_path / "prepared", config, found).read_text()
    (other,) = {"wrong_language", "swapped_sides"} - {name}
    assert f"<li>{KINDS[other].title}, in texts without a tag</li>" in page
    assert "texts with a tag (<2en>) are not checked for wrong languages" in html.unescape(page)
    manifest = prepare(config, processes=1)
    assert "texts with a tag (<2en>) are left as they are" in capsys.readouterr().err
    assert manifest.corpora is not None
    assert manifest.corpora["back"].pairs == len(CLEAN[2_000:])
    assert manifest.filters[name] == pytest.approx(120, abs=40)
    assert manifest.corpora["plain"].pairs == len(FEWER) - sum(manifest.filters.values())


def test_what_tags_keep_from_being_checked_is_not_called_checked(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    config = write_tagged(tmp_path, FEWER, TAGGED)
    command.inspect_corpus(config, 1)
    assert "are not checked for wrong languages and swapped sides" in capsys.readouterr().err
    page = (tmp_path / "prepared/inspect.html").read_text()
    assert f"{len(KINDS) - 2} kinds of damage checked" in page
    assert KINDS["wrong_language"].title not in page
    assert KINDS["swapped_sides"].title not in page
    for setting in BY_LANGUAGE:
        code, errors = refusal(capsys, "prepare", tmp_path / "config.toml", setting)
        assert code == 2
        assert f"{setting.removesuffix('=true')} has no effect on texts with a tag" in errors


def test_two_texts_with_the_same_damage_in_the_same_lines_give_examples(tmp_path: Path) -> None:
    texts = UNTAGGED, '{ source = "back.en", target = "back.en", name = "back" }'
    copies = [(source, source) for source, _ in FEWER]
    config = write_tagged(tmp_path, copies, ", ".join(texts))
    (finding,) = [
        one
        for one in inspect.inspect_text(config, find_inputs(config), 1).findings
        if one.id == "copied"
    ]
    assert {one.file for one in finding.examples} == {"train.en", "back.en"}


def test_copies_that_are_found_are_those_that_are_dropped(tmp_path: Path) -> None:
    damaged = some(lambda source, _: (source, source.upper()))(FEWER)
    (finding,) = inspected(tmp_path, damaged).findings
    assert finding.id == "copied"
    config = load_config(tmp_path / "config.toml", ["cleaning.drop_identical=true"])
    assert prepare(config, processes=1).filters["identical_sides"] == finding.count == 120


def test_filters_are_off_unless_asked_for(tmp_path: Path) -> None:
    damaged = FEWER
    for name in ("mojibake", "markup", "numbers_differ"):
        damaged = DAMAGES[name][1](damaged)
    manifest = prepare(write_corpus(tmp_path, damaged), processes=1)
    assert not {"mojibake", "markup", "numbers_differ"} & manifest.filters.keys()
    assert manifest.pairs.prepared == len(FEWER)


def test_near_duplicates_are_counted_in_bounded_memory() -> None:
    counter, random = NearDuplicates(most_keys=1_000), Random(3)
    pairs, repeated = 40_000, 0
    keys: list[int] = []
    for exact in range(pairs):
        if keys and random.random() < 0.2:
            key = random.choice(keys)
            repeated += 1
        else:
            key = random.getrandbits(64)
            keys.append(key)
        counter.add(key, exact)
        counter.add(key, exact)  # An exact copy is none.
        assert len(counter._key_of) <= 1_000
    assert counter.part > 1
    assert counter.count * counter.part == pytest.approx(repeated, rel=0.15)


def test_an_interval_holds_the_rate() -> None:
    low, high = wilson(60, 1_000)
    assert low < 0.06 < high
    assert high - low < 0.04
    assert wilson(0, 100)[0] == 0


def test_languages_that_nobody_knows_are_passed_over(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    config = write_corpus(tmp_path, CLEAN[:100], "corpus.target_language=klingon")
    found = inspect.inspect_text(config, find_inputs(config), 1)
    assert found.languages_checked == "nowhere"
    assert "wrong languages are not checked" in capsys.readouterr().err
    code, errors = refusal(
        capsys,
        *("prepare", tmp_path / "config.toml", "--processes", "1"),
        *("corpus.target_language=klingon", "cleaning.drop_wrong_language=true"),
    )
    assert code == 2
    assert "the language 'klingon' cannot be identified" in errors


@pytest.mark.slow
def test_inspect_and_prepare_leave_the_page_beside_the_manifest(tmp_path: Path) -> None:
    write_corpus(tmp_path, leaking(CLEAN))
    looked = run_dragoman("inspect", "config.toml", "--processes", "1", cwd=tmp_path)
    assert looked.returncode == 0, looked.stderr
    assert "WARNING: 240 of" in looked.stdout
    assert looked.stdout.splitlines()[-1].endswith("prepared/inspect.html")
    before = (tmp_path / "prepared/inspect.json").read_text()
    prepared = run_dragoman("prepare", "config.toml", "--processes", "2", cwd=tmp_path)
    assert prepared.returncode == 0, prepared.stderr
    assert "WARNING: 240 of" in prepared.stdout
    assert (tmp_path / "prepared/manifest.json").is_file()
    assert (tmp_path / "prepared/inspect.json").read_text() == before
    again = run_dragoman("prepare", "config.toml", "--processes", "2", cwd=tmp_path)
    assert "nothing to do" in again.stderr
    assert "inspecting" not in again.stderr
    leaked = sum(one["count"] for one in json.loads(before) if one["id"] == "leaked")
    assert f"WARNING: {leaked} pairs of the training text have a sentence of" in again.stdout
    assert again.stdout.splitlines()[-1].endswith("prepared/inspect.html")


def test_leaks_are_told_again_from_what_was_found_or_found_again(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    config = write_corpus(tmp_path, leaking(CLEAN[:400]))
    manifest, data = (tmp_path / "prepared" / name for name in ("manifest.json", "inspect.json"))
    command.inspect_corpus(config, 1)
    manifest.touch()
    command.inspect_prepared(config, 1)  # The text was prepared after it was looked at.
    assert " sentences of " in capsys.readouterr().out
    command.inspect_prepared(config, 1)
    told = capsys.readouterr().out
    assert told.startswith("WARNING: ")
    assert " pairs of the training text have a sentence of a validation or test set" in told
    for damaged in (b"{}", b"[{}]", b"\xff"):
        whole = data.read_bytes()
        data.write_bytes(damaged)
        command.inspect_prepared(config, 1)
        assert " sentences of " in capsys.readouterr().out
        assert data.read_bytes() == whole
    data.write_bytes(b"[]")
    command.inspect_prepared(config, 1)
    assert not capsys.readouterr().out, "nothing leaked, and nothing is new"
