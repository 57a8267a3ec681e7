"""What a machine does at the moment, for the live page."""

from collections import deque
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from dragoman.documents import parse_leniently
from dragoman.records import MachineSample
from dragoman.report.live.tail import Tail
from dragoman.runs.metrics import machine_scalars
from dragoman.wording import in_time

BYTES_LOOKED_BACK = 1 << 14  # Of its log: the last few samples.


class MachineNow:
    """The last two samples of a machine, from which its rates are taken."""

    def __init__(self, path: Path) -> None:
        # What happened before is in the report; the page shows what happens now.
        self._tail = Tail.from_end(path, BYTES_LOOKED_BACK)
        self._samples: deque[MachineSample] = deque(maxlen=2)

    @property
    def has_sample(self) -> bool:
        """Whether anything is known of the machine."""
        return bool(self._samples)

    @property
    def time(self) -> float:
        """Of the last sample."""
        return self._samples[-1].time if self._samples else 0.0

    def read(self) -> None:
        """Take in the samples that were added; of many, the last two say all."""
        lines = (line for line in self._tail.lines() if "cpu_percent" in line)
        for line in deque(lines, maxlen=2):
            self._samples.append(parse_leniently(MachineSample, line))

    def state(self, host: str, interface: str, now: float) -> dict[str, Any]:
        """What the machine does now, and since when nothing was heard of it."""
        before = self._samples[0] if len(self._samples) == 2 else None
        silent = now - self.time
        scalars = machine_scalars(before, self._samples[-1])
        return {
            "host": host,
            "scalars": scalars,
            "sent_megabits_per_second": _sent(scalars, interface),
            "silent": in_time(silent) if silent > 30 else None,
        }


def _sent(scalars: Mapping[str, float], interface: str) -> float | None:
    """What the run's interface sends, or else the busiest one."""
    ending = "/sent_megabits_per_second"
    sent = {name.removesuffix(ending): value for name, value in scalars.items() if ending in name}
    return sent[interface] if interface in sent else max(sent.values(), default=None)
