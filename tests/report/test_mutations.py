"""Whatever happens to the files of a run, its report is made, and without a traceback."""

import random
import shutil
import warnings
from pathlib import Path

import pytest

from dragoman.config import Config
from dragoman.config_file import dump_config, sections
from dragoman.documents import items_of
from dragoman.report.comparison.comparison_page import compare_runs
from dragoman.report.evidence import load_evidence
from dragoman.report.page.report_page import write_report
from mutations import mutate
from report.run_folders import START, RunFolder, pair_run, write_checkpoints

MUTATIONS = 80
ODD_SETTINGS = (
    *("0", "-1", "3", "0.5", "1e300", "1e-300", "nan", "inf", "9223372036854775807"),
    *(f"1{400 * '0'}", '"x"', "true", "[]", "{}", "[[1]]", "1979-05-27"),
)
# Sections that a report computes with; it only shows the others.
COMPUTED_WITH = [
    "model",
    "batches",
    "optimizer",
    "schedule",
    "training",
    "evaluation",
    "distributed",
]


def _eventful(path: Path) -> RunFolder:
    run = pair_run(path, steps=80)
    run.lines.pop()
    for step in range(84, 124, 4):
        run.evaluate(step, loss=2.0, bleu=20.0)
    run.checkpoint(120)
    run.begin("restart", 100, reason="beta was lost", lost=["beta"], joined=[], checkpoint=None)
    for step in range(101, 125):
        run.train(step)
    run.line("stop", 124, reason="steps", detail=None)
    run.samples = [{"step": 80, "time": 1.0, "source": "a", "reference": "b", "translation": "c"}]
    run.watch(4_000_000, utilization=97.0)
    return run


@pytest.fixture(scope="module")
def eventful(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = _eventful(tmp_path_factory.mktemp("eventful") / "run").write()
    write_checkpoints(path, (80, 120), {80: (2.0, 20.0)})
    return path


@pytest.mark.parametrize("seed", range(MUTATIONS))
def test_every_damage_is_survived(
    eventful: Path, tmp_path: Path, request: pytest.FixtureRequest, seed: int
) -> None:
    # Pictures of strange numbers are drawn in one of forty tries: they take most of the time.
    request.getfixturevalue("no_pictures" if seed % 40 else "wide_only")
    run = shutil.copytree(eventful, tmp_path / "run")
    generator = random.Random(seed)
    readable = {".json", ".jsonl", ".toml"}
    files = sorted(path for path in run.rglob("*") if path.suffix in readable)
    damaged = generator.choice([path for path in files if path.name != "state.json"])
    what = mutate(damaged, generator)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        page = write_report(run, now=START + 500)
    assert page.stat().st_size > 10_000, what


@pytest.mark.usefixtures("no_pictures")
@pytest.mark.parametrize("value", ODD_SETTINGS, ids=lambda value: value[:20])
def test_every_odd_setting_is_survived(eventful: Path, tmp_path: Path, value: str) -> None:
    run = shutil.copytree(eventful, tmp_path / "run")
    usual = dump_config(Config(**{section.name: kind() for section, kind in sections()}))
    tables = {table[1:].split("]")[0]: table for table in usual.strip().split("\n\n")}
    assert tables.keys() == {section.name for section, _ in sections()}
    odd = {
        section.name: "\n".join(
            (f"[{section.name}]", *(f"{one.name} = {value}" for one, _ in items_of(kind)), "")
        )
        for section, kind in sections()
    }
    local = odd["distributed"].replace(f"sync = {value}\n", 'sync = "local"\n')
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for name, table in (*((one, odd[one]) for one in COMPUTED_WITH), ("distributed", local)):
            (run / "config.toml").write_text("\n".join((tables | {name: table}).values()))
            assert write_report(run, now=START + 500).stat().st_size > 10_000, name
        (run / "config.toml").write_text("\n".join(odd.values()))
        compare_runs(run, eventful, tmp_path / "comparison", now=START + 500)
    evidence = load_evidence(run, START)
    assert any(notice.startswith("config.toml: ") for notice in evidence.missing)
