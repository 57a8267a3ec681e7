"""Times on a device, whose work the host only queues."""

import time

import torch


class DeviceTimer:
    """A point in a device's work: when the device gets there, not when the host has queued it."""

    def __init__(self, device: torch.device) -> None:
        self._event: torch.cuda.Event | None = None
        if device.type == "cuda":
            self._event = torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]
        self._time = 0.0

    def mark(self) -> None:
        """Let this be the moment; the last call counts."""
        if self._event:
            self._event.record()
        else:
            self._time = time.perf_counter()

    def seconds_until(self, later: "DeviceTimer") -> float:
        """Seconds to a later moment of the same device, which is waited for."""
        if self._event and later._event:
            later._event.synchronize()
            return float(self._event.elapsed_time(later._event)) / 1000
        return later._time - self._time


def wait_for(device: torch.device) -> None:
    """Return when the device has done all that was queued."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)
