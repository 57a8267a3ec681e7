"""The demo, as a newcomer runs it but shorter, and what can be done with its run afterwards.

`python benchmarks/demo.py` runs it as it is, and holds it to its score.
"""

import re
import subprocess
from pathlib import Path

import pytest

from dragoman.config_file import dump_config, load_config
from dragoman.demo import write_text_and_config
from support import dragoman_command, refusal, run_dragoman

pytestmark = pytest.mark.slow


# A quarter of the steps of a smaller model, which begins to learn what there is to learn.
SHORTER = [
    "model.encoder_layers=1",
    "model.decoder_layers=1",
    "model.d_model=128",
    "schedule.peak=4e-3",
    "schedule.warmup_steps=20",
    "schedule.decay_steps=50",
    "training.steps=90",
    "evaluation.every_steps=45",
    "evaluation.train_sample_pairs=20",
]


@pytest.fixture(scope="module")
def demo(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("demo") / "demo"
    config = write_text_and_config(folder)
    config.write_text(dump_config(load_config(config, SHORTER), with_defaults=False))
    result = run_dragoman("demo", "--folder", folder)
    assert result.returncode == 0, result.stderr
    (folder / "stdout").write_text(result.stdout)
    (folder / "stderr").write_text(result.stderr)
    return folder


def translate(folder: Path, text: bytes, *options: str) -> bytes:
    command = dragoman_command("translate", folder / "run", *options)
    return subprocess.run(command, input=text, capture_output=True, check=True).stdout


def test_it_learns_and_says_so(demo: Path) -> None:
    scores = re.findall(
        r"BLEU  (\d+\.\d+)   95% (\d+\.\d+) to (\d+\.\d+)", (demo / "stdout").read_text()
    )
    assert len(scores) == 1
    bleu, low, high = map(float, scores[0])
    assert bleu > 10
    assert low <= bleu <= high
    assert (demo / "stdout").read_text().count("\n\n  ") >= 10, "ten translations are shown"
    assert "What to try next" in (demo / "stderr").read_text()
    assert next(demo.glob("*/inspect.html")).is_file()
    assert "## Nothing is missing" in (demo / "run" / "report" / "report.md").read_text()
    assert "Is the model fully trained?" in (demo / "stdout").read_text()


def test_second_demo_repeats_nothing(demo: Path) -> None:
    result = run_dragoman("demo", "--folder", demo)
    assert result.returncode == 0
    assert "is up to date" in result.stderr
    assert "the run is complete" in result.stderr


def test_as_many_lines_come_out_whatever_goes_in(demo: Path) -> None:
    lines = [
        b"Ben has been learning Catalan for four years.",
        b"",
        b"   ",
        "😀 日本語 Ελληνικά \u2028 \u200b ▁".encode(),
        b"\xff\xfe broken bytes",
        b"windows line\r",
        b"a very long line " * 300,
        b"no final newline",
    ]
    out = translate(demo, b"\n".join(lines))
    assert out.count(b"\n") == len(lines)
    translations = out.decode().split("\n")
    assert "lernt seit " in translations[0]
    assert translations[1] == ""
    assert translations[2] == ""
    assert translate(demo, b"") == b""


def test_order_and_batching_change_no_translation(demo: Path) -> None:
    text = (demo / "text" / "test.en").read_bytes().splitlines()[:60]
    forward = translate(demo, b"\n".join(text)).splitlines()
    backward = translate(demo, b"\n".join(reversed(text))).splitlines()
    assert forward == backward[::-1]


def test_n_best_lists_have_falling_scores(demo: Path) -> None:
    out = translate(demo, b"It rained in Spain.\n", "--n-best", "6").decode().splitlines()
    scores = [float(line.split("\t")[0]) for line in out]
    assert len(out) == 6
    assert scores == sorted(scores, reverse=True)


@pytest.mark.parametrize(
    "choice", [["--checkpoint", "latest"], ["--average", "2"], ["--beam", "1"]]
)
def test_choices_of_weights_and_search(demo: Path, choice: list[str]) -> None:
    out = translate(demo, b"Ben has been learning Catalan for four years.\n", *choice).decode()
    assert "lernt seit " in out


def test_evaluate_given_files_equals_the_prepared_test_set(demo: Path) -> None:
    prepared = run_dragoman("evaluate", demo / "run", "--beam", "1")
    given = run_dragoman(
        *("evaluate", demo / "run", "--beam", "1", "--source", demo / "text/test.en"),
        *("--reference", demo / "text/test.de"),
    )
    assert prepared.returncode == given.returncode == 0
    assert prepared.stdout.splitlines()[1:] == given.stdout.splitlines()[1:]


@pytest.mark.parametrize(
    ("arguments", "line"),
    [
        (["translate", "nowhere"], "nowhere: no run found there or at runs/nowhere"),
        (["translate", "RUN", "--checkpoint", "7"], "choose best, latest or one of the steps"),
        (["translate", "RUN", "--average", "99"], "--average 99: "),
        (["translate", "RUN", "--beam", "0"], "--beam 0: must be at least 1"),
        (["augment", "distill", "RUN", "--name", " "], "argument --name: it is empty"),
        (["translate", "RUN", "--n-best", "0"], "--n-best 0: must be at least 1"),
        (["evaluate", "RUN", "--source", "x"], "--source and --reference must be given together"),
        (["evaluate", "RUN", "--source", "x", "--reference", "x"], "x: no such file"),
    ],
)
def test_wrong_requests_are_one_line(
    demo: Path, arguments: list[str], line: str, capsys: pytest.CaptureFixture[str]
) -> None:
    words = [str(demo / "run") if word == "RUN" else word for word in arguments]
    code, errors = refusal(capsys, *words)
    assert code == 2
    assert line in errors.splitlines()[-1]
