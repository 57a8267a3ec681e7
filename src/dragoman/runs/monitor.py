"""Samples GPU, CPU, memory, disk and every network interface of its machine, once a second."""

import threading
import time
from collections import deque
from collections.abc import Callable
from pathlib import Path
from typing import Any

import psutil
import pynvml
import torch

from dragoman.cluster.network import link_speed_mbit
from dragoman.documents import encode
from dragoman.records import GpuSample, InterfaceSample, MachineSample
from dragoman.runs.metrics import LineFile

SECONDS_BETWEEN_SAMPLES = 1.0


class Monitor:
    """A thread of the first worker of each machine; `take` hands its samples on."""

    def __init__(
        self,
        folder: Path,
        gpus: int,
        clock_offset: float,
        step: Callable[[], int],
        warn: Callable[[str], None],
    ):
        self._folder = folder
        self._clock_offset = clock_offset
        self._step = step
        self._warn = warn
        self._warned: set[type[Exception]] = set()
        self._gpus = [_Gpu(index, self._warn_once) for index in range(gpus)]
        self._speeds = {name: link_speed_mbit(name) for name in psutil.net_if_stats()}
        self._file: LineFile | None = None
        self._waiting: deque[MachineSample] = deque()
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._watch, daemon=True)

    def start(self, path: Path | None) -> None:
        """Begin; samples are written to `path` at once, so that a crash does not lose them."""
        self._file = LineFile(path) if path else None
        psutil.cpu_percent()  # The first call only sets the point from which the next counts.
        self._thread.start()

    def take(self) -> list[MachineSample]:
        """Samples since the last call."""
        # One by one: the thread may add another at any moment.
        return [self._waiting.popleft() for _ in range(len(self._waiting))]

    def close(self) -> None:
        """Stop watching."""
        self._ended.set()
        if self._thread.is_alive():
            self._thread.join()
        if self._file:
            self._file.close()

    def sample(self) -> MachineSample:
        """Look at the machine once."""
        memory = psutil.virtual_memory()
        disk = psutil.disk_io_counters()
        return MachineSample(
            time=time.time(),
            step=self._step(),
            clock_offset=self._clock_offset,
            cpu_percent=psutil.cpu_percent(),
            memory_bytes=memory.total - memory.available,
            memory_total_bytes=memory.total,
            process_memory_bytes=psutil.Process().memory_info().rss,
            disk_read_bytes=disk.read_bytes if disk else None,
            disk_written_bytes=disk.write_bytes if disk else None,
            disk_free_bytes=psutil.disk_usage(str(self._folder)).free,
            gpus=tuple(gpu.sample() for gpu in self._gpus),
            interfaces={
                name: InterfaceSample(
                    counters.bytes_recv, counters.bytes_sent, self._speeds.get(name)
                )
                for name, counters in psutil.net_io_counters(pernic=True).items()
            },
        )

    def try_sample(self) -> None:
        """Look at the machine once and keep what was seen; failing is no reason to stop."""
        try:
            sample = self.sample()
        except Exception as error:
            self._warn_once("a monitor sample of this machine failed", error)
            return
        self._waiting.append(sample)
        if self._file:
            self._file.append(encode(sample))
            self._file.flush()

    def _warn_once(self, what: str, error: Exception) -> None:
        """Say what is wrong when an error of its kind comes up for the first time."""
        if type(error) not in self._warned:
            self._warned.add(type(error))
            self._warn(f"{what} (reported only once): {type(error).__name__}: {error}")

    def _watch(self) -> None:
        due = time.monotonic()
        while True:
            self.try_sample()
            # Late samples are not made up for: a machine too busy to be watched is left alone.
            due = max(due + SECONDS_BETWEEN_SAMPLES, time.monotonic())
            if self._ended.wait(due - time.monotonic()):
                return


class _Gpu:
    """One GPU that this run's workers use; what NVML does not tell of it is None."""

    def __init__(self, index: int, warn_once: Callable[[str, Exception], None]) -> None:
        self._index = index
        self._warn_once = warn_once
        properties = torch.cuda.get_device_properties(index)
        self._name = properties.name
        self._handle = None
        try:
            pynvml.nvmlInit()
            # CUDA_VISIBLE_DEVICES renumbers GPUs for torch, not for NVML; their identity stays.
            self._handle = pynvml.nvmlDeviceGetHandleByUUID(f"GPU-{properties.uuid}")
        except pynvml.NVMLError as error:
            warn_once(f"GPU {index} cannot be monitored", error)

    def sample(self) -> GpuSample:
        """Look at the GPU once."""
        use = self._ask(pynvml.nvmlDeviceGetUtilizationRates)
        memory = self._ask(pynvml.nvmlDeviceGetMemoryInfo)
        milliwatts = self._ask(pynvml.nvmlDeviceGetPowerUsage)
        return GpuSample(
            index=self._index,
            name=self._name,
            utilization=use.gpu if use else None,
            memory_bytes=memory.used if memory else None,
            memory_total_bytes=memory.total if memory else None,
            power_watts=None if milliwatts is None else milliwatts / 1000,
            sm_clock_mhz=self._ask(pynvml.nvmlDeviceGetClockInfo, pynvml.NVML_CLOCK_SM),
        )

    def _ask(self, question: Callable[..., Any], *more: int) -> Any:
        if self._handle is None:
            return None
        try:
            return question(self._handle, *more)
        except pynvml.NVMLError as error:
            self._warn_once(f"GPU {self._index} can only be monitored in part", error)
            return None
