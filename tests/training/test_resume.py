import shutil
from dataclasses import asdict
from pathlib import Path

import pytest

from dragoman.config_file import load_config
from dragoman.corpus.store import PreparedCorpus
from dragoman.documents import parse
from dragoman.errors import UserError
from dragoman.runs.folder import RunFolder
from dragoman.runs.metrics_reader import highest_steps
from dragoman.training.opening import note_machines
from dragoman.training.parts import check_corpus_settings
from dragoman.training.progress import Progress
from support import SMALL, refusal


def test_progress_survives_a_round_trip() -> None:
    progress = Progress(step=7, seconds=1.5)
    assert parse(Progress, asdict(progress)) == progress


def test_a_text_that_was_not_prepared_is_refused(prepared: Path) -> None:
    config = prepared / "config.toml"
    one = '{ source = "train.en", target = "train.de" }'
    config.write_text(config.read_text().replace(one, f'{one}, {{ tsv = "more.tsv" }}'))
    loaded = load_config(config, SMALL)
    with pytest.raises(UserError, match=r"train.en, train.de, more.tsv; run `dragoman prepare`"):
        check_corpus_settings(loaded, PreparedCorpus(Path(loaded.corpus.folder)))


@pytest.mark.parametrize(
    ("override", "problem"),
    [
        ("corpus.seed=7", "corpus.seed = 7, not 1"),
        ("corpus.source_language=fr", "corpus.source_language = 'fr', not 'en'"),
        (
            'corpus.validation={other = {source = "valid.en", target = "valid.de"}}',
            "corpus.validation was valid: valid.en, valid: valid.de; the config now has other",
        ),
        ("corpus.test={}", "the config now has nothing; run `dragoman prepare`"),
    ],
)
def test_a_corpus_of_other_settings_is_refused(prepared: Path, override: str, problem: str) -> None:
    config = load_config(prepared / "config.toml", [*SMALL, override])
    with pytest.raises(UserError) as caught:
        check_corpus_settings(config, PreparedCorpus(prepared / "prepared"))
    assert problem in str(caught.value)


def test_training_refuses_a_corpus_with_a_flipped_bit(
    prepared: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tokens,) = prepared.glob("prepared/corpus-*/train.target.tokens")
    content = bytearray(tokens.read_bytes())
    content[100] ^= 1
    tokens.write_bytes(content)
    config = prepared / "config.toml"
    code, errors = refusal(capsys, "train", config, "--run", prepared / "run", *SMALL)
    problem = "the checksum of train.target.tokens does not match; run `dragoman prepare` again"
    assert errors == f"dragoman: {tokens.parent} is damaged: {problem}\n"
    assert code == 2
    assert not (prepared / "run").exists()


@pytest.mark.parametrize(
    ("provenance", "problem"),
    [
        ("", "is damaged: .*; restore it, or start a new run with --run"),
        ("[]", "is damaged: .*; restore it, or start a new run with --run"),
        (
            '{"format": 2, "machines": {}, "corpus": {"identity": ""}}',
            "has format 2, this Dragoman reads 1; use the one that wrote it",
        ),
    ],
)
def test_a_run_of_unknown_provenance_does_not_go_on(
    tmp_path: Path, provenance: str, problem: str
) -> None:
    run = RunFolder(tmp_path)
    run.provenance.write_text(provenance)
    with pytest.raises(UserError, match=problem):
        note_machines(run, {})


def test_lines_of_a_history_that_make_no_sense_are_passed_over(tmp_path: Path) -> None:
    lines = ['{"kind": "train", "step": 7}', '{"kind": "train"}', '{"kind": "train", "step": "x"}']
    path = tmp_path / "metrics.jsonl"
    path.write_text("\n".join([*lines, '{"kind": "train", "st']))
    assert highest_steps(path) == {"train": 7, "eval": 0}


def test_a_prepared_corpus_may_move_without_its_texts(prepared: Path, tmp_path: Path) -> None:
    for name in ("prepared", "config.toml"):
        shutil.move(prepared / name, tmp_path / name)
    config = load_config(tmp_path / "config.toml", SMALL)
    check_corpus_settings(config, PreparedCorpus(tmp_path / "prepared"))
