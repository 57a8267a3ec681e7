"""How agents meet whose clocks differ."""

import subprocess
import sys

import pytest
from torch._C._distributed_c10d import TCPStore

import forked

# A machine with a clock of its own, which says how many it meets, and then how many are left.
MACHINE = """
import datetime, os, sys, time
os.environ["TORCH_DISABLE_SHARE_RDZV_TCP_STORE"] = "1"
from torch.distributed.elastic.rendezvous import dynamic_rendezvous
from dragoman.cluster import rendezvous
from dragoman.cluster.control_store import connect

name, lead, port = sys.argv[1:]
class Clock(datetime.datetime):
    @classmethod
    def now(cls, zone=None):
        return datetime.datetime.now(zone) + datetime.timedelta(seconds=float(lead))
dynamic_rendezvous.datetime = rendezvous.datetime = Clock

store = connect(f"127.0.0.1:{port}")
backend = rendezvous.SignedRendezvous(store, "run", b"secret")
handler = rendezvous.make_handler(backend, store, "run", name, (2, 2), 60.0)
print(handler.next_rendezvous().world_size, flush=True)
while True:
    time.sleep(0.5)
    handler.num_nodes_waiting()
    print(len(handler._state_holder.state.participants), flush=True)
"""


@pytest.mark.slow
@pytest.mark.parametrize("lead", ["30", "-30"])
def test_machines_whose_clocks_differ_meet_and_notice_who_is_gone(lead: str) -> None:
    store = TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    machines = [
        subprocess.Popen(
            [sys.executable, *forked.OPTION, "-c", MACHINE, name, seconds, str(store.port)],
            stdout=subprocess.PIPE,
            text=True,
        )
        for name, seconds in (("hostA", "0"), ("hostB", lead))
    ]
    with machines[0] as first, machines[1] as second:
        try:
            assert first.stdout
            assert second.stdout
            for _ in range(12):  # Longer than a machine may be silent.
                assert (first.stdout.readline(), second.stdout.readline()) == ("2\n", "2\n")
            second.kill()
            assert "1\n" in first.stdout, "it was never noticed"
        finally:
            first.kill()
            second.kill()
