from itertools import islice
from pathlib import Path

import numpy as np
import pytest

from corpus.test_mix import DIRECTIONS, config_of, write_directions
from dragoman.config_file import load_config
from dragoman.corpus.prepare import prepare
from dragoman.corpus.rows import Position, RowStream
from dragoman.corpus.store import PairTokens, PreparedCorpus
from dragoman.corpus.subword_dropout import SubwordDropout
from dragoman.errors import UserError
from dragoman.training.parts import make_stream
from support import SMALL


def texts(corpus: PreparedCorpus, pairs: PairTokens) -> list[list[str]]:
    return [
        model.decode([side.line(index).tolist() for index in range(len(side))])
        for model, side in zip(corpus.subwords(), (pairs.source, pairs.target), strict=True)
    ]


def test_other_subwords_spell_the_same_text(prepared_once: Path) -> None:
    corpus = PreparedCorpus(prepared_once / "prepared")
    cutter = SubwordDropout(corpus.subwords(), 0.2, row_tokens=200)
    once, again, other = (cutter.cut(corpus.train, seed) for seed in (1, 1, 2))
    assert texts(corpus, once) == texts(corpus, corpus.train)
    for side in ("source", "target"):
        tokens = [getattr(pairs, side).tokens for pairs in (once, again, other, corpus.train)]
        assert np.array_equal(tokens[0], tokens[1]), "a function of the seed"
        assert not np.array_equal(tokens[0], tokens[2])
        assert len(tokens[0]) > len(tokens[3]), "fewer merges, more tokens"
        assert tokens[0].dtype == tokens[3].dtype


def test_what_would_not_fit_a_row_stays_as_it_was(prepared_once: Path) -> None:
    corpus = PreparedCorpus(prepared_once / "prepared")
    sides = corpus.train.source, corpus.train.target
    longest = max(np.diff(side.offsets).max() for side in sides)
    cut = SubwordDropout(corpus.subwords(), 0.5, int(longest)).cut(corpus.train, 1)
    assert max(np.diff(side.offsets).max() for side in (cut.source, cut.target)) <= longest
    assert texts(corpus, cut) == texts(corpus, corpus.train)


def test_any_position_goes_on_exactly(prepared_once: Path) -> None:
    config = load_config(prepared_once / "config.toml", [*SMALL, "training.subword_dropout=0.1"])
    corpus = PreparedCorpus(prepared_once / "prepared")
    stream = make_stream(config, corpus)
    assert isinstance(stream, RowStream)
    whole = list(islice(stream.steps(Position()), 60))
    assert whole[-1].next.epoch >= 2
    for index in (3, 30, 58):
        following = next(stream.steps(whole[index].next))
        assert np.array_equal(following.rows.source, whole[index + 1].rows.source)
    epochs = [stream.window(epoch, 0).target_tokens for epoch in range(2)]
    assert epochs[0] != epochs[1], "every epoch cuts anew"


def test_tags_stay_in_front(tmp_path: Path) -> None:
    write_directions(tmp_path)
    config = config_of(tmp_path, DIRECTIONS)
    prepare(config, processes=1)
    corpus = PreparedCorpus(tmp_path / "prepared")
    cut = SubwordDropout(corpus.subwords(), 0.3, row_tokens=200).cut(corpus.train, 1)
    firsts = [
        [int(pairs.source.line(index)[0]) for index in range(len(pairs))]
        for pairs in (cut, corpus.train)
    ]
    assert firsts[0] == firsts[1]


def test_more_than_half_is_refused(prepared_once: Path) -> None:
    with pytest.raises(UserError, match="subword_dropout must be at most"):
        load_config(prepared_once / "config.toml", [*SMALL, "training.subword_dropout=0.9"])
