import json
import os
import re
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from dragoman.config_file import load_config
from dragoman.corpus import inputs
from dragoman.corpus.demo import write_demo
from dragoman.corpus.inputs import find_inputs, fingerprint_of
from dragoman.corpus.manifest import PairCounts
from dragoman.corpus.prepare import BUILDING, DROPPED, INSPECTED, prepare
from dragoman.corpus.rows import pack
from dragoman.corpus.store import PreparedCorpus
from dragoman.errors import UserError
from dragoman.training.parts import check_corpus_settings
from support import (
    PATIENCE,
    dragoman_command,
    number_pairs,
    refusal,
    run_dragoman,
    without_privilege,
    write_lines,
    write_numbers,
)


def prepared(folder: Path, *overrides: str, processes: int = 1) -> PreparedCorpus:
    config = load_config(folder / "config.toml", overrides)
    prepare(config, processes)
    return PreparedCorpus(Path(config.corpus.folder))


def text_of(corpus: PreparedCorpus) -> list[tuple[str, str]]:
    source, target = corpus.subwords()
    pairs = range(len(corpus.train))
    return list(
        zip(
            source.decode([corpus.train.source.line(index).tolist() for index in pairs]),
            target.decode([corpus.train.target.line(index).tolist() for index in pairs]),
            strict=True,
        )
    )


def test_every_pair_is_there_once_and_shuffled(small_text: Path) -> None:
    corpus = prepared(small_text)
    original = list(zip(*number_pairs(10_000, 600), strict=True))
    assert sorted(text_of(corpus)) == sorted(original)
    assert text_of(corpus) != original
    assert len(corpus.train) == 600
    assert corpus.train.source.tokens.dtype == np.uint16


@pytest.mark.slow
def test_outcome_does_not_depend_on_processes_but_on_the_seed(small_text: Path) -> None:
    one = prepared(small_text, "corpus.folder='one'")
    two = prepared(small_text, "corpus.folder='two'", processes=2)
    other = prepared(small_text, "corpus.folder='other'", "corpus.seed=2")
    assert one.identity == two.identity
    assert one.identity != other.identity
    assert sorted(text_of(one)) == sorted(text_of(other))


def test_a_folder_of_others_is_refused(small_text: Path) -> None:
    with pytest.raises(UserError, match="small is not empty and is not a prepared corpus"):
        prepared(small_text, "corpus.folder='.'")
    assert (small_text / "config.toml").is_file()


