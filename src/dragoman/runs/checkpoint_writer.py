"""Saves checkpoints in the background while training continues."""

import shutil
import time
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from dragoman.config import CheckpointSettings
from dragoman.records import CheckpointFailed, CheckpointSaved
from dragoman.runs.checkpoint import (
    Checkpoint,
    Tensors,
    delete_checkpoints,
    prune,
    write_checkpoint,
)
from dragoman.runs.checkpoint_index import checkpoint_name
from dragoman.runs.folder import RunFolder

ELEMENTS_AT_ONCE = 1 << 21  # Of a checkpoint, on their way from a GPU.


@dataclass(frozen=True)
class Saved:
    """What became of a save."""

    step: int
    event: CheckpointSaved | CheckpointFailed
    left_over: str = ""  # Why old checkpoints could not be deleted, if so.


class CheckpointWriter:
    """Saves checkpoints in a background thread, one at a time."""

    def __init__(self, run: RunFolder, settings: CheckpointSettings) -> None:
        self._run = run
        self._settings = settings
        self._thread = ThreadPoolExecutor(1, "checkpoint")
        self._under_way: Future[Saved] | None = None

    def save(self, checkpoint: Checkpoint) -> Saved | None:
        """Copy the tensors and go on; return what became of the save before this one."""
        start = time.perf_counter()
        before = self.finish()
        copied = replace(
            checkpoint,
            weights=_copy(checkpoint.weights),
            optimizer=_copy(checkpoint.optimizer),
        )
        has_gpu = torch.cuda.is_initialized()  # type: ignore[no-untyped-call]
        ready = torch.cuda.current_stream().record_event() if has_gpu else None
        seconds_blocking = time.perf_counter() - start
        self._under_way = self._thread.submit(self._write, copied, ready, seconds_blocking)
        return before

    def finish(self) -> Saved | None:
        """Wait for the save under way, if any."""
        under_way, self._under_way = self._under_way, None
        return under_way.result() if under_way else None

    def done(self) -> Saved | None:
        """Return the save under way if it has just been finished."""
        return self.finish() if self._under_way and self._under_way.done() else None

    def _write(
        self, checkpoint: Checkpoint, ready: torch.cuda.Event | None, seconds_blocking: float
    ) -> Saved:
        start = time.perf_counter()
        if ready:
            checkpoint = _bring_to_host(checkpoint, ready)
        folder, name = self._run.checkpoints, checkpoint_name(checkpoint.step)
        try:
            written = write_checkpoint(folder, checkpoint)
        except OSError as error:
            # Training goes on; the older checkpoints are untouched.
            shutil.rmtree(folder / f".{name}", ignore_errors=True)
            return Saved(checkpoint.step, CheckpointFailed(error.strerror or str(error)))
        left_over = ""
        try:
            delete_checkpoints(folder, written.void)
            prune(folder, self._settings)
        except OSError as error:
            left_over = str(error)
        seconds = time.perf_counter() - start
        event = CheckpointSaved(name, written.bytes, seconds_blocking, seconds)
        return Saved(checkpoint.step, event, left_over)


def _copy(tensors: Tensors) -> dict[str, Tensor]:
    """Copy tensors where they are, which takes a GPU no time; or to the host, if it is full."""
    try:
        return {name: tensor.detach().clone() for name, tensor in tensors.items()}
    except torch.OutOfMemoryError:
        return {name: tensor.detach().to("cpu", copy=True) for name, tensor in tensors.items()}


def _bring_to_host(checkpoint: Checkpoint, ready: torch.cuda.Event) -> Checkpoint:
    """Copy a checkpoint's tensors to the host beside what the device computes meanwhile."""
    beside = torch.cuda.Stream(ready.device)  # type: ignore[no-untyped-call]
    beside.wait_event(ready)
    # Through a little pinned memory: a copy to any other stops everyone who wants the GPU.
    pinned = torch.empty(ELEMENTS_AT_ONCE).pin_memory()

    def bring(tensor: Tensor) -> Tensor:
        host = torch.empty(tensor.shape, dtype=tensor.dtype)
        parts = (torch.split(one.flatten(), len(pinned)) for one in (tensor, host))
        for there, here in zip(*parts, strict=True):
            passing = pinned[: len(there)].copy_(there, non_blocking=True)
            beside.synchronize()
            here.copy_(passing)
        return host

    with torch.cuda.stream(beside):
        return replace(
            checkpoint,
            weights={name: bring(tensor) for name, tensor in checkpoint.weights.items()},
            optimizer={name: bring(tensor) for name, tensor in checkpoint.optimizer.items()},
        )
