"""What workers that are to make one run must have in common."""

import time
from dataclasses import replace
from typing import Any

import pytest
import torch

from dragoman.cluster.agreement import MAX_CLOCK_SECONDS, Facts, agree
from dragoman.cluster.processes import Workers
from dragoman.errors import UserError

NOW = 1_000_000.0
OURS = Facts(
    *("1.0", "f00d", "2.13", "2.4", "3.11", "0.2", "c0ffee", "5eed"),
    settings={"model.dropout": 0.1, "training.steps": None},
)


def agree_with(
    monkeypatch: pytest.MonkeyPatch, theirs: Facts, clock_lead: float = 0.0
) -> list[float]:
    """Let worker 0 on hostA compare itself with worker 1 on hostB."""
    monkeypatch.setattr(time, "time", lambda: NOW)
    told = [theirs.by_name(), NOW + clock_lead]

    def gather_json(_: Workers, value: Any) -> list[Any]:
        return [value, told]

    monkeypatch.setattr(Workers, "gather", lambda *_: None)
    monkeypatch.setattr(Workers, "gather_json", gather_json)
    return agree(OURS, Workers(0, 2, torch.device("cpu"), ("hostA", "hostB")))


def test_those_who_agree_learn_how_far_their_clocks_are_apart(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    assert agree_with(monkeypatch, OURS, MAX_CLOCK_SECONDS) == [0.0, MAX_CLOCK_SECONDS]


@pytest.mark.parametrize(
    "name", ["dragoman", "code", "torch", "numpy", "python", "corpus", "parameters"]
)
def test_every_difference_is_told_with_both_values(
    monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    changes: dict[str, Any] = {name: "0.0.1"}
    theirs = replace(OURS, **changes)
    line = f"hostB (worker 1) has {name} 0.0.1, hostA (worker 0) has {getattr(OURS, name)}"
    with pytest.raises(UserError) as caught:
        agree_with(monkeypatch, theirs)
    assert str(caught.value) == f"the machines differ: {line}"


def test_settings_are_told_by_name_also_those_that_one_version_does_not_know(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    settings = OURS.settings | {"model.dropout": 0.3, "model.flavour": "sweet"}
    del settings["training.steps"]
    with pytest.raises(UserError) as caught:
        agree_with(monkeypatch, replace(OURS, settings=settings))
    told = str(caught.value)
    assert "hostB (worker 1) has model.dropout 0.3, hostA (worker 0) has 0.1" in told
    assert "hostB (worker 1) has model.flavour sweet, hostA (worker 0) has None" in told
    assert told.count("worker 1") == 2, "training.steps is not set on the other machine either"


@pytest.mark.parametrize("lead", [MAX_CLOCK_SECONDS + 1, -MAX_CLOCK_SECONDS - 1])
def test_clocks_too_far_apart_are_refused(monkeypatch: pytest.MonkeyPatch, lead: float) -> None:
    with pytest.raises(UserError, match=rf"the clock of hostB is \{lead:+.0f} s off that of hostA"):
        agree_with(monkeypatch, OURS, lead)
