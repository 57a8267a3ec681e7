import re
import subprocess
import sys
from pathlib import Path

import pytest

from dragoman.config_file import ConfigError, dump_config, flatten, load_config, load_saved_config
from dragoman.errors import UserError
from dragoman.settings_page import EXAMPLES, render_settings
from support import refusal

MINIMAL = """
[corpus]
folder = "prepared"
train = [{ source = "train.en", target = "train.de" }]
[training]
steps = 10
"""


@pytest.fixture
def config_path(tmp_path: Path) -> Path:
    path = tmp_path / "config.toml"
    path.write_text(MINIMAL)
    return path


def problems_of(path: Path, text: str = "", overrides: tuple[str, ...] = ()) -> tuple[str, ...]:
    path.write_text(MINIMAL + text)
    with pytest.raises(ConfigError) as caught:
        load_config(path, overrides)
    return tuple(problem.words for problem in caught.value.problems)


def test_paths_are_relative_to_the_config_file(config_path: Path) -> None:
    config = load_config(config_path)
    assert config.corpus.folder == str(config_path.parent / "prepared")
    assert config.corpus.train[0].source == str(config_path.parent / "train.en")


def test_absolute_paths_stay(config_path: Path) -> None:
    config = load_config(config_path, ["corpus.folder='/data/prepared'"])
    assert config.corpus.folder == "/data/prepared"


def test_overrides_take_toml_values_and_bare_words(config_path: Path) -> None:
    config = load_config(
        config_path,
        ["vocabulary.size=4_000", "vocabulary.kind=unigram", "cleaning.max_length_ratio=3"],
    )
    assert config.vocabulary.size == 4000
    assert config.vocabulary.kind == "unigram"
    assert config.cleaning.max_length_ratio == 3.0
    assert isinstance(config.cleaning.max_length_ratio, float)


def test_all_problems_are_reported_at_once(config_path: Path) -> None:
    problems = problems_of(
        config_path,
        '[vocabulary]\nsise = 100\nkind = "wordpiece"\n[cleaning]\nmax_words = 0\n'
        "drop_duplicates = 1\n[trainnig]\n",
        ("cleaning.max_tokens=many words",),
    )
    assert len(problems) == 6
    text = "\n".join(problems)
    assert "vocabulary.sise: unknown setting; did you mean vocabulary.size?" in text
    assert 'vocabulary.kind must be one of "bpe", "unigram", not "wordpiece"' in text
    assert "cleaning.max_words must be at least 1, not 0" in text
    assert "cleaning.drop_duplicates must be true or false, not 1" in text
    assert "trainnig: unknown section" in text
    assert "override 'cleaning.max_tokens=many words'" in text


@pytest.mark.parametrize(
    ("override", "problem"),
    [
        ("vocabulary.size=true", "vocabulary.size must be a whole number, not true"),
        ("vocabulary.size=1.5", "vocabulary.size must be a whole number, not 1.5"),
        ("corpus.train=3", "corpus.train must be a list, not 3"),
        ("corpus.validation=[]", "corpus.validation must be a table, not []"),
        ("batches.tokens_per_step=1000", "is not a multiple of batches.row_tokens = 128; 896 is"),
        ("batches.row_tokens=64", "cannot hold pairs of cleaning.max_tokens = 128"),
        ("schedule.peak=0.1", "schedule.peak has no effect on the transformer schedule"),
        ("schedule.kind=cosine", "training.steps = 10 leaves no room after"),
        ("training.patience=3", "training.patience needs a validation set"),
        ("training.patience_metric=bleu", "has no effect without training.patience"),
        ("evaluation.beam=4", "evaluation.beam has no effect without a validation set"),
        ("batches.rows_per_device=some", 'must be a whole number or "auto", not "some"'),
        ("vocabulary=3", "override 'vocabulary=3': write section.setting=value"),
        ("cleaning.max_length_ratio=nan", "max_length_ratio must be a finite number, not nan"),
        ("cleaning.max_length_ratio=0", "cleaning.max_length_ratio must be at least 1, not 0"),
        ("cleaning.max_tokens=0", "cleaning.max_tokens must be at least 2, not 0"),
        ("schedule.scale=inf", "schedule.scale must be a finite number, not inf"),
        ("translation.beam=100_000", "translation.beam must be at most 1,000"),
        ("training.seed=18446744073709551616", "at most 9,223,372,036,854,775,807, not 18,446"),
        (f"training.seed={'9' * 500}", "training.seed must be at most 9,223,372,036"),
        (f"training.seed={'9' * 5_000}", "training.seed must be a whole number"),
        (f"training.seed={'[' * 20_000}", "is not a TOML value"),
        ("training.seed=1979-05-27", "must be a whole number, not 1979-05-27"),
        ("distributed.timeout_seconds=1e10", "timeout_seconds must be at most 31,536,000"),
        ('vocabulary.source_model="x"', "vocabulary.source_model needs joint = false"),
        ('corpus.test={t={source="a"}}', "corpus.test.t.target is missing"),
        ('corpus.test={"a/b"={tsv="a"}}', "a name may only contain letters"),
        ('corpus.train=[{source="a",target="b",tsv="c"}]', "needs either source and target, or"),
    ],
)
def test_bad_values_are_named(config_path: Path, override: str, problem: str) -> None:
    assert any(problem in line for line in problems_of(config_path, overrides=(override,)))


