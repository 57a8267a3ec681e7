"""A run on two corpora with tags: what it writes down, how it goes on, and what it is asked."""

from dataclasses import replace
from pathlib import Path

import pytest

from corpus.test_mix import DIRECTIONS, config_of, write_directions
from dragoman.cli import main
from dragoman.config import Config
from dragoman.corpus.prepare import prepare
from dragoman.inference.augment import find_languages
from dragoman.inference.commands import evaluate_run
from dragoman.inference.decoder import TrainedChoice
from dragoman.report.answers.time_and_sizes import training_set
from dragoman.report.evidence import load_evidence
from dragoman.report.findings.analysis import analyse
from dragoman.training.start import train
from support import SMALL, assert_same_end, metrics, refusal

STAGED = DIRECTIONS + "[[stages]]\nfrom_step = 13\nweights = { to-english = 0.0 }\n"


def in_steps(config: Config, steps: int) -> Config:
    return replace(config, training=replace(config.training, steps=steps))


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A whole run and one that was stopped twice."""
    folder = tmp_path_factory.mktemp("mixed")
    write_directions(folder)
    config = config_of(folder, STAGED)
    prepare(config, processes=1)
    train(config, str(folder / "whole"))
    for steps in (5, 14, 24):
        train(in_steps(config, steps), str(folder / "stopped"))
    return folder


def test_a_mixed_run_goes_on_bit_for_bit(folder: Path) -> None:
    assert_same_end(folder / "whole", folder / "stopped")
    counts = [
        [line["corpora"] for line in metrics(folder / name, "train")]
        for name in ("whole", "stopped")
    ]
    assert counts[0] == counts[1]


def test_counts_of_each_corpus_are_in_the_metrics_and_in_the_report(folder: Path) -> None:
    steps = metrics(folder / "whole", "train")
    for line in steps:
        assert sum(one["pairs"] for one in line["corpora"].values()) == line["pairs"]
        assert (line["corpora"]["to-english"]["pairs"] > 0) == (line["step"] < 13)
    read = {
        name: sum(line["corpora"][name]["pairs"] for line in steps)
        for name in ("to-german", "to-english")
    }
    assert read["to-english"] > 300, "more than an epoch, or this shows nothing"
    evidence = load_evidence(folder / "whole", now=0.0)
    answer = training_set(evidence, analyse(evidence))
    facts = answer.evidence["corpora"]
    for name, pairs in read.items():
        assert facts[name]["pairs"] == 300
        # Places inside a window are known by rows, which do not all hold as many pairs.
        assert facts[name]["pairs_read"] == pytest.approx(pairs, rel=0.05)
    assert answer.details[0].startswith("to-german: 300 pairs, read ")


def test_an_export_that_cannot_set_tags_needs_text_without_one(
    folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    transformers = pytest.importorskip("transformers")
    words = ["--to", "transformers", "--no-check", "--output"]
    code, errors = refusal(capsys, "export", folder / "whole", *words, tmp_path / "tagged")
    assert (code, "translates only text with a tag (<2de>, <2en>)" in errors) == (2, True), errors
    # As augment's own mix has it: true text without a tag, synthetic text with one.
    write_directions(tmp_path)
    config = in_steps(config_of(tmp_path, DIRECTIONS.replace(', tag = "<2de>"', "")), 2)
    prepare(config, processes=1)
    train(config, str(tmp_path / "partly"))
    # Two steps teach nothing: its endless translations are not worth a comparison.
    main(["export", str(tmp_path / "partly"), *words, str(tmp_path / "exported")])
    tokenizer = transformers.AutoTokenizer.from_pretrained(tmp_path / "exported")
    numbers = tokenizer("one two")["input_ids"]
    assert tokenizer.decode(numbers, skip_special_tokens=True) == "one two"


def test_languages_behind_a_tag_are_not_guessed(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    choice = TrainedChoice(str(folder / "whole"))
    assert find_languages(choice, "dragoman") == ("en", "de")
    assert find_languages(replace(choice, tag="<2en>"), "dragoman") == ()
    assert "--tag <2en> may stand for any languages" in capsys.readouterr().err


def test_each_direction_has_its_own_validation_set(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    last = {line["set"]: line for line in metrics(folder / "whole", "eval")[-2:]}
    choice = TrainedChoice(str(folder / "whole"), "latest", beam=1)
    evaluate_run(choice, None, None)
    printed = capsys.readouterr().out
    for name in ("german", "english"):
        assert f"loss  {last[name]['loss']:.4f} " in printed
    evaluate_run(replace(choice, tag="<2de>"), None, None, ["english"])
    other = capsys.readouterr().out
    assert f"loss  {last['english']['loss']:.4f} " not in other, "it was asked with another tag"


def test_a_model_of_several_tags_asks_which(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    code, errors = refusal(capsys, "translate", folder / "whole")
    assert (code, errors.splitlines()[-1]) == (
        2,
        "dragoman: the model has several tags: choose with --tag <2de> or <2en>",
    )
    code, errors = refusal(capsys, "translate", folder / "whole", "--tag", "<2fr>")
    assert code == 2
    assert "--tag <2fr>: the model knows <2de>, <2en>" in errors


def test_an_export_takes_the_tag_too(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    pytest.importorskip("ctranslate2")
    main(["export", str(folder / "whole"), "--to", "ctranslate2", "--check-pairs", "1"])
    (tmp_path / "text").write_text("one two\n" * 3)
    printed = {}
    for engine in ("dragoman", "ctranslate2"):
        for tag in ("<2de>", "<2en>"):
            capfd.readouterr()
            with open(tmp_path / "text") as text, monkeypatch.context() as patch:
                patch.setattr("sys.stdin", text)
                main(["translate", str(folder / "whole"), "--engine", engine, "--tag", tag])
            printed[engine, tag] = capfd.readouterr().out
    for tag in ("<2de>", "<2en>"):
        assert printed["dragoman", tag] == printed["ctranslate2", tag]
        assert len(printed["dragoman", tag].splitlines()) == 3


def test_weights_cannot_change_when_a_run_goes_on(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    config_of(folder, STAGED.replace("weight = 2.0", "weight = 3.0"))
    try:
        run = folder / "whole"
        code, errors = refusal(capsys, "train", folder / "config.toml", "--run", run, *SMALL)
    finally:
        config_of(folder, STAGED)
    assert code == 2
    assert "the weights of corpus.train were [1.0, 2.0], are now [1.0, 3.0]" in errors
