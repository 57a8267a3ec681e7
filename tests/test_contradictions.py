"""Settings that are refused together."""

from pathlib import Path

import pytest

from dragoman.config_file import load_config
from dragoman.errors import UserError


def test_what_a_given_vocabulary_makes_idle_is_refused(small_text: Path) -> None:
    overrides = ['vocabulary.model="mine.model"', "vocabulary.kind=unigram"]
    with pytest.raises(UserError) as caught:
        load_config(small_text / "config.toml", overrides)
    assert "vocabulary.kind has no effect on an existing vocabulary" in str(caught.value)
    assert "vocabulary.size has no effect on an existing vocabulary" in str(caught.value)


def test_a_language_has_a_code(small_text: Path) -> None:
    with pytest.raises(UserError, match="target_language is empty: give a code, such as en"):
        load_config(small_text / "config.toml", ["corpus.target_language=' '"])


@pytest.mark.parametrize(
    ("overrides", "problem"),
    [
        (
            ["distributed.sync=local", "distributed.bucket_megabytes=1"],
            'distributed.bucket_megabytes is for gradients and sync is "local"; remove it',
        ),
        (["training.hours=0"], "training.hours = 0 ends before the first step"),
        (
            ["translation.beam=1", "translation.patience=3"],
            "translation.patience has no effect with translation.beam = 1; remove it",
        ),
    ],
)
def test_what_would_have_no_effect_is_refused(
    small_text: Path, overrides: list[str], problem: str
) -> None:
    with pytest.raises(UserError, match=problem):
        load_config(small_text / "config.toml", overrides)


@pytest.mark.parametrize(
    ("overrides", "problem"),
    [
        (
            ["distributed.powersgd_rank=8"],
            'distributed.powersgd_rank needs compression = "powersgd", but compression is "none"',
        ),
        (
            ["distributed.compression=powersgd", "training.precision=float16"],
            "distributed.compression = 'powersgd' remembers gradients, whose scale "
            'training.precision = "float16" changes; choose bfloat16 or float32',
        ),
        (
            ["distributed.compression=powersgd", "distributed.sync=local"],
            "distributed.compression = 'powersgd' only works on gradients",
        ),
    ],
)
def test_powersgd_is_refused_where_it_cannot_work(
    small_text: Path, overrides: list[str], problem: str
) -> None:
    with pytest.raises(UserError) as caught:
        load_config(small_text / "config.toml", overrides)
    assert problem in str(caught.value)


@pytest.mark.parametrize(
    ("overrides", "problem"),
    [
        (["local_steps=1", "compression=int8"], '"int8" needs local_steps of 2 or more'),
        (["local_steps=4", "local_fragments=5"], "local_fragments = 5 is more than local_steps"),
        (["local_steps=4", "local_delay=5"], "the next exchange would start before it arrives"),
    ],
)
def test_local_steps_are_refused_where_they_cannot_work(
    small_text: Path, overrides: list[str], problem: str
) -> None:
    given = ["sync=local", *overrides]
    with pytest.raises(UserError) as caught:
        load_config(small_text / "config.toml", [f"distributed.{one}" for one in given])
    assert problem in str(caught.value)


@pytest.mark.parametrize("setting", ["compression=int4", "local_steps=8", "local_delay=1"])
def test_what_is_chosen_automatically_cannot_be_given(small_text: Path, setting: str) -> None:
    overrides = ["distributed.sync=auto", f"distributed.{setting}"]
    with pytest.raises(UserError) as caught:
        load_config(small_text / "config.toml", overrides)
    assert 'has no effect with sync = "auto", which chooses it' in str(caught.value)


def test_powersgd_takes_its_rank(small_text: Path) -> None:
    overrides = ["distributed.compression=powersgd", "distributed.powersgd_rank=8"]
    assert load_config(small_text / "config.toml", overrides).distributed.powersgd_rank == 8


@pytest.mark.parametrize("setting", ["momentum", "matrix_rate"])
def test_what_adam_has_no_use_for_is_refused(small_text: Path, setting: str) -> None:
    override = f"optimizer.{setting}=0.9"
    with pytest.raises(UserError) as caught:
        load_config(small_text / "config.toml", [override])
    assert f'optimizer.{setting} needs kind = "muon", but kind is "adam"' in str(caught.value)
    load_config(small_text / "config.toml", [override, "optimizer.kind=muon"])