def test_mistakes_in_small_sets_are_found_before_the_large_text_is_worked_on(
    small_text: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    write_lines(small_text / "test.de", ["nur eine"])
    with pytest.raises(UserError, match=r"test\.de"):
        prepared(small_text)
    assert "cleaning" not in capsys.readouterr().err


def test_a_corpus_that_is_there_can_be_asked_for_by_those_who_may_only_read(
    small_text: Path,
) -> None:
    before = prepared(small_text)
    (before.folder / ".lock").unlink()
    assert prepared(small_text).identity == before.identity
    assert not (before.folder / ".lock").exists(), "nothing is written"


def test_what_others_keep_in_its_folder_stays(small_text: Path) -> None:
    folder = small_text / "prepared"
    prepared(small_text)
    for name in ("corpus-raw", "building"):
        (folder / name).mkdir(parents=True)
        (folder / name / "notes.txt").write_text("mine")
    prepared(small_text, "corpus.seed=2")
    assert [(folder / name / "notes.txt").read_text() for name in ("corpus-raw", "building")] == [
        "mine",
        "mine",
    ]
    assert len(list(folder.glob("corpus-*"))) == 2, "the text of others and the corpus in force"


def test_a_text_under_a_new_name_is_not_prepared_again(
    small_text: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    before = prepared(small_text)
    (small_text / "train.en").rename(small_text / "renamed.en")
    config = small_text / "config.toml"
    config.write_text(config.read_text().replace("train.en", "renamed.en"))
    after = prepared(small_text)
    assert "nothing to do" in capsys.readouterr().err
    assert after.identity == before.identity
    check_corpus_settings(load_config(config), after)


def test_counts_of_filters_add_up(small_text: Path) -> None:
    source, target = number_pairs(10_000, 50)
    odd = [("", "leer"), ("bell\x07", "x"), ("a " * 81, "b"), ("one", "b " * 10), ("x", "x")]
    odd += [(source[0], target[0])] * 3 + [("seven " * 40, "sieben " * 40)]
    write_lines(small_text / "train.en", source + [pair[0] for pair in odd])
    write_lines(small_text / "train.de", target + [pair[1] for pair in odd])
    corpus = prepared(
        small_text,
        "cleaning.drop_identical=true",
        "cleaning.max_tokens=30",
        "vocabulary.size=290",
    )
    manifest = corpus.manifest
    assert manifest.filters == {
        "invalid_utf8": 0,
        "empty_side": 1,
        "control_characters": 1,
        "too_many_words": 1,
        "length_ratio": 1,
        "identical_sides": 1,
        "duplicate": 3,
        "too_many_tokens": 1,
    }
    assert sum(manifest.filters.values()) + manifest.pairs.prepared == 59
    assert manifest.pairs == PairCounts(raw=59, prepared=50)
    for side, name in (("source", "en"), ("target", "de")):
        lengths = np.diff(getattr(corpus.train, side).offsets)
        assert manifest.tokens[side] == lengths.sum()
        histogram = manifest.length_histogram
        bars = np.bincount(lengths // histogram.tokens_per_bar)
        assert list(getattr(histogram, side)) == bars.tolist()
        assert bars.sum() == 50
        assert manifest.bytes[side].raw == (small_text / f"train.{name}").stat().st_size
        kept_bytes = sum(len(line.encode()) + 1 for line in (source, target)[name == "de"])
        assert manifest.bytes[side].cleaned == kept_bytes


def test_invalid_utf8_is_skipped_on_request(small_text: Path) -> None:
    with open(small_text / "train.en", "ab") as file:
        file.write(b"caf\xe9\n")
    with open(small_text / "train.de", "ab") as file:
        file.write(b"Kaffee\n")
    corpus = prepared(small_text, "cleaning.invalid_utf8=skip")
    assert corpus.manifest.filters["invalid_utf8"] == 1
    assert len(corpus.train) == 600


def test_evaluation_sets_keep_every_line_as_it_is(small_text: Path) -> None:
    write_lines(
        small_text / "valid.en", ["one\u2019s", "", "two\rthree", "seven " * 200, " blank "]
    )
    write_lines(small_text / "valid.de", ["eins", "leer", "zwei drei", "", "blank\u2028x"])
    corpus = prepared(small_text, "cleaning.normalize_punctuation=true")
    (valid,) = corpus.evaluation_sets("validation")
    assert valid.source == ("one\u2019s", "", "two\rthree", "seven " * 200, " blank ")
    assert valid.target == ("eins", "leer", "zwei drei", "", "blank\u2028x")
    assert len(valid.tokens) == 5
    source, _ = corpus.subwords()
    assert source.decode([valid.tokens.source.line(0).tolist()]) == ["one's"]
    assert [test.name for test in corpus.evaluation_sets("test")] == ["test"]


def test_two_vocabularies_and_given_models(small_text: Path) -> None:
    corpus = prepared(small_text, "vocabulary.joint=false", "vocabulary.size=295")
    source, target = corpus.subwords()
    assert source.encode(["seven"]) != target.encode(["seven"])
    data = corpus.folder / corpus.manifest.data
    for side in ("source", "target"):
        shutil.copy(data / f"subwords.{side}.model", small_text / f"{side}.model")
    again = prepared(
        small_text,
        "corpus.folder='again'",
        "vocabulary.joint=false",
        "vocabulary.size=32_768",  # As if it were not in the config.
        "vocabulary.source_model='source.model'",
        "vocabulary.target_model='target.model'",
    )
    assert again.identity == corpus.identity


@pytest.mark.slow
def test_second_run_does_nothing_and_changes_rebuild(small_text: Path) -> None:
    config = small_text / "config.toml"
    first = run_dragoman("prepare", config)
    assert first.returncode == 0, first.stderr
    manifest = small_text / "prepared" / "manifest.json"
    made = manifest.stat().st_mtime_ns
    second = run_dragoman("prepare", config)
    assert "is up to date" in second.stderr
    assert first.stdout.startswith(second.stdout), "what is wrong with the text was told before"
    assert manifest.stat().st_mtime_ns == made
    assert run_dragoman("prepare", config, "cleaning.max_words=60").returncode == 0
    assert manifest.stat().st_mtime_ns != made
    with (
        open(small_text / "train.en", "a") as english,
        open(small_text / "train.de", "a") as german,
    ):
        english.write("nine nine\n")
        german.write("neun neun\n")
    assert run_dragoman("prepare", config).returncode == 0
    assert json.loads(manifest.read_text())["pairs"]["raw"] == 601
    assert len(list((small_text / "prepared").glob("corpus-*"))) == 1


def _cut_target(folder: Path) -> None:
    write_lines(folder / "train.de", ["nur eine"])


def _latin1(folder: Path) -> None:
    (folder / "train.de").write_bytes("für\n".encode("latin-1") * 600)


def _latin1_set(folder: Path) -> None:
    (folder / "valid.de").write_bytes("für\n".encode("latin-1") * 20)


def _empty(folder: Path) -> None:
    for side in ("en", "de"):
        (folder / f"train.{side}").write_text("")


def _all_filtered(folder: Path) -> None:
    for side in ("en", "de"):
        (folder / f"train.{side}").write_text("\n" * 5)


def _not_gzip(folder: Path) -> None:
    (folder / "train.en.gz").write_text("plain text")


def _no_tab(folder: Path) -> None:
    write_lines(folder / "all.tsv", ["one\teins", "two zwei"])


def _long_words(folder: Path) -> None:
    for side in ("en", "de"):
        write_lines(folder / f"train.{side}", ["a" * 70_000])


def _nothing(folder: Path) -> None:
    pass


BAD_INPUT: list[tuple[str, Callable[[Path], None], list[str], str]] = [
    ("unequal", _cut_target, [], r"train\.de has 1 lines but .*train\.en has 600: parallel files"),
    ("latin1", _latin1, [], r"train\.de, line 1: byte 0xfc at column 2 is not UTF-8; convert"),
    ("latin1 set", _latin1_set, [], r"valid\.de, line 1: .* is not UTF-8; convert the file$"),
    ("empty", _empty, [], r"corpus\.train is empty: no lines"),
    ("filtered", _all_filtered, [], r"the filters removed all 5 pairs \(empty_side 5\)"),
    (
        "missing",
        lambda f: (f / "train.de").unlink(),
        [],
        r"corpus\.train\[0\]\.target: no such file",
    ),
    ("folder", _nothing, ["corpus.train=[{source='.',target='.'}]"], r"is a folder; name a file"),
    ("glob", _nothing, ["corpus.train=[{tsv='*.tsv'}]"], r"no file matches .*\*\.tsv"),
    (
        "gzip",
        _not_gzip,
        ["corpus.train=[{tsv='train.en.gz'}]"],
        r"cannot be decompressed \(Not a gzip",
    ),
    ("tab", _no_tab, ["corpus.train=[{tsv='all.tsv'}]"], r"all\.tsv, line 2: no tab"),
    ("vocabulary", _nothing, ["vocabulary.size=99999"], r"vocabulary\.size = 99999 .* at most \d+"),
    (
        "model",
        _nothing,
        ["vocabulary.model='train.en'", "vocabulary.size=32768"],
        r"train\.en is not a sentencepiece model",
    ),
    (
        "empty model",
        lambda f: (f / "empty").touch(),
        ["vocabulary.model='empty'", "vocabulary.size=32768"],
        r"empty is empty; name a sentencepiece model",
    ),
    ("huge", _nothing, ["vocabulary.size=3000000000"], r"at most 1,000,000, not 3,000,000,000$"),
    ("ratio", _nothing, [f"cleaning.max_length_ratio={10**400}"], r"must be a finite number"),
    (
        "words",
        _long_words,
        [],
        r"does not work for this text: every line is longer than 65,535",
    ),
    (
        "pipe",
        lambda f: os.mkfifo(f / "pipe"),
        ["corpus.train=[{tsv='pipe'}]"],
        r"corpus\.train\[0\]\.tsv: .*pipe is a pipe or a device; write",
    ),
    ("null", _nothing, ['corpus.folder="a\\u0000"'], r"corpus\.folder must be a path without null"),
    (
        "home",
        _nothing,
        ["corpus.folder='~nobody-here/x'"],
        r"corpus\.folder: no home folder for that user",
    ),
    (
        "tokens",
        _nothing,
        ["cleaning.max_tokens=2"],
        r"removed all 600 pairs \(too_many_tokens 600\)",
    ),
    ("file", _nothing, ["corpus.folder='train.en'"], r"train\.en is a file, not a folder"),
    ("set", lambda f: write_lines(f / "valid.en", []), [], r"valid\.de has 20 lines but"),
    ("proc", _nothing, ["corpus.folder='/proc/x'"], r"/proc/x: No such file or directory"),
]


@pytest.mark.parametrize(
    ("damage", "overrides", "line"),
    [case[1:] for case in BAD_INPUT],
    ids=[case[0] for case in BAD_INPUT],
)
def test_bad_input_is_one_clear_line(
    small_text: Path,
    damage: Callable[[Path], None],
    overrides: list[str],
    line: str,
    capsys: pytest.CaptureFixture[str],
) -> None:
    damage(small_text)
    config = small_text / "config.toml"
    code, said = refusal(capsys, "prepare", config, "--processes", "1", *overrides)
    assert code == 2
    errors = [text for text in said.splitlines() if text.startswith("dragoman: ")]
    assert len(errors) == 1, said
    assert re.search(line, errors[0]), errors[0]
    assert not (small_text / "prepared" / "manifest.json").exists()
    assert not list(small_text.glob("prepared/corpus-*"))


@pytest.mark.slow
def test_no_write_permission_is_one_line(small_text: Path) -> None:
    locked = small_text / "locked"
    locked.mkdir(mode=0o555)
    command = dragoman_command("prepare", small_text / "config.toml", "corpus.folder='locked/here'")
    result = subprocess.run(without_privilege(command), capture_output=True, text=True)
    assert result.returncode == 2, result.stderr
    assert result.stderr == f"dragoman: {locked}/here: Permission denied\n"


@pytest.mark.slow
def test_full_disk_is_one_line_and_leaves_the_old_corpus(small_text: Path) -> None:
    disk = small_text / "disk"
    disk.mkdir()
    mounted = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=400k", "none", disk])
    if mounted.returncode:
        pytest.skip("cannot mount a small disk here")
    try:
        before = prepared(small_text, "corpus.folder='disk/prepared'").identity
        write_numbers(small_text, "train", 10_000, 8_000)
        result = run_dragoman(
            "prepare", small_text / "config.toml", "corpus.folder='disk/prepared'"
        )
        assert result.returncode == 1, result.stderr
        assert "No space left on device" in result.stderr.splitlines()[-1]
        assert "Traceback" not in result.stderr
        assert PreparedCorpus(disk / "prepared").identity == before
        assert not (disk / "prepared" / BUILDING).exists()
    finally:
        subprocess.run(["umount", disk], check=True)


# Prepares with another seed, and is killed so many changes to the folder after the n-th renaming.
# Python announces a change before it makes it.
KILLED_PREPARATION = """
import os, signal, sys
from pathlib import Path
from dragoman.config_file import load_config
from dragoman.corpus.prepare import prepare

path, seed, renamings, more = Path(sys.argv[1]), *map(int, sys.argv[2:])
config = load_config(path, [f"corpus.seed={seed}"])
renamed = since = 0

def note(event, arguments):
    global renamed, since
    names = [str(one) for one in arguments if isinstance(one, (str, Path))]
    if event.split(".")[0] not in ("open", "os", "shutil"):
        return
    if not any(name.startswith(config.corpus.folder) for name in names):
        return
    renamed, since = (renamed + 1, 0) if event == "os.rename" else (renamed, since + 1)
    if (renamed, since) == (renamings, more):
        os.kill(os.getpid(), signal.SIGKILL)

sys.addaudithook(note)
prepare(config, 1)
"""


@pytest.mark.slow
def test_killed_at_any_moment_it_leaves_the_old_or_the_new_corpus(small_text: Path) -> None:
    seed_of = {prepared(small_text, f"corpus.seed={seed}").identity: seed for seed in (2, 1)}
    folder, found = small_text / "prepared", []
    # The renamings: of the vocabulary, of the whole folder, and of the manifest.
    for renamings, more in ((0, 9), (1, 0), (2, 0), (2, 1), (3, 0), (3, 1)):
        other_seed = 3 - seed_of[PreparedCorpus(folder).identity]
        words = [small_text / "config.toml", other_seed, renamings, more]
        command = [sys.executable, "-c", KILLED_PREPARATION, *map(str, words)]
        process = subprocess.run(command, stderr=subprocess.DEVNULL, timeout=PATIENCE)
        assert process.returncode == -signal.SIGKILL
        found.append(seed_of[PreparedCorpus(folder).identity] == other_seed)
    assert found == [False] * 5 + [True]
    assert prepared(small_text, "corpus.seed=3").identity not in seed_of
    beside = {DROPPED, *INSPECTED}
    assert {path.name.split("-")[0] for path in folder.iterdir()} - beside == {
        ".lock",
        "manifest.json",
        "corpus",
    }


@pytest.mark.slow
def test_only_one_preparation_at_a_time(small_text: Path) -> None:
    import fcntl

    folder = small_text / "prepared"
    folder.mkdir()
    with open(folder / ".lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        result = run_dragoman("prepare", small_text / "config.toml")
    assert result.returncode == 2
    assert "another process is preparing it" in result.stderr


def test_real_sentences_survive_the_round_trip_and_fill_rows(tmp_path: Path) -> None:
    import unicodedata

    write_demo(tmp_path)
    config = tmp_path / "config.toml"
    config.write_text(
        """[corpus]
folder = "prepared"
train = [{ source = "train.en", target = "train.de" }]
validation.test = { source = "test.en", target = "test.de" }
[vocabulary]
size = 2_000
"""
    )
    corpus = prepared(tmp_path)
    (test,) = corpus.evaluation_sets("validation")
    for subwords, lines, tokens in zip(
        corpus.subwords(),
        (test.source, test.target),
        (test.tokens.source, test.tokens.target),
        strict=True,
    ):
        decoded = subwords.decode([tokens.line(index).tolist() for index in range(len(tokens))])
        assert decoded == [unicodedata.normalize("NFC", line) for line in lines]
    rows = pack(corpus.train, row_tokens=128, begin=1)
    assert rows.pairs == len(corpus.train)
    assert rows.target_tokens / rows.target.size > 0.95


def test_every_file_is_on_the_disk_before_the_manifest_names_it(
    small_text: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    flushed, manifests = set(), []
    fsync, replace = os.fsync, Path.replace

    def note_flush(descriptor: int) -> None:
        flushed.add(os.fstat(descriptor).st_ino)
        fsync(descriptor)

    def note_manifest(path: Path, target: Path) -> Path:
        if target.name == "manifest.json":
            (data,) = target.parent.glob("corpus-*")
            needed = [path, target.parent, data, *data.iterdir()]
            manifests.append([path.name for path in needed if path.stat().st_ino not in flushed])
        return replace(path, target)

    monkeypatch.setattr(os, "fsync", note_flush)
    monkeypatch.setattr(Path, "replace", note_manifest)
    prepared(small_text)
    assert manifests == [[]]


def test_a_corpus_is_prepared_again_where_a_filter_takes_other_pairs_than_before(
    small_text: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = small_text / "config.toml"
    configs = [load_config(path, given) for given in ([], ["cleaning.drop_identical=true"])]
    now = [fingerprint_of(config, find_inputs(config)) for config in configs]
    monkeypatch.setattr(inputs, "_changed_filters", lambda *_: [])
    before = [fingerprint_of(config, find_inputs(config)) for config in configs]
    assert [one == other for one, other in zip(now, before, strict=True)] == [True, False]
