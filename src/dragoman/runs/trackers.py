"""Experiment trackers behind one interface: what a run reports, and that none can hurt it."""

import json
import os
import queue
import threading
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from html import escape
from importlib.util import find_spec
from itertools import groupby
from pathlib import Path
from time import time as now
from typing import Any, NamedTuple, Protocol, assert_never

from dragoman.config import TrackerKind
from dragoman.documents import decode_object
from dragoman.errors import UserError
from dragoman.files import write_whole
from dragoman.runs.folder import RunFolder

PROJECT = "dragoman"
KEEP_FILES: tuple[TrackerKind, ...] = ("wandb", "mlflow", "trackio")
MOST_WAITING = 200_000  # Points that a slow tracker may be behind; then it is dropped.
SECONDS_AT_END = 60.0  # That a tracker has for what is still waiting.


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


Action = Callable[[Tracker], None]


class Trackers:
    """All trackers of a run; one that fails is dropped with a warning, and training goes on."""

    def __init__(
        self,
        kinds: Sequence[TrackerKind],
        run: RunFolder,
        settings: Mapping[str, Any],
        first_step: int,
        warn: Callable[[str], None],
    ) -> None:
        self._threads = [
            _TrackerThread(kind, partial(open_tracker, kind, run, settings, first_step), warn)
            for kind in kinds
        ]

    def scalar(self, name: str, value: float, step: int, time: float | None = None) -> None:
        """A point of a curve."""
        for thread in self._threads:
            thread.tell(Point(name, value, step, time))

    def text(self, name: str, text: str, step: int) -> None:
        """Text that belongs to a step."""
        for thread in self._threads:
            thread.tell(lambda tracker: tracker.text(name, text, step))

    def attach(self, path: Path) -> None:
        """A file that belongs to the run."""
        for thread in self._threads:
            thread.tell(lambda tracker: tracker.attach(path))

    def close(self) -> None:
        """Hand everything over."""
        for thread in self._threads:
            thread.close()


class _TrackerThread:
    """Talks to one tracker beside the training, however slow it is."""

    def __init__(
        self, kind: TrackerKind, start: Callable[[], Tracker], warn: Callable[[str], None]
    ) -> None:
        self._kind, self._start, self._warn = kind, start, warn
        self._waiting: queue.SimpleQueue[Point | Action | None] = queue.SimpleQueue()
        self._is_over = False
        self._thread = threading.Thread(target=self._run, name=f"tracker {kind}", daemon=True)
        self._thread.start()

    def tell(self, what: Point | Action) -> None:
        """Let the tracker know, some time."""
        if self._is_over:
            return
        if self._waiting.qsize() > MOST_WAITING:
            self._end(f"it is more than {MOST_WAITING:,} points behind")
            return
        self._waiting.put(what)

    def close(self) -> None:
        """Let it finish, but not for ever."""
        self._waiting.put(None)
        self._thread.join(SECONDS_AT_END)
        if self._thread.is_alive() and not self._is_over:
            self._end(f"it had not finished {SECONDS_AT_END:g} s after the run")

    def _run(self) -> None:
        try:
            tracker = self._start()
            while not self._is_over and self._hand_over(tracker):
                pass
            tracker.close()
        except Exception as error:  # Of a library that is not ours.
            lines = str(error).splitlines()
            self._end(lines[0] if lines else type(error).__name__)

    def _hand_over(self, tracker: Tracker) -> bool:
        """Wait for something, then hand all over that is there; false at the end."""
        batch = [self._waiting.get()]
        while not self._waiting.empty():
            batch.append(self._waiting.get())
        for is_points, group in groupby(batch, lambda one: isinstance(one, Point)):
            if is_points:
                tracker.scalars([one for one in group if isinstance(one, Point)])
                continue
            for action in group:
                if action is None:
                    return False
                assert not isinstance(action, Point)
                action(tracker)
        return True

    def _end(self, reason: str) -> None:
        if not self._is_over:
            self._is_over = True
            self._warn(f"tracker {self._kind} failed: {reason}; training continues without it")


def open_tracker(
    kind: TrackerKind, run: RunFolder, settings: Mapping[str, Any], first_step: int
) -> Tracker:
    """Start a tracked run, or go on with the one that this run folder has."""
    match kind:
        case "tensorboard":
            return TensorBoard(run, first_step)
        case "wandb":
            return WeightsAndBiases(run, settings)
        case "mlflow":
            return MlFlow(run, settings)
        case "trackio":
            return Trackio(run, settings)
        case _:
            assert_never(kind)


