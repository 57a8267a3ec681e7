"""Imported by every worker of the tests' launched runs, because their PYTHONPATH says so.

Steps take a while but no core: tests wait for machines that are lost and found, and what trains
meanwhile would only slow that down. Little is measured before the first step. Variables ask for
more: FAULT (worker, step, kind) makes a worker fail, LEAVES says how worker 1 leaves when
everything is done, and REST=0 leaves steps and links as they are, to be measured.
"""

import atexit
import os
import signal
import time
from typing import Any

SECONDS_OF_REST = float(os.environ.get("REST", "0.03"))

if "RANK" in os.environ:
    from dragoman.training import calibration, trainer
    from dragoman.training.step import PlainStep

    calibration.MATRIX_SIZES["cpu"] = 64
    if SECONDS_OF_REST:
        vars(trainer)["SECONDS_PER_LINK"] = 0.01
    fault_rank, fault_step, fault = os.environ.get("FAULT", "-1,0,none").split(",")
    queue_step = PlainStep.queue

    def queue(self: Any, batch: Any, number: int, *rest: Any, **named: Any) -> Any:
        time.sleep(SECONDS_OF_REST)
        if os.environ["RANK"] == fault_rank and number == int(fault_step):
            fail(self)
        return queue_step(self, batch, number, *rest, **named)

    def fail(step: Any) -> None:
        if fault == "exception":
            raise ValueError("the disk of this worker is on fire")
        if fault == "memory":
            raise MemoryError("cannot allocate 1 TB")
        if fault == "signal":
            os.kill(os.getpid(), signal.SIGSEGV)
        if fault == "stuck":
            time.sleep(1_000)
        if fault == "nan":
            for parameter in step._model.parameters():
                parameter.data.fill_(float("nan"))

    PlainStep.queue = queue  # type: ignore[assignment, method-assign]

if "LEAVES" in os.environ and os.environ.get("RANK") == "1":
    ways = {
        "slowly": lambda: time.sleep(6),
        "never": lambda: os.kill(os.getpid(), signal.SIGSTOP),
        "killed": lambda: os.kill(os.getpid(), signal.SIGKILL),
        "with an error": lambda: os._exit(1),
    }
    atexit.register(ways[os.environ["LEAVES"]])
