"""Which interface leads to another machine, on a machine with two networks on one interface."""

import os
import subprocess
import sys

import pytest

pytestmark = [pytest.mark.slow, pytest.mark.network]

MACHINE = """
ip link set lo up
ip link add eth0 type veth peer name eth1
ip addr add 10.9.0.1/24 dev eth0
ip addr add 10.9.1.1/24 dev eth0
ip link set eth0 up
exec "$@"
"""


def ask(question: str) -> str:
    """What a function of the module answers there, or why it refuses."""
    if os.getuid():
        pytest.skip("needs root")
    code = f"""
from dragoman.cluster.network import *
try:
    print({question})
except UserError as error:
    print(error)
"""
    words = ["unshare", "--net", "sh", "-e", "-c", MACHINE, "sh", sys.executable, "-c", code]
    return subprocess.run(words, check=True, capture_output=True, text=True).stdout.strip()


@pytest.mark.parametrize(
    ("question", "answer"),
    [
        ("route_to('10.9.0.7')", "Route(interface='eth0', address='10.9.0.1')"),
        ("route_to('10.9.1.7')", "Route(interface='eth0', address='10.9.1.1')"),
        ("route_to('10.9.1.1')", "Route(interface='lo', address='127.0.0.1')"),
        ("route_to('10.9.1.7', 'eth0')", "Route(interface='eth0', address='10.9.0.1')"),
        (
            "route_to_others(['10.9.0.1', '10.9.1.7'])",
            "Route(interface='eth0', address='10.9.1.1')",
        ),
        ("interface_seen_by(2, '10.9.1.1')", "eth0"),
    ],
)
def test_every_address_of_an_interface_counts(question: str, answer: str) -> None:
    assert ask(question) == answer


@pytest.mark.parametrize(
    ("question", "start", "end"),
    [
        (
            "route_to('10.9.0.7', 'eth7')",
            "distributed.interface = 'eth7': ",
            " has no such interface with an address; it has lo (127.0.0.1), "
            "eth0 (10.9.0.1, 10.9.1.1)",
        ),
        (
            "route_to('10.9.0.7', 'lo')",
            "distributed.interface = 'lo' has no route to 10.9.0.7; ",
            " has lo (127.0.0.1), eth0 (10.9.0.1, 10.9.1.1)",
        ),
        ("interface_of('10.9.0.7')", "10.9.0.7 is not an address of ", "eth0 (10.9.0.1, 10.9.1.1)"),
    ],
)
def test_a_wrong_interface_is_named_beside_those_there_are(
    question: str, start: str, end: str
) -> None:
    told = ask(question)
    assert told.startswith(start)
    assert told.endswith(end)