def refuse_missing(kinds: Sequence[TrackerKind]) -> None:
    """Refuse trackers whose libraries are not installed, before anything runs."""
    for kind in kinds:
        if find_spec(kind) is None:
            raise UserError(
                f"logging.trackers: {kind} is not installed: pip install 'dragoman[{kind}]'"
            )


def _remembered(run: RunFolder, kind: str) -> str | None:
    """The name under which a tracker knows this run."""
    try:
        known = decode_object(run.trackers.read_bytes()) or {}
    except FileNotFoundError:
        return None
    identity = known.get(kind)
    return identity if isinstance(identity, str) else None


def _remember(run: RunFolder, kind: str, identity: str) -> None:
    try:
        known = decode_object(run.trackers.read_bytes()) or {}
    except FileNotFoundError:
        known = {}
    write_whole(run.trackers, json.dumps({**known, kind: identity}, indent=1).encode())


class TensorBoard:
    """Files for TensorBoard, in the run folder."""

    def __init__(self, run: RunFolder, first_step: int) -> None:
        # Imported here: no other part of a run needs it.
        from torch.utils.tensorboard.writer import SummaryWriter

        # Steps that will be repeated vanish from its curves.
        self._writer = SummaryWriter(run.tensorboard, purge_step=first_step)

    def scalars(self, points: Sequence[Point]) -> None:
        """Some points of curves."""
        for name, value, step, time in points:
            self._writer.add_scalar(name, value, step, walltime=time)

    def text(self, name: str, text: str, step: int) -> None:
        """Text that belongs to a step."""
        self._writer.add_text(name, text, step)

    def attach(self, path: Path) -> None:
        """It has no files of a run; the report lies beside its own."""

    def close(self) -> None:
        """Hand everything over."""
        self._writer.close()


class WeightsAndBiases:
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
        """Some points of curves, those of a step together."""
        for step, group in groupby(points, lambda point: point.step):
            self._run.log({point.name: point.value for point in group} | {"step": step})

    def text(self, name: str, text: str, step: int) -> None:
        """Text that belongs to a step."""
        self._run.log({name: self._wandb.Html(f"<pre>{escape(text)}</pre>"), "step": step})

    def attach(self, path: Path) -> None:
        """A file that belongs to the run."""
        artifact = self._wandb.Artifact(f"report-{self._run.id}", type="report")
        artifact.add_file(str(path))
        self._run.log_artifact(artifact)

    def close(self) -> None:
        """Hand everything over."""
        self._run.finish()


class MlFlow:
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
        """Some points of curves; the server takes a thousand at a time."""
        from mlflow.entities import Metric

        metrics = [
            Metric(name, value, round(1e3 * (now() if time is None else time)), step)
            for name, value, step, time in points
        ]
        for first in range(0, len(metrics), 1_000):
            self._client.log_batch(self._identity, metrics[first : first + 1_000])

    def text(self, name: str, text: str, step: int) -> None:
        """Text that belongs to a step."""
        self._client.log_text(self._identity, text, f"{name}/step-{step:08d}.txt")

    def attach(self, path: Path) -> None:
        """A file that belongs to the run."""
        self._client.log_artifact(self._identity, str(path))

    def close(self) -> None:
        """Hand everything over."""
        self._client.set_terminated(self._identity)


class Trackio:
    """Trackio, whose database is where TRACKIO_DIR says."""

    def __init__(self, run: RunFolder, settings: Mapping[str, Any]) -> None:
        import trackio

        self._trackio = trackio
        known = _remembered(run, "trackio") or run.name
        self._run = trackio.init(
            project=PROJECT, name=known, resume="allow", config=dict(settings), embed=False
        )
        _remember(run, "trackio", known)

    def scalars(self, points: Sequence[Point]) -> None:
        """Some points of curves, those of a step together."""
        for step, group in groupby(points, lambda point: point.step):
            self._run.log({point.name: point.value for point in group}, step=step)

    def text(self, name: str, text: str, step: int) -> None:
        """Text that belongs to a step."""
        self._run.log({name: self._trackio.Markdown(f"```\n{text}\n```")}, step=step)

    def attach(self, path: Path) -> None:
        """A file that belongs to the run."""
        self._trackio.save(path, project=PROJECT)

    def close(self) -> None:
        """Hand everything over."""
        self._run.finish()
