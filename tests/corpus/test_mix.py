import json
from collections import Counter
from collections.abc import Iterator
from dataclasses import asdict, replace
from itertools import islice
from pathlib import Path

import numpy as np
import pytest

from corpus.test_rows import BEGIN, original, random_pairs, unpack
from dragoman.config import Config
from dragoman.config_file import dump_config, load_config, load_saved_config
from dragoman.corpus import rows as rows_module
from dragoman.corpus.mix import MixedStream, Stage, plan_stages, slots_of
from dragoman.corpus.prepare import prepare
from dragoman.corpus.rows import Position, RowStream, StepRows
from dragoman.corpus.store import PairTokens, PreparedCorpus
from dragoman.documents import parse
from dragoman.errors import UserError
from dragoman.training.parts import check_corpus_settings, make_stream
from support import SMALL, number_pairs, write_lines, write_numbers

ROWS = 32  # Of a step.


@pytest.fixture(autouse=True)
def small_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rows_module, "PAIRS_PER_BLOCK", 16)
    monkeypatch.setattr(rows_module, "BLOCKS_PER_WINDOW", 4)


CORPORA = {"large": random_pairs(500, 20, seed=1), "small": random_pairs(90, 20, seed=2)}
EVEN = (Stage(1, (0.5, 0.5)),)


def stream(stages: tuple[Stage, ...] = EVEN, seed: int = 1) -> MixedStream:
    streams = {
        name: RowStream(pairs, 32, ROWS, BEGIN, seed + place)
        for place, (name, pairs) in enumerate(CORPORA.items())
    }
    return MixedStream(streams, stages, ROWS, seed)


def steps(mixed: MixedStream, position: Position | None = None) -> Iterator[StepRows]:
    return mixed.steps(position or Position())


def test_every_corpus_gives_each_pair_once_in_each_of_its_epochs() -> None:
    seen: Counter[object] = Counter()
    taken = list(islice(steps(stream()), 60))
    for step in taken:
        seen.update(unpack(step.rows))
    assert taken[-1].corpora is not None
    for name, pairs in CORPORA.items():
        epoch = int(taken[-1].corpora[name].epoch)
        assert epoch >= (2 if name == "large" else 12)
        counts = Counter(original(pairs))
        for pair, copies in counts.items():
            assert copies * epoch <= seen[pair] <= copies * (epoch + 1)


def test_counts_are_those_of_the_rows() -> None:
    belongs = {pair: name for name, pairs in CORPORA.items() for pair in original(pairs)}
    for step in islice(steps(stream()), 20):
        counted = Counter(belongs[pair] for pair in unpack(step.rows))
        assert step.corpora is not None
        assert {name: one.pairs for name, one in step.corpora.items()} == dict(counted)
        assert sum(one.target_tokens for one in step.corpora.values()) == step.target_tokens
        assert step.target_tokens == step.rows.target_tokens
        assert (step.pairs, step.slots) == (step.rows.pairs, step.rows.target.size)


@pytest.mark.parametrize("share", [0.0, 0.03, 0.5, 0.9, 1.0])
def test_every_step_holds_nearly_the_share_that_is_asked_for(share: float) -> None:
    mixed = stream((Stage(1, (1 - share, share)),))
    counts = [np.bincount(mixed.corpora_of(step), minlength=2)[1] for step in range(1, 200)]
    assert max(abs(count - share * ROWS) for count in counts) < 3
    assert sum(counts) == pytest.approx(share * ROWS * len(counts), abs=3)


def test_a_stage_begins_at_its_step_to_the_row() -> None:
    mixed = stream((Stage(1, (1.0, 0.0)), Stage(7, (0.0, 1.0)), Stage(9, (0.5, 0.5))))
    for number, step in enumerate(islice(steps(mixed), 10), start=1):
        assert step.corpora is not None
        large, small = (one.pairs for one in step.corpora.values())
        assert (large > 0, small > 0) == (not 7 <= number < 9, number >= 7)


def test_a_stage_of_the_first_step_replaces_the_weights_from_the_start() -> None:
    mixed = stream((Stage(1, (1.0, 0.0)), Stage(1, (0.0, 1.0))))
    assert set(mixed.corpora_of(1).tolist()) == {1}


def test_any_position_goes_on_exactly_across_epochs_and_stages() -> None:
    mixed = stream((Stage(1, (0.8, 0.2)), Stage(12, (0.2, 0.8))))
    whole = list(islice(steps(mixed), 30))
    for index, step in enumerate(whole[:-1]):
        saved = parse(Position, json.loads(json.dumps(asdict(step.next))))
        following = next(steps(mixed, saved))
        expected = whole[index + 1]
        assert following.next == expected.next
        assert following.corpora == expected.corpora
        assert following.epoch == expected.epoch
        for mine, theirs in zip(following.rows.arrays(), expected.rows.arrays(), strict=True):
            assert np.array_equal(mine, theirs)


def test_order_depends_on_the_seed() -> None:
    first, again, other = (
        [unpack(step.rows) for step in islice(steps(stream(seed=seed)), 4)] for seed in (1, 1, 9)
    )
    assert first == again
    assert first != other


