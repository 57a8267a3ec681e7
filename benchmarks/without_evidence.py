"""The command `dragoman` without its evidence, which `train_gpu.py` compares with the real one.

No monitor, and of all steps only the two between which the time is taken are written down.
"""

from typing import Any

from dragoman.cli import main
from dragoman.records import EventKind
from dragoman.runs.metrics import MetricsLog
from dragoman.runs.monitor import Monitor
from train_gpu import CASES, WARM_UP_STEPS

KEPT = (WARM_UP_STEPS, CASES[0].steps)
write = MetricsLog.write


def write_few(log: MetricsLog, kind: EventKind, step: int, *rest: Any) -> None:
    if kind != "train" or step in KEPT:
        write(log, kind, step, *rest)


if __name__ == "__main__":
    for owner, method, instead in (
        (MetricsLog, "write", write_few),
        (Monitor, "start", lambda *_: None),
    ):
        setattr(owner, method, instead)
    main()
