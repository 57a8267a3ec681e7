"""Every path of a run folder, in one place."""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from dragoman.errors import UserError

FORMAT = 1


@dataclass(frozen=True)
class RunFolder:
    """The folder of one run; docs/run-folder.md describes what is in it."""

    path: Path

    @property
    def name(self) -> str:
        """Name of the run."""
        return self.path.name

    @property
    def config(self) -> Path:
        """Every setting of the run."""
        return self.path / "config.toml"

    @property
    def provenance(self) -> Path:
        """Versions, hardware, command and corpus."""
        return self.path / "provenance.json"

    @property
    def log(self) -> Path:
        """What was printed."""
        return self.path / "train.log"

    @property
    def metrics(self) -> Path:
        """What happened, a line each."""
        return self.path / "metrics.jsonl"

    @property
    def samples(self) -> Path:
        """Sentences translated at every evaluation."""
        return self.path / "samples.jsonl"

    @property
    def before(self) -> Path:
        """Translations by the weights that the run started from."""
        return self.path / "before.json"

    @property
    def monitor(self) -> Path:
        """What the machines did, a file each."""
        return self.path / "monitor"

    def monitor_of(self, host: str) -> Path:
        """What one machine did, a line a second."""
        return self.monitor / f"{host}.jsonl"

    @property
    def tensorboard(self) -> Path:
        """Scalars for TensorBoard."""
        return self.path / "tensorboard"

    @property
    def trackers(self) -> Path:
        """Under which name each tracker knows the run."""
        return self.path / "trackers.json"

    @property
    def checkpoints(self) -> Path:
        """Weights, a folder each, and their index."""
        return self.path / "checkpoints"

    @property
    def subwords(self) -> tuple[Path, Path]:
        """Copies of the vocabularies, so that a run translates without its corpus."""
        return self.path / "source.model", self.path / "target.model"

    @property
    def report(self) -> Path:
        """The report's pages and pictures."""
        return self.path / "report"

    @property
    def export(self) -> Path:
        """The model in the format of CTranslate2."""
        return self.path / "export" / "ctranslate2"

    def exists(self) -> bool:
        """Whether a run has been started here."""
        return self.config.is_file() and self.provenance.is_file()

    def has_evidence(self) -> bool:
        """Whether there is anything to report of, however damaged the run may be."""
        return any(path.is_file() for path in (self.config, self.provenance, self.metrics))


def find_run(name: str) -> RunFolder:
    """Find an existing run by its path, or by its name under runs/."""
    return _find(name, RunFolder.exists)


def find_evidence(name: str) -> RunFolder:
    """Find what is left of a run, in the same places."""
    return _find(name, RunFolder.has_evidence)


def _find(name: str, is_one: Callable[[RunFolder], bool]) -> RunFolder:
    for path in (Path(name), Path("runs") / name):
        if is_one(RunFolder(path)):
            return RunFolder(path)
    raise UserError(f"{name}: no run found there or at runs/{name}")


def new_run(name: str) -> RunFolder:
    """Name a run's folder: a plain name lies under runs/, anything with a slash is a path."""
    return RunFolder(Path(name) if "/" in name else Path("runs") / name)