def test_rows_are_as_full_as_those_of_one_corpus(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.undo()  # Windows of their usual size.
    sizes = {"large": 30_000, "small": 9_000}
    corpora = {name: random_pairs(size, 30, seed=size) for name, size in sizes.items()}
    alone = RowStream(corpora["large"], 64, ROWS, BEGIN, 1).steps(Position())
    streams = {name: RowStream(pairs, 64, ROWS, BEGIN, 1) for name, pairs in corpora.items()}
    mixed = MixedStream(streams, EVEN, ROWS, 1).steps(Position())
    alone_full, mixed_full = (
        sum(step.target_tokens for step in taken) / sum(step.slots for step in taken)
        for taken in (list(islice(one, 60)) for one in (alone, mixed))
    )
    assert mixed_full > alone_full - 0.01


def config_of(folder: Path, text: str) -> Config:
    path = folder / "config.toml"
    path.write_text('[corpus]\nfolder = "prepared"\n' + text + "\n[vocabulary]\nsize = 320\n")
    return load_config(path, SMALL)


TEXTS = """
train = [
    {{ source = "a.en", target = "a.de", name = "a", weight = {weight} }},
    {{ source = "b.en", target = "b.de", name = "b" }},
]
temperature = {temperature}
validation.valid = {{ source = "valid.en", target = "valid.de" }}
"""


@pytest.mark.parametrize(
    ("weight", "temperature", "ratio"),
    [(1.0, 1, 4.0), (4.0, 1, 16.0), (1.0, 2, 2.0), (3.0, 100, 3.0)],
)
def test_weights_multiply_sizes_that_a_temperature_evens_out(
    tmp_path: Path, weight: float, temperature: float, ratio: float
) -> None:
    config = config_of(tmp_path, TEXTS.format(weight=weight, temperature=temperature))
    (stage,) = plan_stages(config, [4_000, 1_000])
    assert sum(stage.shares) == pytest.approx(1)
    assert stage.shares[0] / stage.shares[1] == pytest.approx(ratio, rel=0.02)


def test_stages_change_the_weights_they_name(tmp_path: Path) -> None:
    stages = "[[stages]]\nfrom_step = 100\nweights = { b = 8.0 }\n"
    config = config_of(tmp_path, TEXTS.format(weight=2.0, temperature=1) + stages)
    first, second = plan_stages(config, [1_000, 1_000])
    assert (first.from_step, second.from_step) == (1, 100)
    assert first.shares == pytest.approx((2 / 3, 1 / 3))
    assert second.shares == pytest.approx((0.2, 0.8))
    (tmp_path / "saved.toml").write_text(dump_config(config))
    assert load_saved_config(tmp_path / "saved.toml") == config


def write_directions(folder: Path, *, count: int = 300) -> None:
    """English to German, and other numbers from German to English."""
    for name, first in (("a", 10_000), ("b", 40_000)):
        write_numbers(folder, name, first, count)
    write_lines(folder / "valid.en", ["one two"])
    write_lines(folder / "valid.de", ["eins zwei"])


VALID = 'validation.valid = { source = "valid.en", target = "valid.de" }'
DIRECTIONS = """
train = [
    { source = "a.en", target = "a.de", name = "to-german", tag = "<2de>" },
    { source = "b.de", target = "b.en", name = "to-english", tag = "<2en>", weight = 2.0 },
]
validation.german = { source = "valid.en", target = "valid.de", tag = "<2de>" }
validation.english = { source = "valid.de", target = "valid.en", tag = "<2en>" }
"""


def text_of(corpus: PreparedCorpus, pairs: PairTokens) -> list[tuple[int, str, str]]:
    """The tag and both sides of each pair."""
    source, target = corpus.subwords()
    lines = [
        (pairs.source.line(index).tolist(), pairs.target.line(index).tolist())
        for index in range(len(pairs))
    ]
    return [(one[0], *source.decode([one[1:]]), *target.decode([other])) for one, other in lines]


def test_corpora_are_kept_apart_and_tags_are_tokens(tmp_path: Path) -> None:
    write_directions(tmp_path)
    config = config_of(tmp_path, DIRECTIONS)
    manifest = prepare(config, processes=1)
    assert manifest.corpora is not None
    assert {name: one.pairs for name, one in manifest.corpora.items()} == {
        "to-german": 300,
        "to-english": 300,
    }
    corpus = PreparedCorpus(tmp_path / "prepared")
    check_corpus_settings(config, corpus)
    subwords = corpus.subwords()[0]
    german, english = (subwords.tag(tag) for tag in ("<2de>", "<2en>"))
    assert german is not None
    assert german != english is not None
    assert german not in subwords.encode(["<2de> text that looks like one"])[0]
    found = {name: text_of(corpus, pairs) for name, pairs in corpus.train_parts().items()}
    for name, tag, first, sides in (
        ("to-german", german, 10_000, (0, 1)),
        ("to-english", english, 40_000, (1, 0)),
    ):
        lines = number_pairs(first, 300)
        expected = zip(lines[sides[0]], lines[sides[1]], strict=True)
        assert sorted(found[name]) == sorted((tag, *pair) for pair in expected)
    sets = corpus.evaluation_sets("validation")
    assert [(one.tag, int(one.tokens.source.line(0)[0])) for one in sets] == [
        ("<2de>", german),
        ("<2en>", english),
    ]
    mixed = make_stream(config, corpus)
    assert isinstance(mixed, MixedStream)
    assert mixed.stages[0].shares[1] == pytest.approx(2 / 3, abs=0.02)
    sample = corpus.train_sample(60)
    assert len(sample) == 60
    assert Counter(tag for tag, *_ in text_of(corpus, sample)) == {german: 30, english: 30}


def test_the_same_words_under_two_tags_are_no_duplicates(tmp_path: Path) -> None:
    write_directions(tmp_path)
    same = DIRECTIONS.replace(
        'source = "b.de", target = "b.en"', 'source = "a.en", target = "a.de"'
    )
    manifest = prepare(config_of(tmp_path, same), processes=1)
    assert manifest.pairs.prepared == 600
    assert manifest.filters["duplicate"] == 0


def test_weights_change_without_a_new_preparation_but_not_names(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    write_directions(tmp_path)
    prepare(config_of(tmp_path, DIRECTIONS), processes=1)
    weighed = config_of(tmp_path, DIRECTIONS.replace("weight = 2.0", "weight = 7.0"))
    check_corpus_settings(weighed, PreparedCorpus(tmp_path / "prepared"))
    prepare(weighed, processes=1)
    assert "same text, nothing to do" in capsys.readouterr().err
    renamed = config_of(tmp_path, DIRECTIONS.replace("to-english", "back"))
    with pytest.raises(UserError, match="run `dragoman prepare` again"):
        check_corpus_settings(renamed, PreparedCorpus(tmp_path / "prepared"))


def test_texts_without_weights_are_shuffled_together_as_ever(tmp_path: Path) -> None:
    write_directions(tmp_path)
    texts = '{ source = "a.en", target = "a.de" }, { source = "b.en", target = "b.de" }'
    config = config_of(tmp_path, f"train = [{texts}]\n{VALID}")
    manifest = prepare(config, processes=1)
    assert manifest.corpora is None
    corpus = PreparedCorpus(tmp_path / "prepared")
    assert isinstance(make_stream(config, corpus), RowStream)
    assert np.array_equal(
        corpus.train_sample(50).target.tokens, corpus.train.lines(0, 50).target.tokens
    )


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        (DIRECTIONS.replace("<2de>", "2de"), "the tag '2de' must be in angle brackets"),
        (DIRECTIONS.replace('"to-english"', '"to-german"'), "two texts are named to-german"),
        (DIRECTIONS.replace('"to-english"', '"a/b"'), "may only contain letters, digits"),
        (
            DIRECTIONS.replace('valid.de", tag', 'valid.de", weight = 2.0, tag'),
            "corpus.validation.german: name and weight are for training text",
        ),
        ('train = [{ tsv = "a", weight = 2.0 }]', "need several texts under corpus.train"),
        (
            DIRECTIONS + "[[stages]]\nfrom_step = 9\nweights = { other = 1.0 }",
            "stages[0].weights.other: no such text; known: to-german, to-english",
        ),
        (
            DIRECTIONS + "[[stages]]\nfrom_step = 9\n[[stages]]\nfrom_step = 9",
            "stages[1].from_step = 9 must come after the previous stage",
        ),
        (
            DIRECTIONS + "[[stages]]\nweights = { to-german = 0, to-english = 0.0 }",
            "stages[0].weights: every weight is 0",
        ),
        (DIRECTIONS + "[[stages]]\nsteps = 9", "stages[0].steps: unknown setting"),
    ],
)
def test_mixes_that_make_no_sense_are_refused(tmp_path: Path, text: str, problem: str) -> None:
    with pytest.raises(UserError) as caught:
        config_of(tmp_path, text)
    assert problem in str(caught.value)


def test_a_vocabulary_without_the_tags_is_refused(tmp_path: Path) -> None:
    write_directions(tmp_path)
    text = 'train = [{ source = "a.en", target = "a.de" }]'
    untagged = config_of(tmp_path, f"{text}\n{VALID}")
    prepare(untagged, processes=1)
    (model,) = tmp_path.glob("prepared/corpus-*/subwords.model")
    model.rename(tmp_path / "given.model")
    config = config_of(tmp_path, DIRECTIONS)
    given = replace(config.vocabulary, model=str(tmp_path / "given.model"))
    with pytest.raises(UserError, match="lacks the control symbol <2de>, a tag of the corpus"):
        prepare(replace(config, vocabulary=given), processes=1)


def test_slots_are_those_of_the_longer_side() -> None:
    pairs = CORPORA["small"]
    assert slots_of(pairs) == max(pairs.source.offsets[-1], pairs.target.offsets[-1])
    assert slots_of(pairs.view(10, 20)) == max(
        side.offsets[20] - side.offsets[10] for side in (pairs.source, pairs.target)
    )
