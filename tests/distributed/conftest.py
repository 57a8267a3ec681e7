"""Fixtures of runs over several workers and machines."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from forked import Template
from launched import PACED
from machines import Network, network, start_all


@pytest.fixture
def net(tmp_path: Path, template: Template) -> Iterator[Network]:
    """Two machines that answer, and a desk; they take their time with steps."""
    template.start()
    with network(tmp_path, ["hostA", "hostB"], template.place, PACED) as built:
        start_all(built)
        yield built


@pytest.fixture
def measured_net(tmp_path: Path, template: Template) -> Iterator[Network]:
    """The same, for tests that look at how long steps take."""
    template.start()
    with network(tmp_path, ["hostA", "hostB"], template.place, PACED | {"REST": "0"}) as built:
        start_all(built)
        yield built
