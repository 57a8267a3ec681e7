"""What somebody without a run's secret can do to it over the launcher's port."""

import json
import signal
from dataclasses import asdict
from pathlib import Path

import pytest

from dragoman.cluster.control_store import STORE_VARIABLE, connect
from dragoman.cluster.failures import Failure
from launched import LONG, train, training, worker_processes
from support import PATIENCE, has_step, metrics, wait_until

pytestmark = pytest.mark.slow


def test_what_a_stranger_writes_to_the_control_store_is_not_heeded(prepared: Path) -> None:
    run = prepared / "run"
    with training(prepared, *LONG) as process:
        wait_until(lambda: has_step(run, 3))
        store = connect(worker_processes(process)[0].environ()[STORE_VARIABLE])
        lie = Failure("you", 0, "at step 1", "\x1b[2J\x1b]0;owned\x07 the end", 0.0, is_final=True)
        forged = json.dumps(asdict(lie))
        signed = store.get("dragoman/agent//0")
        for content in (forged, "{}", "1", signed):
            for name in ("over", "result", "stop", "save", "saved", "failure/1", "rendezvous"):
                store.set(f"dragoman/{name}", content)
        step = metrics(run, "train")[-1]["step"]
        wait_until(lambda: has_step(run, step + 200))
        assert not metrics(run, "restart")
        process.send_signal(signal.SIGINT)
        _, errors = process.communicate(timeout=PATIENCE)
    assert process.returncode == 4, errors
    assert errors.count("wrote the notice 'result' to its control store") == 1, errors
    assert "Traceback" not in errors
    assert "\x1b" not in errors


@pytest.mark.parametrize("name", ["a{config}b", "${local_rank}$$", "with space; and 'quotes'"])
def test_a_run_may_have_any_name(prepared: Path, name: str) -> None:
    ended = train(prepared, name, 2, "training.steps=1")
    assert ended.returncode == 0, ended.stderr
    assert has_step(prepared / name, 1)
