from collections.abc import Sequence
from typing import Any

import pytest
import torch

from dragoman.config import ModelSettings, TranslationSettings, VocabularySettings
from dragoman.corpus.subwords import Subwords, train_subwords
from dragoman.inference import translate
from dragoman.inference.beam_search import BeamSearch
from dragoman.inference.hypotheses import Hypothesis
from dragoman.inference.translate import (
    TextSides,
    Translator,
    batches_by_length,
    groups_by_length,
    one_line,
    split_evenly,
    translate_text,
)
from dragoman.model.transformer import Transformer
from support import number_pairs


def test_long_lines_are_cut_evenly_and_wholly() -> None:
    end = 2
    for length in (1, 5, 9, 10, 11, 50, 999):
        tokens = [*range(10, 10 + length), end]
        pieces = split_evenly(tokens, most=10)
        assert all(piece[-1] == end and len(piece) <= 10 for piece in pieces)
        assert [token for piece in pieces for token in piece[:-1]] == tokens[:-1]
        sizes = [len(piece) for piece in pieces]
        assert max(sizes) - min(sizes) <= 1


def test_batches_hold_everything_once_within_the_limit() -> None:
    lengths = [3, 100, 7, 7, 1, 20, 64, 5]
    batches = list(batches_by_length(lengths, batch_tokens=64))
    assert sorted(index for batch in batches for index in batch) == list(range(len(lengths)))
    for batch in batches:
        longest = max(lengths[index] for index in batch)
        assert longest * len(batch) <= 64 or len(batch) == 1
    assert list(batches_by_length([], 64)) == []


def test_groups_hold_everything_once_within_both_limits() -> None:
    lengths = [3, 50, 7, 7, 1, 20, 60, 5, 1, 1]
    groups = list(groups_by_length(lengths, most_tokens=64, most=4))
    assert sorted(index for group in groups for index in group) == list(range(len(lengths)))
    for group in groups:
        assert sum(lengths[index] for index in group) <= 64
        assert len(group) <= 4
    longest = [lengths[group[0]] for group in groups]
    assert longest == sorted(longest, reverse=True)
    assert list(groups_by_length([], 64, 4)) == []


@pytest.mark.parametrize("text", ["a\nb", "a\rb", "a b"])
def test_a_translation_is_one_line(text: str) -> None:
    assert one_line(text) == "a b"


def test_progress_counts_every_line_once_however_many_pieces_it_has() -> None:
    sample = [line.encode() for line in number_pairs(1_000, 300)[0]]
    subwords = Subwords(train_subwords(sample, VocabularySettings(size=275)))
    text = TextSides(subwords, subwords, normalize_punctuation=False, max_tokens=8)
    lines = ["one two three four five six", "", "one"]
    sizes: list[int] = []
    counts: list[int] = []

    def search(sentences: Sequence[Sequence[int]]) -> list[list[Hypothesis]]:
        sizes.append(len(sentences))
        return [[Hypothesis((), 0.0)] for _ in sentences]

    translate_text(lines, text, search, 8, 1, counts.append)
    assert sum(sizes) > len(lines)
    assert sum(counts) == len(lines)


@pytest.mark.parametrize("beam", [1, 3])
def test_a_model_without_finite_weights_translates_to_nothing(beam: int) -> None:
    sample = [line.encode() for line in number_pairs(1_000, 300)[0]]
    subwords = Subwords(train_subwords(sample, VocabularySettings(size=275)))
    settings = ModelSettings(preset="tiny", encoder_layers=1, decoder_layers=1, d_model=16, heads=2)
    model = Transformer(settings, subwords.size, subwords.size, joint=True).eval()
    with torch.no_grad():
        model.target_embedding.weight.fill_(float("nan"))
    text = TextSides(subwords, subwords, normalize_punctuation=False, max_tokens=32)
    translator = Translator(model, text, torch.device("cpu"))
    found = translator.translate(["one two", ""], TranslationSettings(beam=beam))
    assert [best[0].text for best in found] == ["", ""]


@pytest.mark.parametrize("gibibytes", [0, 100])
@pytest.mark.parametrize("beam", [1, 3])
def test_searches_that_are_kept_find_the_same(
    beam: int, gibibytes: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As on a GPU, but for the recording: with little memory, one sentence after the other."""
    lines = number_pairs(1_000, 18)[0]
    subwords = Subwords(
        train_subwords([line.encode() for line in lines], VocabularySettings(size=275))
    )
    lines = [lines[0], "", *lines[1:4], " ".join(lines[:5])]
    settings = ModelSettings(preset="tiny", encoder_layers=1, decoder_layers=1, d_model=16, heads=2)
    torch.manual_seed(1)
    model = Transformer(settings, subwords.size, subwords.size, joint=True).eval()
    text = TextSides(subwords, subwords, normalize_punctuation=False, max_tokens=32)
    how = TranslationSettings(beam=beam, batch_tokens=64)
    expected = Translator(model, text, torch.device("cpu")).translate(lines, how)
    monkeypatch.setattr(translate, "can_record", lambda _: True)
    monkeypatch.setattr(translate, "free_bytes", lambda _: gibibytes << 30)
    monkeypatch.setattr(translate, "FEW_SENTENCES", 2)
    made = []

    def make(*arguments: Any, is_recorded: bool) -> BeamSearch:
        assert is_recorded
        made.append(BeamSearch(*arguments, is_recorded=False))
        return made[-1]

    monkeypatch.setattr(translate, "BeamSearch", make)
    keeping = Translator(model, text, torch.device("cpu"))
    for _ in range(2):
        found = keeping.translate(lines, how)
        assert [best[0].text for best in found] == [best[0].text for best in expected]
        few = keeping.translate(lines[:2], how)
        assert [best[0].text for best in few] == [best[0].text for best in expected[:2]]
    assert len(made) == 2, "one for many, one for few"
    keeping.translate(lines, TranslationSettings(beam=beam + 1, batch_tokens=64))
    assert len(made) == 3
