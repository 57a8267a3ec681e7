"""What a check says, from findings written by hand."""

import math
from dataclasses import replace
from pathlib import Path

import pytest

from dragoman.check.advice import predictions
from dragoman.check.facts import Findings, MachineFacts
from dragoman.check.page import page
from dragoman.check.problems import disk_needed, problems
from dragoman.config import Config, shape_of
from dragoman.config_file import load_config
from dragoman.documents import encode, parse
from dragoman.prediction.step_model import StepFacts
from dragoman.records import Link

GIGABIT = 1e9 / 8


def link(first: str, second: str, goodput: float = 0.95 * GIGABIT) -> Link:
    return Link((first, second), "eth0", "10.0.0.1", 1000, goodput, 1e-4)


def machine(host: str) -> MachineFacts:
    return MachineFacts(host, 16, 64 << 30, ("V100",), (16 << 30,), 1 << 40, {"eth0": 1000})


STEP = StepFacts(
    parameters=60_880_896,
    target_tokens=30_000,
    seconds_compute_by_worker=(0.3, 0.3),
    seconds_optimizer=0.01,
    seconds_exposed=2.0,
    seconds_all_reduce=2.1,
    device="cuda",
)
FINDINGS = Findings(
    hosts=("A", "B"),
    machines=(machine("A"), machine("B")),
    links=(link("A", "B"), link("B", "A")),
    step=STEP,
)


@pytest.fixture
def config(small_text: Path) -> Config:
    return load_config(small_text / "config.toml", ["training.steps=50_000"])


def test_nothing_wrong_is_said_where_nothing_is(config: Config) -> None:
    assert problems(FINDINGS, config) == []


@pytest.mark.parametrize(
    ("findings", "words"),
    [
        (
            replace(FINDINGS, links=(link("A", "B"), link("B", "A", 0.1 * GIGABIT))),
            ["B -> A (eth0) is slow: 100 Mb/s, 11% of the best link", "eth0 of B advertises"],
        ),
        (
            replace(FINDINGS, links=(link("A", "B", 0.3 * GIGABIT), link("B", "A", 0.3 * GIGABIT))),
            ["eth0 of A advertises 1,000 Mb/s but carries 30%", "eth0 of B advertises"],
        ),
        (
            replace(FINDINGS, links=(link("A", "B"), link("B", "A", 0.002 * GIGABIT))),
            [
                "B -> A (eth0) is slow: 2.00 Mb/s, 0.2% of the best link; every step waits for it",
                "eth0 of B advertises 1,000 Mb/s but carries 0.2% of it",
            ],
        ),
        (
            replace(
                FINDINGS,
                machines=(
                    machine("A"),
                    replace(machine("B"), interfaces={"eth0": 1000, "ib0": 40_000}),
                ),
            ),
            ["B uses eth0 (1,000 Mb/s) although ib0 has 40,000 Mb/s"],
        ),
        (
            replace(FINDINGS, step=replace(STEP, seconds_compute_by_worker=(0.3, 0.6))),
            ["B is slow: 0.600 s of compute per step, 2.0 times the fastest host's"],
        ),
        (
            replace(FINDINGS, machines=(machine("A"), replace(machine("B"), gpus=("P100",)))),
            ["the GPUs differ (A V100, B P100)"],
        ),
        (
            replace(
                FINDINGS, machines=(machine("A"), replace(machine("B"), disk_free_bytes=4 << 30))
            ),
            # 3 latest, 2 best, 1 being written, 12 bytes a parameter.
            ["B has 4.29 GB free where the check ran; the checkpoints of this model take 4.38 GB"],
        ),
        (
            replace(
                FINDINGS, machines=(machine("A"), replace(machine("B"), clock_lead_seconds=-3.0))
            ),
            ["the clock of B is 3.0 s behind that of A"],
        ),
    ],
)
def test_each_trouble_is_named(findings: Findings, words: list[str], config: Config) -> None:
    found = problems(findings, config)
    assert len(found) == len(words), found
    for one, expected in zip(found, words, strict=True):
        assert one.startswith(expected)


def test_prediction_for_the_reference_runs_by_hand(config: Config) -> None:
    """2 machines at 1 Gb/s: 243.5 MB of gradients take 2.05 s at 95% of the wire."""
    predicted = predictions(FINDINGS, config)
    wire = 4 * 60_880_896 / (0.95 * GIGABIT)
    plain = predicted["all, gradients"]
    # What the measured exchange took beyond the wire is overhead; what was not exposed is hidden.
    assert plain.seconds_exposed == pytest.approx(2.0, rel=0.01)
    assert plain.seconds_step == pytest.approx(0.31 + 2.0, rel=0.01)
    assert predicted["all, bf16 gradients"].seconds_exposed < 0.6 * wire
    assert predicted["one worker alone"].seconds_step == pytest.approx(0.61)
    text = page(FINDINGS, config)
    assert "advice: set distributed.sync = 'auto', which chooses 'all, 4 int8 local" in text
    # Every way is named that is no gain, not the first one alone.
    slow = "With 'all, gradients' or 'all, bf16 gradients' the run would be slower than one"
    assert slow in text
    assert "Even so" not in text


