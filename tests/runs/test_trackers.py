"""What trackers were told, read back with their own libraries where they are installed."""

import json
import struct
import threading
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest

from dragoman.errors import UserError
from dragoman.runs import tracker_kinds
from dragoman.runs import trackers as module
from dragoman.runs.folder import RunFolder
from dragoman.runs.tracker_kinds import Point, refuse_missing
from dragoman.runs.trackers import Trackers
from support import wait_until

SETTINGS = {"model.preset": "tiny", "training.steps": "20"}


def _tell(run: RunFolder, kind: str, first: int, last: int) -> list[str]:
    """A part of a run, as the recorder tells of it."""
    warnings: list[str] = []
    told = Trackers([kind], run, SETTINGS, first, warnings.append)  # type: ignore[list-item]
    for step in range(first, last + 1):
        told.scalar("train_loss", 5 / step, step)
        told.scalar("system/hostA/cpu_percent", 50.0, step, 1_700_000_000.0 + step)
    told.text("samples", "one <b>two</b>\n  -> eins zwei", last)
    report = run.path / "report.html"
    report.write_text("<h1>the report</h1>")
    told.attach(report)
    told.close()
    return warnings


EXPECTED = {step: pytest.approx(5 / step) for step in range(1, 21)}


def test_tensorboard(tmp_path: Path) -> None:
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    run = RunFolder(tmp_path)
    assert _tell(run, "tensorboard", 1, 12) == []
    assert _tell(run, "tensorboard", 11, 20) == []
    board = EventAccumulator(str(run.tensorboard))
    board.Reload()
    assert {one.step: one.value for one in board.Scalars("train_loss")} == EXPECTED
    assert "samples/text_summary" in board.Tags()["tensors"]


def test_mlflow(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    mlflow = pytest.importorskip("mlflow")
    pytest.importorskip("alembic")
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)
    run = RunFolder(tmp_path / "mine")
    run.path.mkdir()
    assert _tell(run, "mlflow", 1, 12) == []
    assert _tell(run, "mlflow", 11, 20) == []
    client = mlflow.MlflowClient(tracking_uri=f"sqlite:///{run.path}/mlflow.db")
    (experiment,) = client.search_experiments(filter_string="name = 'dragoman'")
    (found,) = client.search_runs([experiment.experiment_id])
    assert found.info.run_name == "mine"
    assert found.data.params == SETTINGS
    points = client.get_metric_history(found.info.run_id, "train_loss")
    assert {one.step: one.value for one in points} == EXPECTED
    files = {one.path for one in client.list_artifacts(found.info.run_id)}
    assert files == {"samples", "report.html"}


def _records(content: bytes) -> Iterator[bytes]:
    """The records of W&B's own file: a LevelDB log after a header of seven bytes."""
    place, whole = 7, b""
    while place + 7 <= len(content):
        if 32_768 - place % 32_768 < 7:
            place += 32_768 - place % 32_768
        _, length, kind = struct.unpack_from("<IHB", content, place)
        if place + 7 + length > len(content):
            return  # The rest is still to be written.
        whole += content[place + 7 : place + 7 + length]
        place += 7 + length
        if kind in (1, 4):  # All of it, or the last part.
            yield whole
            whole = b""


def test_wandb_offline(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("wandb")
    from wandb.proto.wandb_internal_pb2 import Record

    monkeypatch.setenv("WANDB_MODE", "offline")
    run = RunFolder(tmp_path / "mine")
    run.path.mkdir()
    assert _tell(run, "wandb", 1, 12) == []
    assert _tell(run, "wandb", 11, 20) == []

    def records() -> list[Record]:
        paths = sorted(run.path.glob("wandb/offline-run-*/run-*.wandb"))
        return [Record.FromString(data) for path in paths for data in _records(path.read_bytes())]

    # Its own process may write the end a moment after it has said that all is done.
    wait_until(lambda: [one.WhichOneof("record_type") for one in records()].count("exit") == 2)
    losses, identities, kinds, settings = {}, set(), set(), {}
    for record in records():
        kinds.add(record.WhichOneof("record_type"))
        identities.add(record.run.run_id)
        for one in record.run.config.update:
            settings["/".join(one.nested_key) or one.key] = json.loads(one.value_json)
        values = {
            "/".join(one.nested_key) or one.key: one.value_json for one in record.history.item
        }
        if "train_loss" in values:
            losses[int(values["step"])] = float(values["train_loss"])
    assert losses == EXPECTED
    assert len(identities - {""}) == 1  # A resumed run is the same run.
    assert {"run", "history", "artifact"} <= kinds
    assert settings.items() >= SETTINGS.items()


def test_trackio(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TRACKIO_DIR", str(tmp_path / "trackio"))  # Read when it is imported.
    pytest.importorskip("trackio")
    from trackio.sqlite_storage import SQLiteStorage

    # The project may have runs of other tests: its database is that of the first import.
    runs = [RunFolder(tmp_path / place / f"mine-{tmp_path.name}") for place in ("here", "there")]
    for run in runs:
        run.path.mkdir(parents=True)
        assert _tell(run, "trackio", 1, 12) == []
    for run in runs:
        assert _tell(run, "trackio", 11, 20) == []
    names = [name for name in SQLiteStorage.get_runs("dragoman") if name.startswith(run.name)]
    assert len(names) == 2  # Each goes on with its own, though their folders have one name.
    for name in names:
        logs = SQLiteStorage.get_logs("dragoman", name)
        losses = [(one["step"], one["train_loss"]) for one in logs if "train_loss" in one]
        assert dict(losses) == EXPECTED
        assert len(losses) == 12 + 10  # Steps 11 and 12 were told of twice.
        settings = SQLiteStorage.get_run_config("dragoman", name)
        assert settings is not None
        assert settings.items() >= SETTINGS.items()


class Stubborn:
    """A tracker that fails, or never answers."""

    def __init__(self, answered: threading.Event | None) -> None:
        self.answered = answered

    def scalars(self, points: Sequence[Point]) -> None:
        if self.answered is None:
            raise RuntimeError("the server said no\nand much more")
        self.answered.wait()

    def text(self, name: str, text: str, step: int) -> None: ...

    def attach(self, path: Path) -> None: ...

    def close(self) -> None: ...


def test_a_tracker_that_fails_never_hurts_training(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "open_tracker", lambda *_: Stubborn(None))
    warnings = _tell(RunFolder(tmp_path), "wandb", 1, 20)
    assert warnings == ["tracker wandb failed: the server said no; training continues without it"]


def test_a_tracker_that_hangs_is_left_behind(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    answered = threading.Event()
    monkeypatch.setattr(module, "open_tracker", lambda *_: Stubborn(answered))
    monkeypatch.setattr(module, "SECONDS_AT_END", 0.01)
    (warning,) = _tell(RunFolder(tmp_path), "mlflow", 1, 20)
    assert warning.startswith("tracker mlflow failed: it had not finished")
    answered.set()


def test_one_that_cannot_start_is_told_of_once(tmp_path: Path) -> None:
    (tmp_path / "tensorboard").write_text("in the way")
    (warning,) = _tell(RunFolder(tmp_path), "tensorboard", 1, 3)
    assert warning.startswith("tracker tensorboard failed: ")


def test_a_library_that_is_missing_is_named_before_anything_runs(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(tracker_kinds, "find_spec", lambda name: None)
    words = r"wandb is not installed: in the checkout, pip install -e '\.\[wandb\]'"
    with pytest.raises(UserError, match=words):
        refuse_missing(["wandb"])
