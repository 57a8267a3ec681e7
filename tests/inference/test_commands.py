"""`translate` and `evaluate`, on a run of a few steps; on a GPU it computes in bfloat16."""

import io
import re
import shutil
import subprocess
import sys
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path

import pytest
import torch

from dragoman.cli import main
from dragoman.config import CheckpointSettings, Precision
from dragoman.config_file import load_config
from dragoman.corpus.prepare import prepare
from dragoman.errors import UserError
from dragoman.inference import commands, decoder
from dragoman.inference.load import choose_checkpoints
from dragoman.inference.translate import Translator
from dragoman.model.precision import choose_precision, refuse_impossible
from dragoman.records import Scores
from dragoman.runs.checkpoint import Checkpoint, prune, write_checkpoint
from dragoman.runs.checkpoint_index import checkpoint_name
from dragoman.runs.folder import RunFolder
from dragoman.training.start import train
from support import SMALL, metrics, refusal, write_numbers

CONFIG = """\
[corpus]
folder = "prepared"
train = [{ source = "train.en", target = "train.de" }]
validation.news = { source = "news.en", target = "news.de" }
test.news = { source = "news.en", target = "news.de" }
test.talks = { source = "talks.en", target = "talks.de" }
[vocabulary]
size = 320
"""
PRECISION: Precision = "bfloat16" if torch.cuda.is_available() else "float32"


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("commands")
    for name, first, count in (("train", 1_000, 600), ("news", 5_000, 20), ("talks", 6_000, 10)):
        write_numbers(folder, name, first, count)
    (folder / "config.toml").write_text(CONFIG)
    config = load_config(folder / "config.toml", [*SMALL, f"training.precision={PRECISION}"])
    prepare(config, processes=1)
    train(config, str(folder / "run"))
    return folder / "run"