def test_balanced_machines_do_not_wait_for_the_slower_one(config: Config) -> None:
    """Two thirds of the rows for the one, a third for the other: both take 0.2 s."""
    uneven = replace(FINDINGS, step=replace(STEP, seconds_compute_by_worker=(0.15, 0.3)))
    balanced = configure(config, balance=True)
    predicted = predictions(uneven, balanced)["all, gradients"]
    assert predicted.seconds_compute == pytest.approx(0.2)
    assert predictions(uneven, config)["all, gradients"].seconds_compute == pytest.approx(0.3)
    assert "B is slow" in page(uneven, config)
    assert "B is slow" not in page(uneven, balanced)


def test_one_worker_alone_is_the_fastest_one(config: Config) -> None:
    uneven = replace(FINDINGS, step=replace(STEP, seconds_compute_by_worker=(0.15, 0.3)))
    for settings in (config, configure(config, balance=True)):
        predicted = predictions(uneven, settings)
        assert predicted["one worker alone"].seconds_compute == pytest.approx(0.3)
    assert predicted["all, gradients"].efficiency < 0.7
    much = replace(STEP, seconds_compute_by_worker=(0.1, 0.3))
    text = page(replace(FINDINGS, step=much), config)
    assert text.endswith("train on one machine, or set distributed.balance = true")
    # What may be chance does not count.
    alike = replace(FINDINGS, step=replace(STEP, seconds_compute_by_worker=(0.28, 0.3)))
    assert predictions(alike, config)["one worker alone"].seconds_compute == pytest.approx(0.6)


def test_where_no_way_to_meet_is_a_gain_one_worker_is_advised(config: Config) -> None:
    slow = (link("A", "B", 1e-5 * GIGABIT), link("B", "A", 1e-5 * GIGABIT))
    text = page(replace(FINDINGS, links=slow), config)
    assert text.endswith("Even so one worker alone would be faster: train on one machine")


@pytest.mark.parametrize(("device", "alone"), [("cpu", 0.31), ("cuda", 0.61)])
def test_workers_of_one_cpu_machine_share_its_cores(
    config: Config, device: str, alone: float
) -> None:
    """Two workers with half the cores each are no gain over one that has them all."""
    findings = replace(
        FINDINGS,
        hosts=("A", "A"),
        machines=(machine("A"),),
        links=(),
        step=replace(STEP, device=device, seconds_all_reduce=0.05, seconds_exposed=0.05),
    )
    predicted = predictions(findings, config)
    assert predicted["one worker alone"].seconds_step == pytest.approx(alone)
    both = predicted["all, gradients"]
    assert both.efficiency == pytest.approx(alone / (0.36 if device == "cpu" else 2 * 0.36))
    words = "share its cores: a single worker uses them all"
    assert (words in page(findings, config)) is (device == "cpu")


def test_findings_survive_their_journey() -> None:
    assert parse(Findings, encode(FINDINGS)) == FINDINGS


def test_a_fast_network_needs_no_remedy(config: Config) -> None:
    fast = (link("A", "B", 100 * GIGABIT), link("B", "A", 100 * GIGABIT))
    step = replace(STEP, seconds_all_reduce=0.02, seconds_exposed=0.005)
    text = page(replace(FINDINGS, links=fast, step=step), config)
    assert "advice: keep what is configured" in text


def configure(config: Config, **settings: object) -> Config:
    return replace(config, distributed=replace(config.distributed, **settings))  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("settings", "row", "advice"),
    [
        # Gradients would spend 87% of a step on this link; local steps hide behind the computing.
        ({}, "all, gradients (configured)", "set distributed.sync = 'auto'"),
        ({"compression": "fp16"}, "all, fp16 gradients (configured)", "set distributed.sync"),
        (
            {"sync": "local", "local_delay": 0},
            "all, 32 local steps, delay 0 (configured)",
            "set distributed.sync = 'auto'",
        ),
        (
            {"sync": "auto"},
            "all, 4 int8 local steps in 4 fragments, delay 2 (configured)",
            "keep what is configured",
        ),
        (
            {"sync": "local", "compression": "bf16"},
            "all, 32 bf16 local steps (configured)",
            "keep what is configured",
        ),
        (
            {"sync": "local", "compression": "bf16", "local_steps": 64, "local_fragments": 4},
            "all, 64 bf16 local steps in 4 fragments (configured)",
            "keep what is configured",
        ),
    ],
)
def test_what_is_configured_is_marked_and_not_recommended(
    config: Config, settings: dict[str, object], row: str, advice: str
) -> None:
    text = page(FINDINGS, configure(config, **settings))
    assert text.count("(configured)") == 1
    assert f"\n  {row} " in text
    assert f"\nadvice: {advice}" in text


