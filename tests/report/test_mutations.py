"""Whatever happens to the files of a run, its report is made, and without a traceback."""

import random
import shutil
import warnings
from pathlib import Path

import pytest

from dragoman.report.page.report_page import write_report
from mutations import mutate
from report.run_folders import START, RunFolder, pair_run, write_checkpoints

MUTATIONS = 80


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
