"""Fixtures that many tests share."""

import fcntl
import gc
import os

# Before torch is imported. Sums depend on the number of threads, and bits are compared between
# this process and others; and tests run beside each other on few cores.
os.environ["OMP_NUM_THREADS"] = "1"

import shutil
import signal
from collections.abc import Callable, Iterator
from concurrent.futures import Executor, Future, ProcessPoolExecutor
from functools import cache, partial
from multiprocessing.context import SpawnContext
from pathlib import Path
from typing import Any

import pytest

# Nothing that imports torch: the process that hands out the tests runs none of them.
from forked import Template, forking

# Until all is imported, which makes much and throws little away.
gc.disable()

# nohup lets processes ignore it, and theirs too; tests send it.
signal.signal(signal.SIGHUP, signal.SIG_DFL)

SPELLING = """\
[corpus]
folder = "prepared"
train = [{ source = "train.en", target = "train.de" }]
validation.valid = { source = "valid.en", target = "valid.de" }
[vocabulary]
size = 320
"""
LEARNS_TO_SPELL = [
    "batches.rows_per_device=5",
    "model.d_model=32",
    "model.feed_forward=64",
    "model.dropout=0.0",
    "schedule.scale=0.8",
    "schedule.warmup_steps=30",
    "training.steps=100",
    "evaluation.every_steps=50",
    "checkpoints.every_steps=50",
]


@pytest.fixture(scope="session", autouse=True)
def template(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Template]:
    """Start processes of Dragoman in a moment; the first of them takes a few seconds."""
    # What they leave behind when they are killed lies with all else that tests write.
    os.environ["TMPDIR"] = str(tmp_path_factory.mktemp("temporary"))
    with forking() as started:
        started.is_for_slow_tests_only = request.config.option.markexpr == "not slow"
        yield started


@pytest.fixture(scope="session", autouse=True)
def brief_calibration() -> None:
    """Do not look for this machine's speed and peak in every training of a few steps."""
    from dragoman.training import calibration

    calibration.MATRIX_SIZES["cpu"] = 64
    calibration.COMPUTE_PASSES = 1


@pytest.fixture(scope="session", autouse=True)
def nothing_waits_for_the_disk() -> None:
    """No test cuts the power: what is written need not be on the disk to be read again."""
    vars(os)["fsync"] = lambda _: None


@pytest.fixture(scope="session", autouse=True)
def git_is_asked_once() -> None:
    """Three processes for each training would all say the same."""
    from dragoman.runs import provenance

    vars(provenance)["git_state"] = cache(provenance.git_state)


class ThisProcess(Executor):
    """Does at once what it is given."""

    def submit(self, function: Callable[..., Any], /, *given: Any, **named: Any) -> Future[Any]:
        done: Future[Any] = Future()
        try:
            done.set_result(function(*given, **named))
        except Exception as error:
            done.set_exception(error)
        return done


@pytest.fixture(scope="session", autouse=True)
def one_process_is_this_one() -> None:
    """Start no process where one is asked for: it takes longer to start than to do its work."""
    from dragoman.corpus import passes
    from dragoman.corpus.subwords import Subwords

    def pool(processes: int, context: SpawnContext, start: partial[None]) -> Executor:
        if processes > 1:
            return ProcessPoolExecutor(processes, context, start)
        _, models = start.args
        passes._models[:] = [Subwords(path.read_bytes()) for path in models]
        return ThisProcess()

    vars(passes)["ProcessPoolExecutor"] = pool


@pytest.fixture
def small_text(tmp_path: Path) -> Path:
    """A folder with train, validation and test text and a config for it."""
    from support import write_small_text

    return write_small_text(tmp_path / "small")


def made_once(factory: pytest.TempPathFactory, name: str, make: Callable[[Path], None]) -> Path:
    """A folder that all processes of the tests read, and the first that wants it makes."""
    base = factory.getbasetemp()
    folder = (base.parent if "PYTEST_XDIST_WORKER" in os.environ else base) / name
    with open(folder.with_suffix(".lock"), "a") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not folder.exists():
            make(folder)
    return folder


@pytest.fixture(scope="session")
def prepared_once(tmp_path_factory: pytest.TempPathFactory) -> Path:
    from dragoman.config_file import load_config
    from dragoman.corpus.prepare import prepare
    from support import SMALL, write_small_text

    def make(folder: Path) -> None:
        write_small_text(folder)
        prepare(load_config(folder / "config.toml", SMALL), processes=1)

    return made_once(tmp_path_factory, "small", make)


@pytest.fixture
def prepared(prepared_once: Path, tmp_path: Path) -> Path:
    """The small text, prepared for the small model: a copy of one's own."""
    return Path(shutil.copytree(prepared_once, tmp_path / "small"))


@pytest.fixture(scope="session")
def trained_once(prepared_once: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The small text, prepared, and `run`, the small model trained on it: for those who read."""
    from dragoman.config_file import load_config
    from dragoman.training.start import train
    from support import SMALL

    def make(folder: Path) -> None:
        shutil.copytree(prepared_once, folder)
        train(load_config(folder / "config.toml", SMALL), str(folder / "run"))

    return made_once(tmp_path_factory, "trained", make)


@pytest.fixture(scope="session")
def spelling_run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run that has learnt to spell numbers in German."""
    from dragoman.config_file import load_config
    from dragoman.corpus.prepare import prepare
    from dragoman.training.start import train
    from support import SMALL, write_numbers

    def make(folder: Path) -> None:
        folder.mkdir()
        for name, first, count in (("train", 1_000, 3_000), ("valid", 5_000, 120)):
            write_numbers(folder, name, first, count)
        (folder / "config.toml").write_text(SPELLING)
        config = load_config(folder / "config.toml", [*SMALL, *LEARNS_TO_SPELL])
        prepare(config, processes=1)
        train(config, str(folder / "run"))

    return made_once(tmp_path_factory, "numbers", make) / "run"


def pytest_collection_finish() -> None:
    """Look for garbage in what tests make, not in what they import, which is far more."""
    gc.freeze()
    gc.enable()


@pytest.hookimpl(tryfirst=True)  # Before pytest-xdist looks for groups.
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Fast tests first: most mistakes show within a minute. Then the longest of the others."""
    longest = ("test_traffic.py", "end_to_end", "distributed")
    ranks = {part: rank for rank, part in enumerate(longest)}
    items.sort(
        key=lambda item: (
            item.get_closest_marker("slow") is not None,
            min(ranks.get(part, len(ranks)) for part in item.path.parts),
        )
    )
    for item in items:
        if isinstance(item, pytest.Function) and _shares_a_fixture(item):
            # So that one process runs them all, and makes it once.
            item.add_marker(pytest.mark.xdist_group(str(item.path)))


def _shares_a_fixture(item: pytest.Function) -> bool:
    definitions = item._fixtureinfo.name2fixturedefs.values()
    return any(one.scope == "module" for several in definitions for one in several)
