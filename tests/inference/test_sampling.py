"""Sampling: what is drawn follows the model's distribution, and nothing but line and seed."""

import io
from pathlib import Path

import numpy as np
import pytest
import torch

from dragoman.cli import main
from dragoman.config import TranslationSettings
from dragoman.corpus.order import keyed_hash
from dragoman.inference.beam_search import beam_search
from dragoman.inference.hypotheses import SearchOptions
from dragoman.inference.load import TrainedModel, load_trained
from dragoman.inference.sampling import Sampling, draw, sentence_keys, uniform
from dragoman.inference.translate import Translator
from dragoman.runs.folder import RunFolder
from support import number_pairs, refusal

CPU = torch.device("cpu")
LINES = number_pairs(70_000, 12)[0]
WARM = Sampling(top_k=0, temperature=2.0, seed=1)
SETTINGS = TranslationSettings(beam=1, length_penalty=0.6)


@pytest.fixture(scope="module")
def trained(spelling_run: Path) -> TrainedModel:
    return load_trained(RunFolder(spelling_run), "best", 1, CPU)


@pytest.fixture(scope="module")
def translator(trained: TrainedModel) -> Translator:
    return trained.translator


@pytest.mark.parametrize("words", [5, 1_024])
def test_words_come_as_often_as_they_are_likely(words: int) -> None:
    generator = torch.Generator().manual_seed(1)
    logits = torch.randn(words, generator=generator) * 3
    evenly = (torch.arange(20_000) + 0.5) / 20_000
    rows, before = logits.expand(20_000, words), torch.full((20_000, 1), -7.0)
    for top_k, temperature in ((0, 1.0), (0, 2.5), (0, 0.03), (3, 1.0), (1, 5.0)):
        totals, parents, chosen = draw(rows, before, evenly, Sampling(top_k, temperature, 1))
        kept = logits.clone()
        if top_k:
            kept[logits < logits.topk(top_k).values[-1]] = float("-inf")
        expected = (kept / temperature).softmax(0)
        found = torch.bincount(chosen[:, 0], minlength=words) / 20_000
        assert torch.allclose(found, expected, atol=2e-4), (top_k, temperature)
        assert torch.allclose(totals[:, 0], logits.log_softmax(0)[chosen[:, 0]] - 7)
        assert not parents.any()


def test_numbers_are_even_and_apart() -> None:
    sentences = [[number, 2] for number in range(5_000)]
    keys = [torch.from_numpy(sentence_keys(sentences, 2, Sampling(0, 1.0, n))) for n in (1, 2)]
    steps = torch.ones_like(keys[0])
    first, second = uniform(keys[0], steps), uniform(keys[0], 2 * steps)
    for drawn in (first, second, uniform(keys[1], steps)):
        assert 0 <= drawn.min() < drawn.max() < 1
        counts = torch.histc(drawn, 10, 0, 1)
        assert (counts - 1_000).abs().max() < 150, "five standard deviations of an even one"
    for one, other in ((first, second), (first[::2], first[1::2])):
        correlation = torch.corrcoef(torch.stack((one, other)))[0, 1]
        assert correlation.abs() < 0.05
    hashed = keyed_hash(keys[0].numpy().view(np.uint64), 2) >> np.uint64(40)
    assert (second * (1 << 24)).long().tolist() == hashed.tolist()


def test_one_candidate_is_greedy_search(translator: Translator) -> None:
    greedy = translator.translate(LINES, SETTINGS)
    for sampling in (Sampling(1, 3.0, 7), Sampling(0, 0.01, 7)):
        drawn = translator.sample(LINES, SETTINGS, 1, sampling)
        for one, other in zip(drawn, greedy, strict=True):
            assert one[0].text == other[0].text
            assert one[0].score == pytest.approx(other[0].score, rel=1e-4, abs=1e-4)


def test_a_line_gets_the_same_anywhere_and_another_seed_another(translator: Translator) -> None:
    together = translator.sample([*LINES, "", LINES[0]], SETTINGS, 3, WARM)
    alone = [translator.sample([line], SETTINGS, 3, WARM)[0] for line in LINES]
    texts = [[one.text for one in several] for several in together]
    assert texts[: len(LINES)] == [[one.text for one in several] for several in alone]
    assert texts[-1] == texts[0]
    assert texts[-2] == ["", "", ""]
    assert any(len(set(several)) > 1 for several in texts), "drawn one by one"
    other = translator.sample(LINES, SETTINGS, 3, Sampling(0, 2.0, 2))
    assert texts[: len(LINES)] != [[one.text for one in several] for several in other]


@torch.inference_mode()
def test_scores_are_the_models_own(translator: Translator) -> None:
    model, text = translator.model, translator.text
    sentences = text.source.encode(LINES[:1])
    source = torch.tensor(sentences)
    ones, longest = torch.ones_like(source), 12
    options = SearchOptions(1, 1, 0.6, text.target.begin, text.target.end, 6, WARM)
    [drawn] = beam_search(model, sentences, [longest], options)
    encoded = model.encode(source, torch.arange(source.shape[1])[None], ones)
    for one in drawn:
        end = [text.target.end] if len(one.tokens) < longest else []
        target = torch.tensor([[*one.tokens, *end]])
        given = torch.cat((torch.tensor([[text.target.begin]]), target[:, :-1]), 1)
        places = torch.arange(given.shape[1])[None]
        hidden = model.decode(encoded, ones, given, places, torch.ones_like(given))
        logits = hidden @ model.target_embedding.weight.T
        total = float(logits.log_softmax(-1).gather(2, target[..., None]).sum())
        assert one.score == pytest.approx(total / target.shape[1] ** 0.6, rel=1e-4)


def test_from_the_command_line(
    spelling_run: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
) -> None:
    (tmp_path / "in").write_text("".join(f"{line}\n" for line in LINES))
    words = ["translate", str(spelling_run), "--sample", "--temperature", "1.5", "--top-k", "20"]
    printed = []
    for more in (["--n-best", "2"], ["--n-best", "2"], ["--scores", "--seed", "9"], []):
        with open(tmp_path / "in", "rb") as file:
            monkeypatch.setattr("sys.stdin", io.TextIOWrapper(file))
            main([*words, *more])
        printed.append(capfd.readouterr().out.split("\n")[:-1])
    assert printed[0] == printed[1]
    assert len(printed[0]) == 2 * len(LINES)
    assert all(float(line.split("\t")[0]) <= 0 for line in [*printed[0], *printed[2]])
    assert [line.split("\t", 1)[1] for line in printed[0][::2]] == printed[3]


@pytest.mark.parametrize(
    ("words", "line"),
    [
        (["--top-k", "5"], "--top-k only works with sampling: add --sample"),
        (["--seed", "5"], "--seed only works with sampling: add --sample"),
        (["--sample", "--beam", "4"], "--beam only works with beam search: remove --sample"),
        (["--sample", "--top-k", "0"], "--top-k 0: must be at least 1"),
        (["--sample", "--temperature", "0"], "--temperature 0: must be at least 0.01"),
        (["--sample", "--temperature", "nan"], "--temperature nan: must be at least 0.01"),
        (["--sample", "--seed", "-1"], "--seed -1: must be at least 0"),
        (["--sample", "--engine", "ctranslate2"], "--sample: not available with"),
    ],
)
def test_wrong_requests_are_one_line(
    capsys: pytest.CaptureFixture[str], words: list[str], line: str
) -> None:
    code, errors = refusal(capsys, "translate", "RUN", *words)
    assert (code, line in errors) == (2, True), errors
