"""The trackers there are: each opens a run of its own, or goes on with the one it knows."""

import json
import os
from collections.abc import Mapping, Sequence
from html import escape
from importlib.util import find_spec
from itertools import groupby
from pathlib import Path
from secrets import token_hex
from time import time as now
from typing import Any, NamedTuple, Protocol, assert_never

from dragoman.config import TrackerKind
from dragoman.documents import decode_object
from dragoman.errors import UserError
from dragoman.files import write_whole
from dragoman.runs.folder import RunFolder

PROJECT = "dragoman"


class Point(NamedTuple):
    """A point of a curve; the time is given where it is not now."""

    name: str
    value: float
    step: int
    time: float | None


class Tracker(Protocol):
    """One tracker, open for one run."""

    def scalars(self, points: Sequence[Point]) -> None:
        """Some points of curves, in the order in which they were made."""

    def text(self, name: str, text: str, step: int) -> None:
        """Text that belongs to a step."""

    def attach(self, path: Path) -> None:
        """A file that belongs to the run."""

    def close(self) -> None:
        """Hand everything over."""


def open_tracker(
    kind: TrackerKind, run: RunFolder, settings: Mapping[str, Any], first_step: int
) -> Tracker:
    """Start a tracked run, or go on with the one that this run folder has."""
    match kind:
        case "tensorboard":
            return _TensorBoard(run, first_step)
        case "wandb":
            return _WeightsAndBiases(run, settings)
        case "mlflow":
            return _MlFlow(run, settings)
        case "trackio":
            return _Trackio(run, settings)
        case _:
            assert_never(kind)


def keeps_files(kind: TrackerKind) -> bool:
    """Whether a tracker has a place for files of a run."""
    match kind:
        case "tensorboard":
            return False
        case "wandb" | "mlflow" | "trackio":
            return True
        case _:
            assert_never(kind)


def refuse_missing(kinds: Sequence[TrackerKind]) -> None:
    """Refuse trackers whose libraries are not installed, before anything runs."""
    for kind in kinds:
        if find_spec(kind) is None:
            raise UserError(
                f"logging.trackers: {kind} is not installed: in the checkout, "
                f"pip install -e '.[{kind}]'"
            )


def _known_runs(run: RunFolder) -> dict[str, Any]:
    """Under which name each tracker knows this run."""
    try:
        return decode_object(run.trackers.read_bytes()) or {}
    except FileNotFoundError:
        return {}


def _remembered(run: RunFolder, kind: str) -> str | None:
    identity = _known_runs(run).get(kind)
    return identity if isinstance(identity, str) else None


def _remember(run: RunFolder, kind: str, identity: str) -> None:
    known = {**_known_runs(run), kind: identity}
    write_whole(run.trackers, json.dumps(known, indent=1).encode())


class _TensorBoard:
    """Files for TensorBoard, in the run folder."""

    def __init__(self, run: RunFolder, first_step: int) -> None:
        # Imported here: no other part of a run needs it.
        from torch.utils.tensorboard.writer import SummaryWriter

        # Steps that will be repeated vanish from its curves.
        self._writer = SummaryWriter(run.tensorboard, purge_step=first_step)

    def scalars(self, points: Sequence[Point]) -> None:
        for name, value, step, time in points:
            self._writer.add_scalar(name, value, step, walltime=time)

    def text(self, name: str, text: str, step: int) -> None:
        self._writer.add_text(name, text, step)

    def attach(self, path: Path) -> None:
        """It has no files of a run; the report lies beside its own."""

    def close(self) -> None:
        self._writer.close()


class _WeightsAndBiases:
    """W&B, online or offline as WANDB_MODE says; its files are in the run folder."""

    def __init__(self, run: RunFolder, settings: Mapping[str, Any]) -> None:
        import wandb

        self._wandb = wandb
        identity = _remembered(run, "wandb")
        self._run = wandb.init(
            project=os.environ.get("WANDB_PROJECT", PROJECT),
            name=run.name,
            id=identity,
            resume="allow",
            dir=str(run.path),
            config=dict(settings),
            settings=wandb.Settings(console="off", silent=True),
        )
        if identity is None:
            _remember(run, "wandb", self._run.id)
        # A step may be told of twice after a resume, and machines between steps.
        self._run.define_metric("*", step_metric="step")

    def scalars(self, points: Sequence[Point]) -> None:
        # Those of a step together.
        for step, group in groupby(points, lambda point: point.step):
            self._run.log({point.name: point.value for point in group} | {"step": step})

    def text(self, name: str, text: str, step: int) -> None:
        self._run.log({name: self._wandb.Html(f"<pre>{escape(text)}</pre>"), "step": step})

    def attach(self, path: Path) -> None:
        artifact = self._wandb.Artifact(f"report-{self._run.id}", type="report")
        artifact.add_file(str(path))
        self._run.log_artifact(artifact)

    def close(self) -> None:
        self._run.finish()


class _MlFlow:
    """MLflow, at MLFLOW_TRACKING_URI or in a database in the run folder."""

    def __init__(self, run: RunFolder, settings: Mapping[str, Any]) -> None:
        from mlflow import MlflowClient

        own = f"sqlite:///{run.path.absolute()}/mlflow.db"
        place = os.environ.get("MLFLOW_TRACKING_URI") or own
        self._client = MlflowClient(tracking_uri=place)
        known = _remembered(run, "mlflow")
        if known is None:
            found = self._client.get_experiment_by_name(PROJECT)
            files = (run.path / "mlflow-files").absolute().as_uri()
            at = None if "MLFLOW_TRACKING_URI" in os.environ else files
            experiment = (
                found.experiment_id if found else self._client.create_experiment(PROJECT, at)
            )
            known = self._client.create_run(experiment, run_name=run.name).info.run_id
            _remember(run, "mlflow", known)
            for name, value in settings.items():
                self._client.log_param(known, name, value)
        self._identity = known
        self._client.update_run(known, status="RUNNING")

    def scalars(self, points: Sequence[Point]) -> None:
        from mlflow.entities import Metric

        metrics = [
            Metric(name, value, round(1e3 * (now() if time is None else time)), step)
            for name, value, step, time in points
        ]
        # The server takes a thousand at a time.
        for first in range(0, len(metrics), 1_000):
            self._client.log_batch(self._identity, metrics[first : first + 1_000])

    def text(self, name: str, text: str, step: int) -> None:
        self._client.log_text(self._identity, text, f"{name}/step-{step:08d}.txt")

    def attach(self, path: Path) -> None:
        self._client.log_artifact(self._identity, str(path))

    def close(self) -> None:
        self._client.set_terminated(self._identity)


class _Trackio:
    """Trackio, whose database is where TRACKIO_DIR says."""

    def __init__(self, run: RunFolder, settings: Mapping[str, Any]) -> None:
        import trackio

        self._trackio = trackio
        # It knows runs by their names alone, and folders elsewhere may have the same name.
        known = _remembered(run, "trackio") or f"{run.name}-{token_hex(4)}"
        self._run = trackio.init(
            project=PROJECT, name=known, resume="allow", config=dict(settings), embed=False
        )
        _remember(run, "trackio", known)

    def scalars(self, points: Sequence[Point]) -> None:
        # Those of a step together.
        for step, group in groupby(points, lambda point: point.step):
            self._run.log({point.name: point.value for point in group}, step=step)

    def text(self, name: str, text: str, step: int) -> None:
        self._run.log({name: self._trackio.Markdown(f"```\n{text}\n```")}, step=step)

    def attach(self, path: Path) -> None:
        self._trackio.save(path, project=PROJECT)

    def close(self) -> None:
        self._run.finish()