@pytest.mark.parametrize(
    ("gigabits", "chosen", "because"),
    [
        (1000, "all, gradients", "gradients would spend"),
        (100, "all, bf16 gradients", "in bf16"),
        (1, "all, 4 int8 local steps in 4 fragments, delay 1", "which 4 steps of 0.310 s hide"),
        (0.1, "all, 16 int4 local steps in 4 fragments, delay 5", "int4 differences take"),
        (0.01, "all, 48 int2 local steps in 24 fragments, delay 4", "at 10.0 Mb/s"),
        (1e-5, "all, 512 int2 local steps in 24 fragments, delay 511", "cannot hide"),
    ],
)
def test_the_slower_the_link_the_less_is_sent(
    config: Config, gigabits: float, chosen: str, because: str
) -> None:
    links = (link("A", "B", gigabits * GIGABIT), link("B", "A", gigabits * GIGABIT))
    wire = 4 * 60_880_896 / (gigabits * GIGABIT)
    step = replace(STEP, seconds_all_reduce=wire, seconds_exposed=wire)
    text = page(replace(FINDINGS, links=links, step=step), configure(config, sync="auto"))
    told = next(line for line in text.splitlines() if line.startswith("sync ="))
    assert told.startswith(f"sync = \"auto\" chooses '{chosen}': ")
    assert because in told
    assert ('optimizer.kind = "muon"' in text) == ("local" in chosen)
    muon = replace(config, optimizer=replace(config.optimizer, kind="muon"))
    quiet = page(replace(FINDINGS, links=links, step=step), configure(muon, sync="auto"))
    assert 'optimizer.kind = "muon"' not in quiet


@pytest.mark.parametrize(
    ("device", "seconds", "steps"),
    [("cuda", 0.3, 4), ("cuda", 0.03, 8), ("cpu", 0.3, 16), ("cpu", 3000.0, 4)],
)
def test_rounds_are_short_only_where_their_outer_steps_cost_little(
    config: Config, device: str, seconds: float, steps: int
) -> None:
    wire = 4 * 60_880_896 / (10 * GIGABIT)
    step = replace(
        STEP,
        device=device,
        seconds_compute_by_worker=(seconds, seconds),
        seconds_optimizer=0.0,
        # Gradients that would take too long, whatever the device.
        seconds_all_reduce=max(wire, seconds),
        seconds_exposed=max(wire, seconds),
    )
    links = (link("A", "B", 10 * GIGABIT), link("B", "A", 10 * GIGABIT))
    text = page(replace(FINDINGS, links=links, step=step), configure(config, sync="auto"))
    assert f"chooses 'all, {steps} int8 local steps" in text


def test_local_steps_are_given_up_where_the_network_is_fast(config: Config) -> None:
    fast = (link("A", "B", 100 * GIGABIT), link("B", "A", 100 * GIGABIT))
    step = replace(STEP, seconds_all_reduce=0.02, seconds_exposed=0.005)
    findings = replace(FINDINGS, links=fast, step=step)
    text = page(findings, configure(config, sync="local"))
    assert "advice: set distributed.compression = 'none' and sync = 'gradients'" in text


def test_checkpoints_of_local_steps_hold_three_or_four_numbers_more(config: Config) -> None:
    assert disk_needed(100, config) == 6 * 12 * 100
    assert disk_needed(100, configure(config, sync="local", compression="none")) == 6 * 24 * 100
    assert disk_needed(100, configure(config, sync="local", compression="int8")) == 6 * 28 * 100
    assert disk_needed(100, configure(config, sync="auto")) == 6 * 28 * 100


def test_checkpoints_of_muon_hold_one_moment_of_the_layers_matrices(config: Config) -> None:
    muon = replace(config, optimizer=replace(config.optimizer, kind="muon"))
    shape = shape_of(config.model)
    layer = 12 * shape.d_model**2 + 4 * shape.d_model * shape.feed_forward
    assert shape.encoder_layers == shape.decoder_layers
    matrices = shape.encoder_layers * layer  # An encoder's and a decoder's each.
    assert disk_needed(10**8, muon) == 6 * (12 * 10**8 - 4 * matrices)


def test_one_machine_alone_has_nothing_to_send(config: Config) -> None:
    alone = replace(
        FINDINGS,
        hosts=("A",),
        machines=(machine("A"),),
        links=(),
        step=replace(STEP, seconds_compute_by_worker=(0.6,), seconds_all_reduce=None),
    )
    predicted = predictions(alone, config)
    assert list(predicted) == ["one worker alone"]
    assert math.isclose(predicted["one worker alone"].seconds_step, 0.61)
    assert "no network is used" in page(alone, config)