@pytest.mark.parametrize(
    ("content", "problem"),
    [
        (b"[corpus", "not valid TOML"),
        (rb'folder = "C:\Users\me"', "write paths with / or in '...'"),
        (b"\xff\xfe", "is not UTF-8 text"),
        (b"a = " + b"9" * 5_000, "not valid TOML"),
        (b"a = " + b"[" * 20_000, "not valid TOML"),
    ],
)
def test_broken_files_are_named(config_path: Path, content: bytes, problem: str) -> None:
    config_path.write_bytes(content)
    with pytest.raises(UserError, match=problem):
        load_config(config_path)


def test_a_byte_order_mark_is_passed_over(config_path: Path) -> None:
    plain = load_config(config_path)
    config_path.write_bytes(b"\xef\xbb\xbf" + config_path.read_bytes())
    assert load_config(config_path) == plain


def test_dump_is_read_back_as_the_same_config(config_path: Path, tmp_path: Path) -> None:
    config = load_config(
        config_path,
        ['corpus.test={"\N{MATHEMATICAL DOUBLE-STRUCK SMALL T}"={tsv="we\\"ird \\u007f ü.tsv"}}']
        + ["cleaning.max_words=7"],
    )
    copy = tmp_path / "elsewhere.toml"
    copy.write_text(dump_config(config), encoding="utf-8")
    assert load_saved_config(copy) == config
    assert flatten(config)["cleaning.max_words"] == 7


def test_the_tokenizer_of_test_sets_needs_no_validation_set(config_path: Path) -> None:
    overrides = ['corpus.test={t={tsv="t.tsv"}}', "evaluation.bleu_tokenize=zh"]
    assert load_config(config_path, overrides).evaluation.bleu_tokenize == "zh"


@pytest.mark.slow
def test_command_line_reports_problems_without_torch(config_path: Path) -> None:
    config_path.write_text(MINIMAL + "[vocabulary]\nsise = 1\n")
    script = (
        "import sys\nfrom dragoman.cli import main\n"
        "try: main(sys.argv[1:])\n"
        "finally: assert 'torch' not in sys.modules and 'numpy' not in sys.modules"
    )
    for arguments, code in ((["prepare", str(config_path)], 2), (["--help"], 0)):
        result = subprocess.run(
            [sys.executable, "-c", script, *arguments], capture_output=True, text=True
        )
        assert result.returncode == code, result.stderr
        assert "Traceback" not in result.stderr


def test_missing_config_is_one_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code, errors = refusal(capsys, "prepare", tmp_path / "none.toml")
    assert code == 2
    assert errors == f"dragoman: {tmp_path}/none.toml: no such config file\n"


def test_settings_page_is_current() -> None:
    page = Path(__file__).parents[1] / "docs" / "settings.md"
    assert page.read_text() == render_settings(), "run `make docs`"


def test_required_settings_and_examples_of_the_page_are_real(config_path: Path) -> None:
    required = re.findall(r"^\| `(\w+)` \| required \|", render_settings(), re.MULTILINE)
    config_path.write_text("")
    with pytest.raises(ConfigError) as caught:
        load_config(config_path)
    missing = [problem.words.split(" is missing")[0] for problem in caught.value.problems]
    assert missing == [f"corpus.{name}" for name in required]
    for example in EXAMPLES.values():
        config_path.write_text(example.replace("```toml", "").replace("```", ""))
        assert set(load_config(config_path).corpus.test) == {"news"}
