"""Exports are read by the real ctranslate2; models are small, and the text is numbers."""

import json
import re
import resource
import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import pytest
import sentencepiece
import torch
from safetensors.torch import load_file

from dragoman.cli import main
from dragoman.config import ModelSettings, TranslationSettings
from dragoman.corpus.subwords import Subwords
from dragoman.inference import ctranslate2_model
from dragoman.inference.ctranslate2_model import load_translator, read_pieces, write_model
from dragoman.inference.export_folder import SUBWORDS
from dragoman.inference.load import load_exported, load_trained
from dragoman.inference.translate import TextSides, Translation, Translator
from dragoman.model.transformer import Transformer, sinusoids
from dragoman.runs.folder import RunFolder
from support import (
    dragoman_command,
    number_pairs,
    refusal,
    without_privilege,
)

CPU = torch.device("cpu")
DOCS = Path(__file__).resolve().parents[2] / "docs" / "export.md"
ODD_LINES = [
    "one two three",
    "",
    "   ",
    "seven " * 200,
    "😀 日本語 \u2028 \u200b ▁ \x00",
    "unheard-of words, one after the other",
    "eight",
]
DECOMPOSED = ["u\u0308 a\u0308 seven", "o\u0308 one"]


@pytest.fixture(scope="module")
def run(spelling_run: Path) -> RunFolder:
    return RunFolder(spelling_run)


@pytest.fixture(scope="module")
def exported(run: RunFolder) -> Path:
    main(export_words(run))
    return run.path / "export" / "ctranslate2"


def export_words(run: RunFolder, *options: str | Path) -> list[str]:
    return ["export", str(run.path), "--to", "ctranslate2", *map(str, options)]


def same(ours: list[list[Translation]], others: list[list[Translation]]) -> None:
    """The same lists of translations, in the same order, with almost the same scores."""
    for mine, other in zip(ours, others, strict=True):
        assert [one.text for one in mine] == [one.text for one in other]
        assert [one.score for one in mine] == pytest.approx(
            [one.score for one in other], rel=1e-4, abs=1e-4
        )


@pytest.mark.parametrize(
    ("beam", "patience", "length_penalty"),
    [(1, 2, 0.6), (2, 1, 0.0), (2, 2, 0.0), (4, 1, 0.6), (4, 2, 0.6), (5, 3, 1.0), (4, 2, 3.0)],
)
def test_both_decoders_find_the_same_lists(
    run: RunFolder, exported: Path, beam: int, patience: int, length_penalty: float
) -> None:
    trained = load_trained(run, "best", 1, CPU)
    settings = replace(
        trained.config.translation, beam=beam, patience=patience, length_penalty=length_penalty
    )
    lines = [*ODD_LINES, *number_pairs(70_000, 40)[0]]
    ours = trained.translator.translate(lines, settings, beam)
    same(ours, load_exported(exported).translator.translate(lines, settings, beam))
    assert [best[0].text for best in ours[1:3]] == ["", ""]


def test_it_is_checked_and_says_so(exported: Path, run: RunFolder) -> None:
    info = json.loads((exported / "dragoman.json").read_text())
    assert info["parity"]["pairs"] == info["parity"]["identical"] == 120
    assert info["parity"]["largest_score_difference"] < 1e-4
    assert info["parity"]["own"]["bleu"] == info["parity"]["exported"]["bleu"] > 5
    low, high = info["parity"]["exported"]["bleu_interval"]
    assert low <= info["parity"]["exported"]["bleu"] <= high
    card = (exported / "README.md").read_text()
    assert f"| 100.0% | {info['parity']['largest_score_difference']:.2g} |" in card
    assert f"| {info['parity']['exported']['bleu']:.2f} | {low:.2f} to {high:.2f} |" in card
    assert info["parity"]["exported"]["signature"] in card
    assert "`train.en` and `train.de`" in card
    assert str(run.path.parent) not in card, "nobody's folders are in a public page"
    assert "| pairs read | 3,000 |" in card
    assert card.count("\n- **") == 11, "every answer of the report"
    assert "## Licence\n\nNot stated." in card


def python_of(page: str) -> str:
    blocks = re.findall(r"```python\n(.*?)```", page, re.DOTALL)
    assert len(blocks) == 1
    return str(blocks[0])


