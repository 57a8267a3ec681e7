"""Moments of a device, told from those of the host that queues its work."""

import pytest
import torch

from dragoman.cluster.device_timer import DeviceTimer


class Device:
    """Events of a device that is far behind its host: each is reached when it is waited for."""

    def __init__(self) -> None:
        self.queued: list[FakeEvent] = []

    def event(self, enable_timing: bool) -> "FakeEvent":
        assert enable_timing
        return FakeEvent(self)


class FakeEvent:
    def __init__(self, device: Device) -> None:
        self.device = device
        self.reached_at: float | None = None

    def record(self) -> None:
        self.device.queued.append(self)

    def synchronize(self) -> None:
        for place, event in enumerate(self.device.queued):
            event.reached_at = 1_000.0 * place**2

    def elapsed_time(self, later: "FakeEvent") -> float:
        assert self.reached_at is not None
        assert later.reached_at is not None, "nobody waited for it"
        return later.reached_at - self.reached_at


def test_moments_of_a_gpu_are_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "Event", Device().event)
    start, computed, updated = (DeviceTimer(torch.device("cuda")) for _ in range(3))
    for moment in (start, computed, updated):
        moment.mark()
    assert computed.seconds_until(updated) == 3.0
    assert start.seconds_until(computed) == 1.0


def test_the_last_mark_counts() -> None:
    start, end = DeviceTimer(torch.device("cpu")), DeviceTimer(torch.device("cpu"))
    start.mark()
    end.mark()
    start.mark()
    assert start.seconds_until(end) <= 0.0
