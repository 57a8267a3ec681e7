"""Experiment trackers behind one interface: what a run reports, and that none can hurt it."""

import queue
import threading
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from itertools import groupby
from pathlib import Path
from typing import Any

from dragoman.config import TrackerKind
from dragoman.runs.folder import RunFolder
from dragoman.runs.tracker_kinds import Point, Tracker, open_tracker

MOST_WAITING = 200_000  # Points that a slow tracker may be behind; then it is dropped.
SECONDS_AT_END = 60.0  # That a tracker has for what is still waiting.

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