@pytest.mark.parametrize("page", ["card", "docs"])
def test_the_pages_code_works(
    page: str,
    exported: Path,
    run: RunFolder,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    if page == "card":
        code = python_of((exported / "README.md").read_text())
        monkeypatch.chdir(exported)
    else:
        code = python_of(DOCS.read_text())
        (tmp_path / "runs").mkdir()
        (tmp_path / "runs" / "mine").symlink_to(run.path)
        monkeypatch.chdir(tmp_path)
    assert_translates_as(code, run, [*number_pairs(81_000, 20)[0], *DECOMPOSED])


def test_the_cards_code_replaces_punctuation_as_the_training_did(
    run: RunFolder, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    plain = RunFolder(tmp_path / "plain")
    shutil.copytree(run.path, plain.path)
    config = plain.config.read_text()
    assert "normalize_punctuation = false" in config
    plain.config.write_text(config.replace("punctuation = false", "punctuation = true"))
    main(export_words(plain, "--no-check", "--output", tmp_path / "exported"))
    monkeypatch.chdir(tmp_path / "exported")
    code = python_of(Path("README.md").read_text())
    assert_translates_as(code, plain, [*DECOMPOSED, "\u201cone\u201d \u2013 it\u2019s two\u2026"])


def assert_translates_as(code: str, run: RunFolder, lines: list[str]) -> None:
    names: dict[str, object] = {}
    exec(code, names)
    translate = names["translate"]
    assert callable(translate)
    trained = load_trained(run, "best", 1, CPU)
    ours = trained.translator.translate(lines, trained.config.translation)
    assert [translate(line) for line in lines] == [best[0].text for best in ours]


def test_weights_are_named_as_documented(run: RunFolder) -> None:
    index = json.loads((run.checkpoints / "checkpoints.json").read_text())
    weights = load_file(run.checkpoints / index["latest"] / "weights.safetensors")
    rows = re.findall(r"^\| `(\S+\.(?:weight|bias))` \| ([^|]+) \|", DOCS.read_text(), re.MULTILINE)
    sizes = {"V": 320, "V_target": 320, "D": 32, "F": 64, "2D": 64, "3D": 96}
    documented = {
        name.replace(".N.", ".0."): [sizes[size.strip()] for size in shape.split("x")]
        for name, shape in rows
    }
    # One vocabulary here: both languages share an embedding.
    assert documented.pop("source_embedding.weight") == [320, 32]
    assert documented == {name: list(value.shape) for name, value in weights.items()}


@pytest.mark.parametrize("begin_mark", [True, False])
def test_two_vocabularies_and_long_sentences(tmp_path: Path, begin_mark: bool) -> None:
    """Random weights end no sentence: every search runs into its limit of length."""
    sides = number_pairs(1_000, 500)
    for name, lines, size in zip(SUBWORDS, sides, (275, 280), strict=True):
        with open(tmp_path / name, "wb") as subwords:
            sentencepiece.SentencePieceTrainer.train(
                sentence_iterator=iter(lines),
                model_writer=subwords,
                vocab_size=size,
                byte_fallback=True,
                bos_id=1 if begin_mark else -1,
                eos_id=2 if begin_mark else 1,
                minloglevel=2,
            )
    source, target = (Subwords((tmp_path / name).read_bytes()) for name in SUBWORDS)
    assert (target.begin == target.end) is not begin_mark
    torch.manual_seed(3)
    settings = ModelSettings(preset="tiny", encoder_layers=2, decoder_layers=1, d_model=16, heads=2)
    model = Transformer(settings, source.size, target.size, joint=False).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.mul_(2.0)
    pieces = [read_pieces(tmp_path / name) for name in SUBWORDS]
    most = 600
    write_model(model, pieces[0], pieces[1], most, "float32", tmp_path)
    theirs = load_translator(tmp_path, TextSides(source, target, False, most))
    ours = Translator(model, TextSides(source, target, False, most), CPU)
    lines = [" ".join(sides[0][:count]) for count in (1, 2, 28 if begin_mark else 5)]
    assert not begin_mark or most > len(source.encode(lines)[-1]) > 512, "beyond 1,024 positions"
    search = TranslationSettings(beam=2, batch_tokens=4_096)
    same(ours.translate(lines, search, 2), theirs.translate(lines, search, 2))


def test_the_students_shape_goes_into_int8(run: RunFolder, tmp_path: Path) -> None:
    pieces = [read_pieces(path) for path in run.subwords]
    for name, path in zip(SUBWORDS, run.subwords, strict=True):
        (tmp_path / name).write_bytes(path.read_bytes())
    subwords = Subwords(run.subwords[0].read_bytes())
    model = Transformer(ModelSettings(preset="student"), subwords.size, subwords.size, joint=True)
    assert (len(model.encoder), len(model.decoder)) == (12, 2)
    write_model(model.eval(), pieces[0], pieces[1], 32, "int8", tmp_path)
    size = (tmp_path / "model.bin").stat().st_size
    assert size < 1.1 * sum(parameter.numel() for parameter in model.parameters())
    translator = load_translator(tmp_path, TextSides(subwords, subwords, False, 32))
    found = translator.translate(["one two", "", "three"], TranslationSettings(beam=1))
    assert [len(ranked) for ranked in found] == [1, 1, 1]


@pytest.mark.slow
def test_an_export_needs_no_run(exported: Path, run: RunFolder, tmp_path: Path) -> None:
    """Line in, line out, whatever goes in; and the same lines as without an export."""
    alone = tmp_path / "elsewhere"
    shutil.copytree(exported, alone)
    text = "\n".join([*ODD_LINES, "no final newline"]).encode() + b" \xff\xfe"
    outputs = [
        subprocess.run(
            dragoman_command("translate", *words), input=text, capture_output=True, check=True
        ).stdout
        for words in ([str(run.path)], [str(alone), "--engine", "ctranslate2"])
    ]
    assert outputs[0] == outputs[1]
    assert outputs[0].count(b"\n") == len(ODD_LINES) + 1


def test_quantized_is_smaller_and_reported_only(
    exported: Path, run: RunFolder, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    output = tmp_path / "int8"
    main(export_words(run, "--quantization", "int8", "--output", output))
    printed = capsys.readouterr().out
    assert "int8" in printed
    assert "checked on 120 pairs of valid" in printed
    sizes = [(folder / "model.bin").stat().st_size for folder in (exported, output)]
    assert sizes[1] < sizes[0]
    assert load_exported(output).translator.engine.compute_type == "int8_float32"
    # Quantizing scales its arrays in place: ours must not be among them.
    infos = [json.loads((folder / "dragoman.json").read_text()) for folder in (exported, output)]
    assert infos[0]["parity"]["own"] == infos[1]["parity"]["own"]


def test_disparity_is_refused_and_leaves_the_earlier_export(
    exported: Path,
    run: RunFolder,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    before = contents(exported)
    monkeypatch.setattr(
        ctranslate2_model,
        "sinusoids",
        lambda positions, d_model: sinusoids(positions + 1, d_model),
    )
    code, errors = refusal(capsys, *export_words(run))
    assert code == 1
    assert "99% are required: nothing was written" in errors
    assert contents(exported) == before
    assert [path.name for path in exported.parent.iterdir()] == ["ctranslate2"]
    main(export_words(run, "--no-check"))
    assert "not checked" in capsys.readouterr().out
    monkeypatch.undo()
    main(export_words(run))
    assert contents(exported).keys() == before.keys()


def contents(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.iterdir()}


@contextmanager
def files_no_larger_than(size: int) -> Iterator[None]:
    """As if the disk were full."""
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, limits[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)


def test_what_cannot_be_written_leaves_nothing(
    run: RunFolder, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    output = tmp_path / "out"
    with files_no_larger_than(20_000):
        code, errors = refusal(capsys, *export_words(run, "--no-check", "--output", output))
    assert code
    assert f"{output}: File too large" in errors
    assert not list(tmp_path.iterdir())


def test_only_exports_are_replaced(
    exported: Path, run: RunFolder, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    def refused(output: Path) -> str:
        before = contents(output) if output.is_dir() else {}
        code, errors = refusal(capsys, *export_words(run, "--no-check", "--output", output))
        assert code == 2
        assert not output.is_dir() or contents(output) == before
        return errors.splitlines()[-1]

    (tmp_path / "file").touch()
    assert "is a file" in refused(tmp_path / "file")
    (tmp_path / "photos").mkdir()
    (tmp_path / "photos" / "holiday.jpg").touch()
    assert "contains other files than an export" in refused(tmp_path / "photos")
    mine = tmp_path / "mine"
    shutil.copytree(exported, mine)
    (mine / "LICENSE").touch()
    assert "contains LICENSE, which Dragoman did not write" in refused(mine)
    (mine / "LICENSE").unlink()
    with open(mine / "README.md", "a") as card:
        card.write("MIT\n")
    assert "was edited after the export" in refused(mine)
    assert "Not a directory" in refused(tmp_path / "file" / "below")


@pytest.mark.slow
def test_a_folder_that_may_not_be_written(run: RunFolder, tmp_path: Path) -> None:
    locked = tmp_path / "locked"
    locked.mkdir(mode=0o555)
    command = dragoman_command(*export_words(run, "--no-check", "--output", locked / "x"))
    result = subprocess.run(without_privilege(command), capture_output=True, text=True)
    assert result.returncode == 2, result.stderr
    assert "Permission denied" in result.stderr
    assert "Traceback" not in result.stderr


@pytest.mark.parametrize(
    ("arguments", "line"),
    [
        (["export", "nowhere", "--to", "ctranslate2"], "nowhere: no run found there"),
        (["export", "RUN"], "the following arguments are required: --to"),
        (["export", "RUN", "--to", "onnx"], "invalid choice: 'onnx'"),
        (["export", "RUN", "--to", "ctranslate2", "--quantization", "int4"], "invalid choice"),
        (["export", "RUN", "--to", "ctranslate2", "--checkpoint", "7"], "choose best, latest or"),
        (["export", "RUN", "--to", "ctranslate2", "--average", "9"], "--average 9: "),
        (["export", "RUN", "--to", "ctranslate2", "--average", "0"], "must be at least 1"),
        (["export", "RUN", "--to", "ctranslate2", "--check-pairs", "0"], "must be at least 1"),
        (["translate", "RUN", "--engine", "ctranslate2"], "RUN has no export; create one with: "),
        (["translate", "RUN", "--engine", "ctranslate2", "--average", "2"], "--average: "),
    ],
)
def test_wrong_requests_are_one_line(
    run: RunFolder,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    arguments: list[str],
    line: str,
    capsys: pytest.CaptureFixture[str],
) -> None:
    shutil.copytree(run.path, tmp_path / "RUN", ignore=shutil.ignore_patterns("export"))
    monkeypatch.chdir(tmp_path)
    code, errors = refusal(capsys, *arguments)
    assert code == 2
    assert line in errors.splitlines()[-1]


def test_damage_is_named(
    exported: Path,
    run: RunFolder,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    cut = tmp_path / "cut"
    shutil.copytree(exported, cut)
    with open(cut / "model.bin", "r+b") as model:
        model.truncate(1_000)
    _, errors = refusal(capsys, "translate", cut, "--engine", "ctranslate2")
    assert "cut is damaged: model.bin has 1,000 bytes, not " in errors
    (cut / "dragoman.json").write_text("{")
    _, errors = refusal(capsys, "translate", cut, "--engine", "ctranslate2")
    assert "dragoman.json is damaged" in errors
    empty = tmp_path / "empty"
    shutil.copytree(run.path, empty, ignore=shutil.ignore_patterns("export", "checkpoints"))
    _, errors = refusal(capsys, "export", empty, "--to", "ctranslate2")
    assert "has no checkpoint yet" in errors
    monkeypatch.setattr("dragoman.errors.find_spec", lambda _: None)
    translate = ["translate", str(exported), "--engine", "ctranslate2"]
    for words in (export_words(run), translate):
        code, errors = refusal(capsys, *words)
        assert code == 2
        assert errors.startswith("dragoman: ctranslate2 is not installed: in the checkout, pip ")


@pytest.mark.slow
def test_help_is_light() -> None:
    code = (
        "import sys\nfrom dragoman.cli import main\n"
        "try: main(['export', '--help'])\nexcept SystemExit: pass\n"
        "assert not {'torch', 'ctranslate2', 'numpy'} & set(sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", code], capture_output=True).returncode == 0
