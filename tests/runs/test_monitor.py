"""Samples of this machine, and the curves made of them."""

import json
import time
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace

import pynvml
import pytest
import torch

from dragoman.documents import encode, parse_leniently
from dragoman.records import GpuSample, InterfaceSample, Link, MachineSample
from dragoman.runs.folder import RunFolder
from dragoman.runs.metrics import MetricsLog, machine_scalars
from dragoman.runs.monitor import Monitor
from dragoman.runs.trackers import Trackers


def test_samples_are_written_at_once_and_taken_once(tmp_path: Path) -> None:
    monitor = Monitor(tmp_path, gpus=0, clock_offset=0.25, step=lambda: 7, warn=pytest.fail)
    monitor.start(tmp_path / "here.jsonl")
    deadline = time.monotonic() + 10
    while len((tmp_path / "here.jsonl").read_bytes().splitlines()) < 2:
        assert time.monotonic() < deadline
        time.sleep(0.1)
    monitor.close()
    lines = [json.loads(line) for line in (tmp_path / "here.jsonl").read_text().splitlines()]
    taken = monitor.take()
    assert [encode(sample) for sample in taken] == lines
    assert monitor.take() == []
    first, second = lines[:2]
    assert second["time"] > first["time"]
    assert second["step"] == 7
    assert second["clock_offset"] == 0.25
    assert 0 < second["memory_bytes"] < second["memory_total_bytes"]
    assert 0 < second["process_memory_bytes"] < second["memory_total_bytes"]
    assert second["interfaces"]["lo"]["sent_bytes"] >= first["interfaces"]["lo"]["sent_bytes"]


@pytest.fixture
def gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    """A GPU whose NVML answers everything."""
    properties = SimpleNamespace(name="A100", uuid="12-34")
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda index: properties)
    answers = {
        "nvmlInit": None,
        "nvmlDeviceGetHandleByUUID": "handle",
        "nvmlDeviceGetUtilizationRates": SimpleNamespace(gpu=97),
        "nvmlDeviceGetMemoryInfo": SimpleNamespace(used=3, total=4),
        "nvmlDeviceGetPowerUsage": 250_000,
        "nvmlDeviceGetClockInfo": 1_500,
    }
    for name, answer in answers.items():
        monkeypatch.setattr(pynvml, name, lambda *words, answer=answer: answer)


def refuse(*words: object) -> None:
    raise pynvml.NVMLError(pynvml.NVML_ERROR_NOT_SUPPORTED)


@pytest.mark.usefixtures("gpu")
@pytest.mark.parametrize(
    ("refused", "unknown"),
    [
        ("nvmlDeviceGetPowerUsage", {"power_watts"}),
        ("nvmlDeviceGetMemoryInfo", {"memory_bytes", "memory_total_bytes"}),
        (
            "nvmlInit",
            {"utilization", "memory_bytes", "memory_total_bytes", "power_watts", "sm_clock_mhz"},
        ),
    ],
)
def test_what_nvml_does_not_tell_is_null_and_said_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, refused: str, unknown: set[str]
) -> None:
    monkeypatch.setattr(pynvml, refused, refuse)
    said: list[str] = []
    monitor = Monitor(tmp_path, gpus=2, clock_offset=0.0, step=lambda: 7, warn=said.append)
    for sample in (monitor.sample(), monitor.sample()):
        for gpu in sample.gpus:
            assert {name for name, value in vars(gpu).items() if value is None} == unknown
        assert None not in machine_scalars(None, sample).values()
    (line,) = said
    assert line.startswith("GPU 0 can")
    assert line.endswith("Not Supported")


def test_a_sample_that_fails_is_not_the_last(tmp_path: Path) -> None:
    steps = iter([1])  # There is no second one: StopIteration.
    said: list[str] = []
    monitor = Monitor(
        tmp_path, gpus=0, clock_offset=0.0, step=lambda: next(steps), warn=said.append
    )
    for _ in range(3):
        monitor.try_sample()
    assert len(monitor.take()) == 1
    assert said == ["a monitor sample of this machine failed (reported only once): StopIteration: "]


@pytest.mark.parametrize(
    ("spoil", "warning"),
    [
        (lambda path: path.symlink_to("/dev/full"), "metrics cannot be written: No space left on"),
        (Path.mkdir, "the monitor of hostB cannot be written: Is a directory"),
    ],
)
def test_what_another_machine_did_is_not_worth_the_run(
    tmp_path: Path, spoil: Callable[[Path], None], warning: str
) -> None:
    warnings: list[str] = []
    run = RunFolder(tmp_path)
    run.monitor.mkdir()
    spoil(run.monitor_of("hostB"))
    log = MetricsLog(run, Trackers((), run, {}, 1, warnings.append), warnings.append)
    for step in (1, 2):
        log.write_samples_of_machine("hostB", [parse_leniently(MachineSample, {"step": step})])
    log.close()
    (told,) = warnings
    assert told.startswith(warning)


def test_measured_links_are_on_tensorboard_too(tmp_path: Path) -> None:
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    run = RunFolder(tmp_path)
    log = MetricsLog(run, Trackers(("tensorboard",), run, {}, 1, print), print)
    link = Link(("hostA", "hostB"), "eth0", "10.0.0.1", 1000, 12.5e6, 0.00025)
    log.write("link", 0, link)
    log.close()
    board = EventAccumulator(str(run.tensorboard))
    board.Reload()
    shown = {tag: board.Scalars(tag)[0].value for tag in board.Tags()["scalars"]}
    assert shown == {
        "system/hostA/link_to_hostB/megabits_per_second": pytest.approx(100),
        "system/hostA/link_to_hostB/latency_milliseconds": pytest.approx(0.25),
    }


def test_curves_are_rates_of_counters() -> None:
    def sample(seconds: float, sent: int, written: int) -> MachineSample:
        return MachineSample(
            time=100.0 + seconds,
            step=1,
            clock_offset=0.0,
            cpu_percent=50.0,
            memory_bytes=2_000_000_000,
            memory_total_bytes=4_000_000_000,
            process_memory_bytes=1,
            disk_read_bytes=None,
            disk_written_bytes=written,
            disk_free_bytes=1,
            gpus=(GpuSample(1, "A GPU", 97, 3_000_000_000, 4_000_000_000, 250.0, 1500),),
            interfaces={"eth0": InterfaceSample(0, sent, 1000)},
        )

    curves = machine_scalars(sample(0, 1_000, 0), sample(2, 26_000_000 + 1_000, 4_000_000))
    assert curves["eth0/sent_megabits_per_second"] == pytest.approx(104.0)
    assert curves["disk_written_megabytes_per_second"] == pytest.approx(2.0)
    assert curves["gpu1/utilization"] == 97
    assert curves["gpu1/memory_gigabytes"] == 3
    assert "disk_read_megabytes_per_second" not in curves
    assert "eth0/sent_megabits_per_second" not in machine_scalars(None, sample(0, 1, 1))
