"""`dragoman augment`: pairs that the next config can read, made by real models."""

import gzip
import json
import tomllib
from itertools import pairwise
from pathlib import Path

import pytest
from sacrebleu.metrics.chrf import CHRF

from dragoman.cli import main
from dragoman.config_file import load_config
from dragoman.corpus.prepare import prepare
from dragoman.corpus.text import TextFiles, read_pairs
from dragoman.documents import parse
from dragoman.inference.augment import Augmented
from support import number_pairs, refusal, write_lines

ENGLISH, GERMAN = number_pairs(20_000, 150)
BACK = ["augment", "back-translate"]
DISTILL = ["augment", "distill"]
ONE_PROCESS = ["--processes", "1", "--part-lines", "60"]


def made(folder: Path) -> tuple[list[str], list[str]]:
    sides: tuple[list[str], list[str]] = ([], [])
    for chunk in read_pairs(TextFiles(folder / "pairs.tsv.zst", None), 1_000):
        for side, lines in zip(sides, chunk, strict=True):
            side += lines
    return sides


def translations(folder: Path) -> list[str]:
    """All that the model said."""
    parts = [part.read_text() for part in sorted((folder / "parts").glob("part-*"))]
    return [line.split("\t")[1] for part in parts for line in part.splitlines()]


def summary(folder: Path) -> Augmented:
    return parse(Augmented, json.loads((folder / "augment.json").read_text()))


