"""Every path of a run folder, in one place."""

import difflib
import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from dragoman.errors import SystemFault, UserError

FORMAT = 1
EXPORT_INFO = "dragoman.json"  # What an export says of itself, and a run has not.


class _Within:
    """A file or folder of a run, by its place in the run's folder."""

    def __init__(self, *names: str) -> None:
        self._names = names

    def __get__(self, run: "RunFolder", kind: type) -> Path:
        return run.path.joinpath(*self._names)


@dataclass(frozen=True)
class RunFolder:
    """The folder of one run; docs/run-folder.md describes what is in it."""

    path: Path

    config = _Within("config.toml")  # Every setting of the run.
    provenance = _Within("provenance.json")  # Versions, hardware, command and corpus.
    log = _Within("train.log")  # What was printed.
    metrics = _Within("metrics.jsonl")  # What happened, a line each.
    samples = _Within("samples.jsonl")  # Sentences translated at every evaluation.
    before = _Within("before.json")  # Translations by the weights that the run started from.
    monitor = _Within("monitor")  # What the machines did, a file each.
    tensorboard = _Within("tensorboard")
    trackers = _Within("trackers.json")  # Under which name each tracker knows the run.
    checkpoints = _Within("checkpoints")  # Weights, a folder each, and their index.
    report = _Within("report")  # Its pages and pictures.
    export = _Within("export", "ctranslate2")

    @property
    def name(self) -> str:
        """Name of the run."""
        return self.path.name

    @property
    def subwords(self) -> tuple[Path, Path]:
        """Copies of the vocabularies, so that a run translates without its corpus."""
        return self.path / "source.model", self.path / "target.model"

    def monitor_of(self, host: str) -> Path:
        """What one machine did, a line a second."""
        return self.monitor / f"{host}.jsonl"

    def exists(self) -> bool:
        """Whether a run has been started here."""
        return self.config.is_file() and self.provenance.is_file()

    def has_evidence(self) -> bool:
        """Whether there is anything to report of, however damaged the run may be."""
        return any(path.is_file() for path in (self.config, self.provenance, self.metrics))


class HeldFolder:
    """Notices when a folder that is written to is deleted or moved."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._held = os.open(path, os.O_RDONLY | os.O_DIRECTORY)

    def check(self) -> None:
        """Refuse to go on where nobody would look for what is written."""
        try:
            is_there = os.path.samestat(self._path.stat(), os.fstat(self._held))
        except (FileNotFoundError, NotADirectoryError):
            is_there = False
        except OSError:  # Of a file server that does not answer, which will be told elsewhere.
            return
        if not is_there:
            raise SystemFault(
                f"{self._path} was deleted or moved while the run was written to it; move it back, "
                "or start the run again"
            )

    def close(self) -> None:
        """Let go of it."""
        os.close(self._held)


def find_run(name: str) -> RunFolder:
    """Find an existing run by its path, or by its name under runs/."""
    return _find(name, RunFolder.exists)


def find_evidence(name: str) -> RunFolder:
    """Find what is left of a run, in the same places."""
    return _find(name, RunFolder.has_evidence)


def _find(name: str, is_one: Callable[[RunFolder], bool]) -> RunFolder:
    # A plain name may be one under runs/.
    places = (Path(name),) if "/" in name else (Path(name), Path("runs") / name)
    for path in places:
        if is_one(RunFolder(path)):
            return RunFolder(path)
    for path in places:
        if (path / EXPORT_INFO).is_file():
            raise UserError(
                f"{path} is an export, not a run: add --engine ctranslate2 to translate with it, "
                "or give it to `dragoman serve`"
            )
        if RunFolder(path).metrics.is_file():
            raise UserError(f"{path} {lacking(RunFolder(path))}")
    others = [path.name for path in Path("runs").glob("*/") if path.name != name]
    near = difflib.get_close_matches(name, others, 1)
    hint = f"; did you mean {near[0]}?" if near else ""
    for path in places:
        if path.is_dir():
            raise UserError(
                f"{path} is a folder, but not of a run: it has neither config.toml nor "
                f"metrics.jsonl{hint}"
            )
    if "/" in name:
        raise UserError(f"{name}: no run found there")
    raise UserError(f"{name}: no run found there or at runs/{name}{hint}")


def lacking(run: RunFolder) -> str:
    """What is missing of a run of which there is something."""
    names = [path.name for path in (run.config, run.provenance) if not path.is_file()]
    return (
        f"has no {' and no '.join(names)}: put it back, from a copy or another machine of the run"
    )


def new_run(name: str) -> RunFolder:
    """Name a run's folder: a plain name lies under runs/, anything with a slash is a path."""
    return RunFolder(Path(name) if "/" in name else Path("runs") / name)
