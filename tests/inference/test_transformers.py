"""Exports are opened by the real transformers, as anyone opens a model."""

import json
import shutil
from collections.abc import Sequence
from dataclasses import replace
from importlib.metadata import version
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import sentencepiece
import torch

from dragoman.cli import main
from dragoman.config import ModelSettings, TranslationSettings
from dragoman.config_file import load_config
from dragoman.corpus.subwords import Subwords
from dragoman.corpus.text import normalize
from dragoman.inference.export_folder import SUBWORDS
from dragoman.inference.load import TrainedModel, load_trained
from dragoman.inference.translate import TextSides, Translator
from dragoman.model.transformer import Transformer
from dragoman.runs.folder import RunFolder
from inference.test_export import DECOMPOSED, ODD_LINES, python_of
from support import number_pairs, refusal

CPU = torch.device("cpu")
LINES = number_pairs(70_000, 30)[0]
STRANGE = [
    *ODD_LINES,
    *DECOMPOSED,
    "  blanks   inside  ",
    "tab\there",
    "\u201cquoted\u201d \u2013 it\u2019s\u2026",
    "[UNK] \ue000 \ufdd0",
    "aaaaaaaaaa abababababa one",
]


@pytest.fixture(scope="module")
def exported(spelling_run: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("transformers") / "exported"
    main(["export", str(spelling_run), "--to", "transformers", "--output", str(folder)])
    return folder


@pytest.fixture(scope="module")
def trained(spelling_run: Path) -> TrainedModel:
    return load_trained(RunFolder(spelling_run), "best", 1, CPU)


def transformers_model() -> ModuleType:
    """Imported here: every process of the tests imports this file, and transformers takes long."""
    from dragoman.inference import transformers_model

    return transformers_model


def ours(trained: TrainedModel, lines: Sequence[str]) -> list[str]:
    ranked = trained.translator.translate(lines, trained.config.translation)
    return [best[0].text for best in ranked]


def test_it_is_checked_and_says_so(exported: Path) -> None:
    info = json.loads((exported / "dragoman.json").read_text())
    assert info["library"] == "transformers"
    assert info["versions"]["transformers"] == version("transformers")
    assert info["parity"]["pairs"] == 120
    assert info["parity"]["identical"] >= 119, "but for a tie"
    if info["parity"]["identical"] == 120:
        assert info["parity"]["largest_score_difference"] < 1e-4
    card = (exported / "README.md").read_text()
    assert "library_name: transformers\n" in card
    assert "exported for Transformers in float32" in card


def test_the_cards_code_works(
    exported: Path, trained: TrainedModel, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    alone = Path(shutil.copytree(exported, tmp_path / "elsewhere"))
    for name in ("dragoman.json", *SUBWORDS):
        (alone / name).unlink()
    monkeypatch.chdir(alone)
    names: dict[str, Any] = {}
    exec(python_of(Path("README.md").read_text()), names)
    assert [names["translate"](line) for line in LINES] == ours(trained, LINES)


def test_it_stays_the_same_when_transformers_saves_it(
    exported: Path, trained: TrainedModel, tmp_path: Path
) -> None:
    from transformers import AutoModelForSeq2SeqLM, AutoTokenizer

    AutoModelForSeq2SeqLM.from_pretrained(exported).save_pretrained(tmp_path)
    AutoTokenizer.from_pretrained(exported).save_pretrained(tmp_path)
    again = (
        transformers_model()
        .load_translator(tmp_path, CPU)
        .translate(LINES, trained.config.translation)
    )
    assert [best[0].text for best in again] == ours(trained, LINES)


@pytest.mark.skipif(
    version("transformers") >= "5", reason="Transformers 5 has no translation pipeline"
)
def test_the_translation_pipeline_opens_it(exported: Path, trained: TrainedModel) -> None:
    from transformers import pipeline

    found = pipeline("translation", model=str(exported))(LINES)
    assert [one["translation_text"] for one in found] == ours(trained, LINES)


@pytest.mark.parametrize("beam", [1, 3])
def test_scores_are_ours(trained: TrainedModel, tmp_path: Path, beam: int, exported: Path) -> None:
    folder = Path(shutil.copytree(exported, tmp_path / "beam"))
    written = json.loads((folder / "generation_config.json").read_text())
    (folder / "generation_config.json").write_text(json.dumps(written | {"num_beams": beam}))
    settings = TranslationSettings(beam=beam)
    found = transformers_model().load_translator(folder, CPU).translate(LINES, settings)
    expected = trained.translator.translate(LINES, settings)
    for one, other in zip(found, expected, strict=True):
        assert one[0].text == other[0].text
        assert one[0].score == pytest.approx(other[0].score, rel=1e-4, abs=1e-4)


def train_subwords(path: Path, lines: Sequence[str], size: int, kind: str, marks: bool) -> Subwords:
    with open(path, "wb") as file:
        sentencepiece.SentencePieceTrainer.train(
            sentence_iterator=iter(lines),
            model_writer=file,
            vocab_size=size,
            model_type=kind,
            byte_fallback=True,
            # As ours are, or as those that were trained elsewhere.
            normalization_rule_name="identity" if marks else "nmt_nfkc",
            remove_extra_whitespaces=not marks,
            bos_id=1 if marks else -1,
            eos_id=2 if marks else 1,
            minloglevel=2,
        )
    return Subwords(path.read_bytes())


@pytest.mark.parametrize("kind", ["bpe", "unigram"])
@pytest.mark.parametrize("joint", [True, False])
@pytest.mark.parametrize("own_marks", [True, False])
def test_all_vocabularies(
    small_text: Path, tmp_path: Path, kind: str, joint: bool, own_marks: bool
) -> None:
    """Random weights: what they say means nothing, but must be the same."""
    english, german = number_pairs(1_000, 500)
    words = [*english, *german, "unheard-of words, one after the other", "It's aaa abab a ba"]
    source = train_subwords(tmp_path / SUBWORDS[0], words, 290, kind, own_marks)
    if joint:
        shutil.copy(tmp_path / SUBWORDS[0], tmp_path / SUBWORDS[1])
        target = source
    else:
        target = train_subwords(tmp_path / SUBWORDS[1], german, 280, kind, own_marks)
    torch.manual_seed(4)
    shape = ModelSettings(preset="tiny", encoder_layers=1, decoder_layers=2, d_model=16, heads=2)
    model = Transformer(shape, source.size, target.size, joint).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.mul_(1.5)
    text = TextSides(source, target, True, 60)
    config = load_config(small_text / "config.toml", [f"vocabulary.joint={str(joint).lower()}"])
    config = replace(config, model=shape)
    trained = TrainedModel(Translator(model, text, CPU), config, [])
    transformers_model().write_model(trained, tmp_path)
    theirs = transformers_model().load_translator(tmp_path, CPU)
    for line in [*STRANGE, *english[:20]]:
        plain = normalize(line, True).replace("\ue000", "").strip()
        expected = source.encode([plain])[0]
        assert theirs.tokenizer(line)["input_ids"] == expected, line
    encoded = target.encode(german[:20])
    offset = 0 if joint else source.size
    for tokens, line in zip(encoded, german, strict=False):
        shifted = [offset + token for token in tokens]
        assert theirs.tokenizer.decode(shifted, skip_special_tokens=True) == line
    assert_same_logits(model, theirs.model, offset)


@torch.inference_mode()
def assert_same_logits(model: Transformer, theirs: Any, offset: int) -> None:
    sizes = [len(one.weight) for one in (model.source_embedding, model.target_embedding)]
    random = torch.Generator().manual_seed(1)
    source, target = (torch.randint(size, (3, 20), generator=random) for size in sizes)
    ones, positions = torch.ones_like(source), torch.arange(20).expand_as(source)
    hidden = model.decode(model.encode(source, positions, ones), ones, target, positions, ones)
    expected = hidden @ model.target_embedding.weight.T
    found = theirs(input_ids=source, attention_mask=ones, decoder_input_ids=target + offset).logits
    assert torch.allclose(found[..., offset : offset + sizes[1]], expected, rtol=1e-4, atol=1e-4)
    others = [*range(offset), offset + sizes[1]]
    assert (found[..., others] < -1e8).all(), "nothing but words of the target"


def test_wrong_requests_are_one_line(
    spelling_run: Path,
    exported: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    export: list[str | Path] = ["export", spelling_run, "--to", "transformers"]
    monkeypatch.setattr("dragoman.errors.find_spec", lambda _: None)
    code, errors = refusal(capsys, *export)
    assert (code, errors.startswith("dragoman: transformers is not installed: ")) == (2, True)
    monkeypatch.undo()
    requests: list[tuple[list[str | Path], str]] = [
        (
            [*export, "--quantization", "int8"],
            "--quantization int8: not available with --to transformers",
        ),
        ([*export, "--check-pairs", "0"], "--check-pairs 0: must be at least 1"),
        (["translate", exported, "--engine", "ctranslate2"], "is an export for transformers"),
        (["serve", exported, "--port", "0"], "is an export for transformers"),
    ]
    for words, line in requests:
        code, errors = refusal(capsys, *words)
        assert (code, line in errors.splitlines()[-1]) == (2, True), errors