def test_evaluate_gives_the_numbers_of_training(
    run: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    main(
        [
            *("evaluate", str(run), "--set", "validation.news"),
            *("--checkpoint", "latest", "--beam", "1"),
        ]
    )
    printed = capsys.readouterr().out
    last = metrics(run, "eval")[-1]
    assert printed.startswith("validation.news: 20 pairs, ")
    assert printed.splitlines()[0].endswith(f", beam 1, {PRECISION}")
    assert f"loss  {last['loss']:.4f} " in printed
    assert f"BLEU  {last['bleu']:.2f} " in printed


def test_evaluate_does_not_need_the_subwords_of_the_corpus(
    run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["evaluate", "--set", "talks", "--checkpoint", "latest", "--beam", "1"]
    main([*words, str(run)])
    before = capsys.readouterr().out
    folder = shutil.copytree(run.parent, tmp_path / "copy")
    config = folder / "run" / "config.toml"
    config.write_text(config.read_text().replace(str(run.parent), str(folder)))
    prepare(load_config(folder / "config.toml", [*SMALL, "vocabulary.size=300"]), processes=1)
    main([*words, str(folder / "run")])
    assert capsys.readouterr().out == before


def test_weights_alone_are_enough_but_not_damaged_ones(
    run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    copy = shutil.copytree(run, tmp_path / "copy")
    for moments in copy.glob("checkpoints/*/optimizer.safetensors"):
        moments.unlink()
    main(["evaluate", str(copy), "--set", "validation.news"])
    assert "BLEU" in capsys.readouterr().out
    *others, last = sorted(copy.glob("checkpoints/*/weights.safetensors"))
    for damaged, remedy in (
        ([last], f"choose --checkpoint {int(others[0].parent.name[5:])}"),
        (others, "no other is intact"),
    ):
        for weights in damaged:
            weights.write_bytes(weights.read_bytes()[:-1])
        code, errors = refusal(capsys, "evaluate", copy, "--checkpoint", "latest")
        assert code == 2
        assert "is damaged: weights.safetensors has" in errors
        assert f"; {remedy}" in errors


def test_what_is_no_run_is_told_what_it_is(
    run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    copy = shutil.copytree(run, tmp_path / "runs/mine")
    (tmp_path / "exported").mkdir()
    (tmp_path / "other").mkdir()
    (tmp_path / "exported/dragoman.json").write_text("{}")
    for name, words in (
        ("mien", "mien: no run found there or at runs/mien; did you mean mine?"),
        ("exported", "exported is an export, not a run: add --engine ctranslate2"),
        ("other", "other is a folder, but not of a run: it has neither config.toml nor"),
    ):
        code, errors = refusal(capsys, "evaluate", name)
        assert code == 2
        assert words in errors
    (copy / "config.toml").unlink()
    code, errors = refusal(capsys, "translate", "mine")
    assert code == 2
    assert "runs/mine has no config.toml: put it back, from a copy or another machine" in errors


def test_text_that_is_not_utf8_is_translated_and_named(
    run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "text").write_bytes(b"one\ncaf\xe9\ntwo\n")
    monkeypatch.setattr("sys.stdin", open(tmp_path / "text"))
    monkeypatch.setattr("sys.stdout", io.TextIOWrapper(io.BytesIO()))
    main(["translate", str(run)])
    assert "line 2 is not valid UTF-8: \ufffd stands for" in capsys.readouterr().err


def test_utf16_is_refused(
    run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    text = tmp_path / "text"
    text.write_text("one\ntwo\n", encoding="utf-16")
    advice = "is UTF-16: convert it with `iconv -f utf-16 -t utf-8`"
    monkeypatch.setattr("sys.stdin", open(text))
    monkeypatch.setattr("sys.stdout", io.TextIOWrapper(io.BytesIO()))
    code, errors = refusal(capsys, "translate", run)
    assert (code, f"standard input {advice}" in errors) == (2, True), errors
    code, errors = refusal(capsys, "translate", run, "--input", text, "--output", tmp_path / "out")
    assert (code, f"{text} {advice}" in errors) == (2, True), errors


@pytest.mark.parametrize(
    ("text", "groups"),
    [
        (b"", []),
        (b"\n", [[""]]),
        (b"\xef\xbb\xbfone\r\ntwo\n", [["one", "two"]]),
        (b"one\n\ntwo\n\nthree", [["one", "", "two"], ["", "three"]]),
    ],
)
def test_every_line_is_translated_without_a_byte_order_mark(
    run: Path,
    tmp_path: Path,
    text: bytes,
    groups: list[list[str]],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    seen: list[list[str]] = []

    def note(_: Translator, lines: list[str], *__: object) -> list[object]:
        seen.append(lines)
        return []

    monkeypatch.setattr(Translator, "translate", note)
    monkeypatch.setattr(decoder, "LINES_AT_ONCE", 3)
    (tmp_path / "text").write_bytes(text)
    monkeypatch.setattr("sys.stdin", open(tmp_path / "text"))
    monkeypatch.setattr("sys.stdout", io.TextIOWrapper(io.BytesIO()))
    main(["translate", str(run)])
    assert seen == groups


@pytest.mark.slow
def test_a_line_is_answered_before_the_next_one_comes(run: Path) -> None:
    command = [sys.executable, "-m", "dragoman", "translate", str(run)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdin
        assert process.stdout
        for line in (b"one\n", b"two\n"):
            process.stdin.write(line)
            process.stdin.flush()
            assert process.stdout.readline().endswith(b"\n")


def test_a_broken_vocabulary_is_named(
    run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    copy = shutil.copytree(run, tmp_path / "copy")
    (copy / "source.model").write_bytes(b"junk")
    _, message = refusal(capsys, "translate", copy)
    assert "copy is damaged: source.model has 4 bytes, not " in message


def test_translations_of_the_chosen_sets_are_kept(
    run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    output = tmp_path / "new" / "folder"
    words = ["evaluate", str(run), "--beam", "1", "--output", str(output)]
    main([*words, "--set", "validation.news", "--set", "talks"])
    assert re.findall(r"^(\S+): .*, (\w+)$", capsys.readouterr().out, re.MULTILINE) == [
        ("validation.news", PRECISION),
        ("talks", PRECISION),
    ]
    lines = {path.name: path.read_text().count("\n") for path in output.iterdir()}
    assert lines == {"validation.news.txt": 20, "talks.txt": 10}


@pytest.mark.parametrize(
    ("words", "line"),
    [
        (["evaluate", "--set", "new"], "--set new: choose from test.news, test.talks, validation."),
        (["evaluate", "--set", "news"], "--set news: choose from test.news, validation.news"),
        (["evaluate", "--set", "news", "--source", "x", "--reference", "x"], "give only one"),
        (["evaluate", "--average", "2", "--checkpoint", "8"], "not allowed with argument"),
        (["translate", "--length-penalty", "-1"], "--length-penalty -1: must be at least 0"),
        (["translate", "--length-penalty", "200"], "must be at least 0 and at most 10"),
        (["translate", "--checkpoint", "²"], "--checkpoint ²: choose best, latest or one of the"),
        (["translate", "--length-penalty", "nan"], "--length-penalty nan: must be at least 0"),
        (["translate", "--batch-tokens", "0"], "--batch-tokens 0: must be at least 1"),
        (["translate", "--engine", "ctranslate2", "--precision", "float16"], "--quantization ..."),
    ],
)
def test_wrong_requests_are_one_line(
    run: Path, words: list[str], line: str, capsys: pytest.CaptureFixture[str]
) -> None:
    code, errors = refusal(capsys, *words, run)
    assert code == 2
    assert line in errors.splitlines()[-1]


def test_everything_is_computed_in_the_precision_asked_for(
    run: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    entered: list[Precision] = []

    def note(precision: Precision, device: torch.device) -> AbstractContextManager[None]:
        entered.append(precision)
        return nullcontext()

    monkeypatch.setattr(commands, "arithmetic", note)
    monkeypatch.setattr(decoder, "refuse_impossible", lambda *_: None)
    main(["evaluate", str(run), "--set", "talks", "--precision", "float16"])
    assert entered == ["float16"] * 2, "the translations and the loss"
    assert "beam 4, float16\n" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("asked", "device", "chosen"),
    [
        (None, "cuda", "bfloat16"),
        (None, "cpu", "float32"),
        ("float32", "cuda", "float32"),
        ("float16", "cpu", "float16"),
    ],
)
def test_precision_is_the_runs_on_a_gpu(
    asked: Precision | None, device: str, chosen: Precision
) -> None:
    assert choose_precision(asked, "bfloat16", torch.device(device)) == chosen


@pytest.mark.parametrize(("code", "is_refused"), [(0, False), (-4, True)])
def test_a_precision_that_ends_the_process_is_refused(
    code: int, is_refused: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    tried: list[str] = []

    def run(words: list[str], **_: object) -> subprocess.CompletedProcess[bytes]:
        tried.append(words[-1])
        return subprocess.CompletedProcess(words, code)

    monkeypatch.setattr("dragoman.model.precision.subprocess.run", run)
    refuse_impossible("float32", torch.device("cpu"))
    refuse_impossible("bfloat16", torch.device("cuda"))
    assert not tried
    refused = pytest.raises(UserError, match="cannot compute in bfloat16: use float32")
    with refused if is_refused else nullcontext():
        refuse_impossible("bfloat16", torch.device("cpu"))
    assert "dtype=torch.bfloat16" in tried[0]


def test_the_mean_leaves_out_what_is_kept_for_its_score(tmp_path: Path) -> None:
    run = RunFolder(tmp_path)
    weights = {"weight": torch.zeros(1)}
    for step in range(1, 8):
        best = 50.0 if step == 2 else 10.0
        write_checkpoint(
            run.checkpoints, Checkpoint(step, weights, weights, {}, {}, Scores(None, None, best))
        )
        prune(run.checkpoints, CheckpointSettings(keep_latest=3))
    assert choose_checkpoints(run, "best", 1, keep_latest=3) == [checkpoint_name(2)]
    latest = [checkpoint_name(step) for step in (5, 6, 7)]
    assert choose_checkpoints(run, "best", 3, keep_latest=3) == latest
    # Even if more may be kept from now on.
    for keep_latest in (3, 5):
        prune(run.checkpoints, CheckpointSettings(keep_latest=keep_latest))
        with pytest.raises(
            UserError, match=r"--average 4: .* keeps only the latest 3 checkpoints; raise"
        ):
            choose_checkpoints(run, "best", 4, keep_latest)
