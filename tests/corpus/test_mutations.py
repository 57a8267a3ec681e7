"""A damaged corpus is refused in one line, or is read as it was: nothing else."""

import random
import shutil
from pathlib import Path

import pytest

from dragoman.config_file import load_config
from dragoman.corpus.prepare import DROPPED
from dragoman.corpus.store import PreparedCorpus
from dragoman.errors import UserError
from dragoman.training.parts import check_corpus_settings
from mutations import mutate
from support import SMALL

SEED, MUTATIONS = 15, 150


def contents(folder: Path) -> list[object]:
    """Read all that training and evaluation read; return what is trained on."""
    corpus = PreparedCorpus(folder / "prepared")
    corpus.check_contents()
    check_corpus_settings(load_config(folder / "config.toml", SMALL), corpus)
    for kind in ("validation", "test"):
        for one in corpus.evaluation_sets(kind):
            assert len(one.source) == len(one.target) == len(one.tokens)
    sides = (corpus.train.source, corpus.train.target)
    arrays = [array.tolist() for side in sides for array in (side.tokens, side.offsets)]
    words = [subwords.encode(["one two"]) for subwords in corpus.subwords()]
    return [corpus.identity, arrays, words]


def test_a_damaged_corpus_is_refused_or_is_the_same(prepared_once: Path, tmp_path: Path) -> None:
    chance = random.Random(SEED)
    before = contents(prepared_once)
    names = [
        path.relative_to(prepared_once)
        for path in sorted((prepared_once / "prepared").rglob("*"))
        if path.is_file() and path.name not in (".lock", DROPPED)
    ]
    manifest = next(name for name in names if name.name == "manifest.json")
    refused = 0
    for number in range(MUTATIONS):
        folder = shutil.copytree(prepared_once, tmp_path / "small")
        name = manifest if chance.random() < 0.6 else chance.choice(names)
        what = mutate(folder / name, chance)
        try:
            after = contents(folder)
        except UserError as error:
            refused += 1
            lines = str(error).splitlines()
        except BaseException as error:
            pytest.fail(f"mutation {number}, {what}: {error!r}")
        else:
            assert after == before, (number, what)
            continue
        finally:
            shutil.rmtree(folder)
        assert len(lines) == 1, (number, what, lines)
    assert refused > MUTATIONS / 2


def test_a_document_with_nothing_in_it_is_damaged_too(tmp_path: Path) -> None:
    """The page of what was found in a clean text is one."""
    path, made = tmp_path / "inspect.json", set()
    for seed in range(60):
        path.write_text("[]")
        mutate(path, random.Random(seed))
        made.add(path.read_bytes())
    assert len(made) > 20
