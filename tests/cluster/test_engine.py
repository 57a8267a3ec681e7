"""What PyTorch's insides must offer; a failure here means that a new PyTorch has changed them."""

import inspect
import os
import tomllib
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as distributed
from torch.distributed.elastic.agent.server.api import SimpleElasticAgent
from torch.distributed.elastic.agent.server.local_elastic_agent import LocalElasticAgent
from torch.distributed.elastic.multiprocessing.api import SubprocessContext
from torch.distributed.elastic.rendezvous import dynamic_rendezvous

from dragoman.cluster import engine

CHANGED = f"torch {torch.__version__} has changed {{}}: see src/dragoman/cluster/engine.py"


@pytest.mark.parametrize(
    ("owner", "names"),
    [
        (SimpleElasticAgent.__init__, ["_remaining_restarts"]),
        (SimpleElasticAgent._invoke_run, ["_remaining_restarts"]),
        (LocalElasticAgent._start_workers, ["_pcontext"]),
        (SubprocessContext, ["subprocess_handlers", ".proc.poll()"]),
        (dynamic_rendezvous.DynamicRendezvousHandler, ["def _stop_heartbeats"]),
        (engine.RendezvousStateHolder, ["def _sanitize", "self._state", "last_heartbeats"]),
        (engine.NodeDescription, ["addr: str", "pid: int", "local_id: int"]),
        (dynamic_rendezvous, ["TORCH_DISABLE_SHARE_RDZV_TCP_STORE"]),
    ],
)
def test_what_is_used_is_there(owner: Any, names: list[str]) -> None:
    source = inspect.getsource(owner)
    for name in names:
        assert name in source, CHANGED.format(f"{owner.__name__}: {name}")


@pytest.mark.parametrize(
    "method", ["_rendezvous", "_start_workers", "_monitor_workers", "_restart_workers"]
)
def test_what_the_agent_overrides_is_called(method: str) -> None:
    called = inspect.getsource(SimpleElasticAgent) + inspect.getsource(LocalElasticAgent)
    assert f"self.{method}(" in called, CHANGED.format(method)


def test_the_process_groups_store_is_found(tmp_path: Path) -> None:
    distributed.init_process_group(
        "gloo", init_method=f"file://{tmp_path}/store", rank=0, world_size=1
    )
    try:
        engine.default_store().set("key", "value")
        assert engine.default_store().get("key") == b"value", CHANGED.format("_get_default_store")
    finally:
        distributed.destroy_process_group()


def test_versions_of_torch_are_bounded_on_both_sides() -> None:
    path = Path(__file__).parents[2] / "pyproject.toml"
    wanted = tomllib.loads(path.read_text())["project"]["dependencies"][0]
    assert wanted.startswith("torch>=")
    assert ",<" in wanted


def test_importing_a_part_changes_no_variable() -> None:
    import dragoman.cluster.agent
    import dragoman.cluster.launch

    for module in (dragoman.cluster.agent, dragoman.cluster.launch, engine):
        top = [line for line in inspect.getsource(module).splitlines() if line[:1].strip()]
        assert not [line for line in top if line.startswith("os.environ")], module.__name__
    assert os.environ.get("TORCH_DISABLE_SHARE_RDZV_TCP_STORE") != "1"
