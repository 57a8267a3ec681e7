"""The recipes in configs/: all load, and those of WMT16 run but for the download.

The stand-in has the folders and file names that mtdata and tar make (docs/recipes.md), filled with
a little of the demo's text.
"""

import json
import os
import shutil
import subprocess
from pathlib import Path

import pytest
import torch

from dragoman.config import has_end
from dragoman.config_file import load_config
from dragoman.corpus.demo import write_demo
from dragoman.model.transformer import Transformer, count_parameters
from support import run_dragoman, write_lines

PROJECT = Path(__file__).resolve().parents[2]
CONFIGS = sorted((PROJECT / "configs").glob("*.toml"))
PAIRS = 1_500  # Of each training text.

# Sizes only: what is read, cleaned, scheduled and scored stays the recipe's.
SIZES = [
    "vocabulary.size=1000",
    "model.encoder_layers=1",
    "model.decoder_layers=1",
    "model.d_model=32",
    "model.heads=2",
    "model.feed_forward=64",
    "batches.tokens_per_step=1024",
    "training.steps=6",
    "evaluation.every_steps=3",
    "evaluation.train_sample_pairs=20",
    "evaluation.bleu_pairs=10",
    "checkpoints.every_steps=3",
]

# The recipes compute in bfloat16. Some virtual machines claim AMX, which oneDNN then uses for it,
# and kill the process that does (docs/troubleshooting.md).
WITHOUT_AMX = {"ONEDNN_MAX_CPU_ISA": "AVX512_CORE_BF16"}


@pytest.mark.parametrize("path", CONFIGS, ids=lambda path: path.stem)
def test_every_recipe_loads_and_ends(path: Path) -> None:
    config = load_config(path)
    assert has_end(config.training)
    assert config.corpus.validation, "a recipe is judged while it trains"
    assert config.corpus.test, "a recipe ends with a score"


@pytest.mark.parametrize("path", CONFIGS, ids=lambda path: path.stem)
def test_every_recipe_is_documented(path: Path) -> None:
    assert f"`{path.name}`" in (PROJECT / "docs/recipes.md").read_text()


@pytest.mark.parametrize(
    ("name", "parameters"), [("wmt16-base", 60_880_896), ("wmt16-big", 209_842_176)]
)
def test_parameters_are_those_documented(name: str, parameters: int) -> None:
    path = PROJECT / "configs" / f"{name}.toml"
    config = load_config(path)
    size = config.vocabulary.size
    with torch.device("meta"):
        model = Transformer(config.model, size, size, config.vocabulary.joint)
    assert count_parameters(model) == parameters
    for text in (path.read_text(), (PROJECT / "docs/recipes.md").read_text()):
        assert f"{parameters:,}" in text


def test_wmt16_paths_are_those_of_the_documented_commands() -> None:
    """Every file that the configs name is one that a command in docs/recipes.md makes."""
    commands = (PROJECT / "docs/recipes.md").read_text().split()
    for name in ("wmt16-base", "wmt16-big"):
        corpus = load_config(PROJECT / "configs" / f"{name}.toml").corpus
        for text in (*corpus.train, *corpus.validation.values(), *corpus.test.values()):
            for path in map(Path, (text.source, text.target)):
                made_by = path.stem if path.suffix in (".eng", ".deu") else path.parent.name
                assert any(made_by in word for word in commands), path


def demo_pairs(text: Path, part: str, start: int, count: int) -> tuple[list[str], list[str]]:
    source, target = (
        (text / f"{part}.{language}").read_text().splitlines()[start : start + count]
        for language in ("en", "de")
    )
    return source, target


@pytest.fixture(scope="module")
def stand_in(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A checkout with the recipes' configs and, where they look for it, a little text."""
    checkout = tmp_path_factory.mktemp("recipes")
    (checkout / "configs").mkdir()
    for path in CONFIGS:
        shutil.copy(path, checkout / "configs")
    text = checkout / "demo"
    write_demo(text)
    texts = {
        "europarl": demo_pairs(text, "train", 0, PAIRS),
        "commoncrawl": demo_pairs(text, "train", PAIRS, PAIRS),
        "news-commentary": demo_pairs(text, "train", 2 * PAIRS, PAIRS),
        "newstest-2013": demo_pairs(text, "validation", 0, 30),
        "newstest_deen-2014": demo_pairs(text, "test", 0, 30),
    }
    # A pair that Moses would drop, and one that it would keep, twice.
    texts["europarl"][0].extend(["too long " * 41, "Twice.", "Twice."])
    texts["europarl"][1].extend(["zu lang " * 41, "Zweimal.", "Zweimal."])
    corpus = load_config(checkout / "configs/wmt16-base.toml").corpus
    for text_files in (*corpus.train, *corpus.validation.values(), *corpus.test.values()):
        (name,) = [name for name in texts if name in text_files.source]
        for path, lines in zip(
            map(Path, (text_files.source, text_files.target)), texts[name], strict=True
        ):
            path.resolve().parent.mkdir(parents=True, exist_ok=True)
            write_lines(path, lines)
    return checkout


def dragoman_in(folder: Path, *words: str) -> subprocess.CompletedProcess[str]:
    result = run_dragoman(*words, cwd=folder, env=os.environ | WITHOUT_AMX)
    assert result.returncode == 0, f"{' '.join(words)}: {result.stderr}"
    return result


@pytest.mark.slow
def test_wmt16_recipes_run_on_a_stand_in(stand_in: Path) -> None:
    for name in ("wmt16-base", "wmt16-big"):
        config = f"configs/{name}.toml"
        prepared = dragoman_in(stand_in, "prepare", config, *SIZES)
        dragoman_in(stand_in, "train", config, *SIZES)
        assert ("is up to date" in prepared.stderr) == (name == "wmt16-big"), "one corpus for both"
        rates = [
            line["learning_rate"]
            for line in map(json.loads, open(stand_in / "runs" / name / "metrics.jsonl"))
            if line["kind"] == "train"
        ]
        # 2.0 · d_model^-0.5 · step · 8000^-1.5, as the reference runs had it.
        assert rates[5] == pytest.approx(2.0 * 32**-0.5 * 6 * 8_000**-1.5)

    scores = dragoman_in(stand_in, "evaluate", "wmt16-base").stdout
    assert scores.startswith("newstest2014: 30 pairs")
    assert "BLEU" in scores
    dragoman_in(stand_in, "report", "wmt16-base")
    answers = json.loads((stand_in / "runs/wmt16-base/report/report.json").read_text())
    assert len(answers) == 11
    manifest = json.loads((stand_in / "prepared/wmt16/manifest.json").read_text())
    assert manifest["pairs"]["raw"] == 3 * PAIRS + 3
    assert manifest["filters"]["too_many_words"] >= 1
    assert manifest["filters"]["duplicate"] == 0
    assert set(manifest["sets"]["validation"]) == {"newstest2013"}
    assert set(manifest["sets"]["test"]) == {"newstest2014"}
