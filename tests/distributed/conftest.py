"""Fixtures of runs over several workers and machines."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from forked import Template
from machines import Network, network, start_all


@pytest.fixture(scope="module")
def fault_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A sitecustomize that makes one worker fail at a step, as the variable FAULT says."""
    folder = tmp_path_factory.mktemp("fault")
    (folder / "sitecustomize.py").write_text(
        """
import os, signal, time
if "FAULT" in os.environ and "RANK" in os.environ:
    rank, step, kind = os.environ["FAULT"].split(",")
    if os.environ["RANK"] == rank:
        from dragoman.training.step import PlainStep
        original = PlainStep.queue
        def queue(self, batch, number, *rest):
            if number == int(step) and kind == "exception":
                raise ValueError("the disk of this worker is on fire")
            if number == int(step) and kind == "memory":
                raise MemoryError("cannot allocate 1 TB")
            if number == int(step) and kind == "signal":
                os.kill(os.getpid(), signal.SIGSEGV)
            if number == int(step) and kind == "stuck":
                time.sleep(1_000)
            if number == int(step) and kind == "nan":
                for parameter in self._model.parameters():
                    parameter.data.fill_(float("nan"))
            return original(self, batch, number, *rest)
        PlainStep.queue = queue
"""
    )
    return folder


@pytest.fixture
def net(tmp_path: Path, template: Template) -> Iterator[Network]:
    """Two machines that answer, and a desk."""
    template.start()
    with network(tmp_path, ["hostA", "hostB"], template.place) as built:
        start_all(built)
        yield built