@pytest.mark.slow
def test_back_translations_are_filtered_and_a_config_mixes_them_in(
    spelling_run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A run from English to German makes sources for a model from German to English."""
    text, folder = tmp_path / "mono.en.gz", tmp_path / "out"
    odd = ["", "one one one one one one", "tab\tone two"]
    lines = [*(line.encode() for line in [*ENGLISH, *odd]), b"\xff\xfe one"]
    text.write_bytes(gzip.compress(b"\n".join(lines) + b"\n"))
    command = [*BACK, str(spelling_run), "--input", str(text), "--output", str(folder)]
    main([*command, *ONE_PROCESS, "--temperature", "0.5"])
    shown = capsys.readouterr().out
    done = summary(folder)
    assert done.lines == len(lines)
    assert done.lines == done.pairs + sum(done.removed.values())
    assert done.removed["invalid_utf8"] == 1
    assert done.removed["empty"] >= 1
    assert f"{done.lines:,} lines, {done.pairs:,} pairs kept" in shown
    source, target = made(folder)
    assert len(source) == len(target) == done.pairs > 100
    assert set(target) <= {*ENGLISH, *odd, "tab one two"}
    said = dict(zip([*ENGLISH, *odd], translations(folder), strict=False))
    said["tab one two"] = said["tab\tone two"]
    assert [said[line] for line in target] == source
    # Other limits only filter anew.
    before = [path.stat().st_mtime_ns for path in sorted((folder / "parts").glob("part-*"))]
    main([*command, *ONE_PROCESS, "--temperature", "0.5", "--min-score", str(done.scores["50"])])
    assert "3 parts, 0 translated now, 3 already done" in capsys.readouterr().out
    assert [path.stat().st_mtime_ns for path in sorted((folder / "parts").glob("part-*"))] == before
    assert 0 < summary(folder).pairs < done.pairs
    (mixed,) = tomllib.loads((folder / "mix.toml").read_text())["corpus"]["train"]
    assert (mixed["tag"], mixed["name"], mixed["weight"]) == ("<bt>", "back-translated", 1.0)
    _is_read_by_prepare(tmp_path, (folder / "mix.toml").read_text().splitlines()[2])


def _is_read_by_prepare(folder: Path, entry: str) -> None:
    write_lines(folder / "true.de", GERMAN)
    write_lines(folder / "true.en", ENGLISH)
    (folder / "next.toml").write_text(
        '[corpus]\nfolder = "prepared"\nsource_language = "de"\ntarget_language = "en"\n'
        'train = [\n    { source = "true.de", target = "true.en", name = "true" },\n'
        f"{entry}\n]\n[vocabulary]\nsize = 320\n"
    )
    manifest = prepare(load_config(folder / "next.toml"), processes=1)
    assert manifest.pairs.prepared > len(ENGLISH)


@pytest.mark.slow
def test_distillation_takes_what_is_most_like_the_reference(
    spelling_run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    write_lines(tmp_path / "train.en", ENGLISH)
    write_lines(tmp_path / "train.de", GERMAN)
    folder, chrf = tmp_path / "out", CHRF()
    texts = ["--input", str(tmp_path / "train.en"), "--reference", str(tmp_path / "train.de")]
    main(
        [
            *DISTILL,
            str(spelling_run),
            *texts,
            "--output",
            str(folder),
            "--n-best",
            "3",
            *ONE_PROCESS,
        ]
    )
    done = summary(folder)
    assert done.likeness[0] < done.likeness[1]
    assert "likeness to the references" in capsys.readouterr().out
    source, target = made(folder)
    taken = dict(zip(source, target, strict=True))
    ranked = translations(folder)
    for place, (line, reference) in enumerate(zip(ENGLISH, GERMAN, strict=True)):
        like = [chrf.sentence_score(one, [reference]).score for one in ranked[3 * place :][:3]]
        if line in taken:
            assert chrf.sentence_score(taken[line], [reference]).score == max(like)
    (mixed,) = tomllib.loads((folder / "mix.toml").read_text())["corpus"]["train"]
    assert "tag" not in mixed
    (folder / "parts/part-00001.txt").write_text("no score\n")
    command = [*DISTILL, str(spelling_run), *texts, "--output", str(folder), "--n-best", "3"]
    code, errors = refusal(capsys, *command, *ONE_PROCESS)
    assert (code, "part-00001.txt is damaged: delete it" in errors) == (2, True), errors


def test_scores_are_sorted_into_quantiles(spelling_run: Path, tmp_path: Path) -> None:
    write_lines(tmp_path / "mono.en", ENGLISH[:60])
    words = [*BACK, str(spelling_run), "--input", str(tmp_path / "mono.en")]
    main([*words, "--output", str(tmp_path / "out"), "--mark", "", "--name", "more", *ONE_PROCESS])
    scores = [summary(tmp_path / "out").scores[per_cent] for per_cent in ("1", "5", "25", "50")]
    assert all(one <= other for one, other in pairwise(scores))
    (mixed,) = tomllib.loads((tmp_path / "out/mix.toml").read_text())["corpus"]["train"]
    assert "tag" not in mixed
    assert mixed["name"] == "more"


@pytest.mark.parametrize(
    ("words", "line"),
    [
        ([*BACK, "RUN", "--reference", "x"], "--reference only works with distill"),
        ([*BACK, "RUN", "--n-best", "4"], "--n-best only works with distill"),
        (
            [*BACK, "RUN", "--beam", "4", "--seed", "4"],
            "--seed only works with back-translate without",
        ),
        (
            [*BACK, "RUN", "--engine", "ctranslate2"],
            "does not support sampling; use --beam instead",
        ),
        ([*BACK, "RUN", "--mark", "bt"], "--mark bt: must be in angle brackets"),
        ([*BACK, "RUN", "--name", "a/b"], "--name a/b: may hold letters"),
        ([*BACK, "RUN", "--weight", "-1"], "--weight -1: must be at least 0"),
        ([*BACK, "RUN", "--max-length-ratio", "0.5"], "must be at least 1"),
        ([*BACK, "RUN", "--min-score", "nan"], "must be a finite number"),
        ([*BACK, "RUN", "--temperature", "0"], "--temperature 0: must be at least 0.01"),
        ([*BACK, "RUN", "--part-lines", "0"], "--part-lines 0: must be at least 1"),
        ([*BACK, "RUN", "--processes", "0"], "--processes 0: must be at least 1"),
        ([*BACK, "gone"], "no run"),
        ([*DISTILL, "RUN", "--top-k", "4"], "--top-k only works with back-translate"),
        ([*DISTILL, "RUN", "--by", "bleu"], "--by only works with --reference"),
        ([*DISTILL, "RUN", "--reference", "TEXT", "--n-best", "1"], "must be at least 2"),
        ([*DISTILL, "RUN", "--reference", "gone"], "--reference gone: no such file"),
        ([*DISTILL, "RUN", "--reference", "SHORT"], "references must match line by line"),
    ],
)
def test_wrong_requests_are_one_line(
    spelling_run: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    words: list[str],
    line: str,
) -> None:
    write_lines(tmp_path / "TEXT", ["one", "two"])
    write_lines(tmp_path / "SHORT", ["one"])
    places = {"RUN": spelling_run, "TEXT": tmp_path / "TEXT", "SHORT": tmp_path / "SHORT"}
    texts = ["--input", str(tmp_path / "TEXT"), "--output", str(tmp_path / "out")]
    code, errors = refusal(capsys, *(str(places.get(word, word)) for word in words), *texts)
    assert (code, line in errors) == (2, True), errors
    assert len(errors.splitlines()) == 1


def test_nothing_is_made_of_an_empty_text_nor_beside_other_files(
    spelling_run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    text, folder = tmp_path / "text", tmp_path / "out"
    text.write_text("")
    command = [*DISTILL, str(spelling_run), "--input", str(text), "--output", str(folder)]
    code, errors = refusal(capsys, *command)
    assert (code, errors.strip()) == (2, f"dragoman: --input {text} is empty")
    assert not folder.exists()
    write_lines(text, ["one"])
    folder.mkdir()
    (folder / "pairs.tsv.zst").write_text("precious")
    code, errors = refusal(capsys, *command)
    assert (code, "contains files that augment did not make" in errors) == (2, True), errors
    assert [path.name for path in folder.iterdir()] == ["pairs.tsv.zst"]
    assert (folder / "pairs.tsv.zst").read_text() == "precious"


@pytest.mark.slow
def test_missing_text_and_nothing_left_are_told(
    spelling_run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    command = [*BACK, str(spelling_run), "--output", str(tmp_path / "out"), *ONE_PROCESS]
    code, errors = refusal(capsys, *command, "--input", tmp_path / "gone")
    assert (code, "gone: no such file" in errors) == (2, True), errors
    write_lines(tmp_path / "text", ["", ""])
    code, errors = refusal(capsys, *command, "--input", tmp_path / "text")
    assert (code, "no pair of 2 passed the filters (2 empty)" in errors) == (2, True), errors
