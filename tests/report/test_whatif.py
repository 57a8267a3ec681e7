import math
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from dragoman.cli import main
from dragoman.errors import UserError
from dragoman.prediction.assumptions import assumptions_of
from dragoman.prediction.network import compressed_share
from dragoman.prediction.questions import usual_questions
from dragoman.prediction.step_model import (
    ALONE,
    GIGABIT,
    USUAL_LATENCY_SECONDS,
    MeasuredRun,
    Scenario,
    predict,
    split_excess,
    whatif_table,
)
from dragoman.prediction.sync_choice import choose_local_steps
from dragoman.report.evidence import load_evidence
from dragoman.report.findings.analysis import analyse
from dragoman.report.findings.measured_run import demand_calibration, describe_fit
from dragoman.report.page.whatif_table import (
    WhatifOptions,
    parse_bandwidth,
    prediction_cells,
    questions_of,
    text_table,
    whatif_command,
)
from dragoman.wording import in_percent
from report.run_folders import PARAMETERS, START, RunFolder, calm_run, grown_run, pair_run
from support import refusal

BASE = 4 * 60_880_896


def load_calibration(run: Path) -> MeasuredRun:
    return demand_calibration(run, analyse(load_evidence(run, START)).calibration)


@pytest.fixture(autouse=True)
def wide_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "200")


TWO_MACHINES = MeasuredRun(
    machines=2,
    workers=2,
    gradient_bytes=BASE,
    tokens_per_step=30_000,
    seconds_compute=0.6,
    seconds_optimizer=0.02,
    seconds_fixed=0.01,
    bytes_per_second=0.95 * GIGABIT,
    latency_seconds=1e-4,
)


@pytest.mark.parametrize(
    ("machines", "workers", "share"),
    [
        (1, 4, 0),
        (2, 2, 1),
        (2, 8, 1),  # 2 (2-1)/2: its workers add up inside each machine first.
        (4, 4, 1.5),
        (8, 64, 1.75),
    ],
)
def test_bytes_on_the_wire(machines: int, workers: int, share: float) -> None:
    plain = predict(TWO_MACHINES, Scenario(machines=machines, workers=workers))
    assert plain.bytes_per_step == share * BASE
    half = predict(TWO_MACHINES, Scenario(machines=machines, workers=workers, compression="bf16"))
    assert half.bytes_per_step == share * BASE / 2
    local = predict(TWO_MACHINES, Scenario(machines=machines, workers=workers, local_steps=50))
    assert local.bytes_per_step == share * BASE / 50


def test_the_reference_model_over_a_gigabit() -> None:
    """The field notes measured 2.05 s of exchange for float32 and 1.03 s for 16 bits."""
    plain = predict(TWO_MACHINES, Scenario())
    assert plain.seconds_exposed == pytest.approx(2.05, rel=0.01)
    assert plain.seconds_step == pytest.approx(0.6 + 0.02 + 0.01 + plain.seconds_exposed)
    half = predict(TWO_MACHINES, Scenario(compression="bf16"))
    assert half.seconds_exposed == pytest.approx(1.03, rel=0.01)
    tenth = predict(TWO_MACHINES, Scenario(bytes_per_second=9.5 * GIGABIT))
    assert tenth.seconds_exposed == pytest.approx(0.205, rel=0.01)


def test_a_prediction_by_hand() -> None:
    # Eight machines: 0.6 x 2 / 8 of compute, 2 x 7/8 of the bytes, 14 hops.
    found = predict(
        TWO_MACHINES,
        Scenario(workers=8, bytes_per_second=1e9, latency_seconds=0.001, device_speed=2),
        steps=1000,
        price_per_machine_hour=3.0,
    )
    compute = 0.6 * 2 / 8 / 2
    exchange = 1.75 * BASE / 1e9 + 14 * 0.001
    step = compute + 0.01 + 0.02 / 2 + exchange
    assert found.machines == 8
    assert found.seconds_step == pytest.approx(step)
    assert found.bytes_per_step == pytest.approx(1.75 * BASE)
    assert found.tokens_per_second == pytest.approx(30_000 / step)
    assert found.efficiency == pytest.approx((0.6 + 0.02) / (8 * step))
    assert found.hours == pytest.approx(1000 * step / 3600)
    assert found.cost == pytest.approx(1000 * step / 3600 * 8 * 3.0)


def test_workers_of_one_machine_add_up_at_no_cost_on_the_wire() -> None:
    """Two machines of four workers: two hops as with one worker each, and a quarter of compute."""
    found = predict(replace(TWO_MACHINES, seconds_overhead=0.05), Scenario(machines=2, workers=8))
    assert found.seconds_compute == pytest.approx(0.15)
    assert found.seconds_exposed == pytest.approx(BASE / (0.95 * GIGABIT) + 2 * 1e-4 + 0.05)


def test_on_cpus_the_workers_of_a_machine_share_its_cores() -> None:
    two_each = replace(TWO_MACHINES, workers=4, device="cpu")
    # One worker has one machine's cores: the work of two machines.
    assert predict(two_each, Scenario(machines=1, workers=1)).seconds_compute == pytest.approx(1.2)
    crowded = predict(two_each, Scenario(machines=2, workers=8))
    assert crowded.seconds_compute == pytest.approx(0.6)
    assert crowded.efficiency == pytest.approx((2 * 0.6 + 0.03) / (2 * crowded.seconds_step))
    assert predict(two_each, Scenario(workers=8)).seconds_compute == pytest.approx(0.3)


def test_local_steps_by_hand() -> None:
    staging = 60_880_896 * 2e-9
    exchange = BASE / (0.95 * GIGABIT) + 2 * 1e-4 + staging
    outer = 60_880_896 * 4e-11 / 50
    waited = predict(TWO_MACHINES, Scenario(local_steps=50, local_delay=0))
    assert waited.bytes_per_step == BASE / 50
    assert waited.seconds_exposed == pytest.approx(exchange / 50)
    assert waited.seconds_step == pytest.approx(0.63 + outer + exchange / 50)
    half = predict(TWO_MACHINES, Scenario(local_steps=50, local_delay=0, compression="bf16"))
    took = BASE / 2 / (0.95 * GIGABIT) + 2e-4 + staging
    assert half.seconds_exposed == pytest.approx(took / 50)
    # It travels beside 50 steps of 0.63 s: nothing is waited for, in one piece or in four.
    for fragments in (1, 4):
        spread = predict(TWO_MACHINES, Scenario(local_steps=50, local_fragments=fragments))
        assert spread.seconds_exposed == 0
        assert spread.seconds_step == pytest.approx(0.63 + outer)
    # Two fragments of three steps each hide six steps' worth; beyond them everyone waits.
    short = Scenario(local_steps=50, local_fragments=2, local_delay=3, bytes_per_second=1e6)
    took = BASE / 1e6 + 2 * 2 * 1e-4 + staging
    assert predict(TWO_MACHINES, short).seconds_exposed == pytest.approx((took - 6 * 0.63) / 50)
    # Over 1 Mbit/s an exchange takes longer than all steps, and every fragment has its two hops.
    slow = Scenario(local_steps=50, local_fragments=4, bytes_per_second=GIGABIT / 1e3)
    took = BASE / (GIGABIT / 1e3) + 4 * 2 * 1e-4 + staging
    hidden = 48 * 0.63  # Each of the four has twelve steps until the next one sets out.
    assert predict(TWO_MACHINES, slow).seconds_exposed == pytest.approx((took - hidden) / 50)


def test_the_way_from_a_gpu_to_a_fast_link_takes_time_too() -> None:
    fast = replace(
        TWO_MACHINES, seconds_compute=0.01, seconds_optimizer=0.0, bytes_per_second=100 * GIGABIT
    )
    way = Scenario(compression="int8", local_steps=8, local_fragments=4, local_delay=1)
    own = way.apply_to(fast)
    staging = 60_880_896 * 2e-9
    assert own.exchange_seconds == pytest.approx(own.link_seconds + staging)
    # Each of four fragments has a step of 0.02 s; the link alone would do with less.
    assert own.link_seconds < 4 * 0.02 < own.exchange_seconds
    assert predict(fast, way).seconds_exposed == pytest.approx(
        (own.exchange_seconds - 4 * 0.02) / 8
    )
    assert predict(fast, choose_local_steps(fast)).seconds_exposed == 0
    on_a_cpu = way.apply_to(replace(fast, device="cpu"))
    assert on_a_cpu.exchange_seconds == on_a_cpu.link_seconds


def test_every_usual_question_has_an_answer_for_local_steps_in_few_bits() -> None:
    run = replace(TWO_MACHINES, local_steps=16, local_fragments=4, compression="int4")
    for label, scenario in usual_questions(run):
        assert predict(run, scenario, label).seconds_step > 0
    with pytest.raises(UserError, match="int4 needs local steps"):
        predict(run, Scenario(local_steps=1, local_fragments=1))


def test_fewer_bits_and_outer_steps_cost_a_cpu_more() -> None:
    cpus = replace(TWO_MACHINES, device="cpu", bytes_per_second=1e12)
    steps = [
        predict(cpus, Scenario(local_steps=10, compression=one)).seconds_step
        for one in ("none", "bf16", "int8", "int4")
    ]
    assert steps == sorted(steps)
    assert steps[0] > 0.63
    assert predict(cpus, Scenario(local_steps=20, compression="int4")).seconds_step < steps[-1]


def test_overlap_hides_no_more_than_the_backward_pass() -> None:
    hiding = replace(TWO_MACHINES, latency_seconds=0.0, overlap=0.5)
    slow = predict(hiding, Scenario(bytes_per_second=GIGABIT / 10))
    exchange = BASE / (GIGABIT / 10)
    assert slow.seconds_exposed == pytest.approx(exchange - 0.5 * 0.6 * 2 / 3)
    fast = predict(hiding, Scenario(bytes_per_second=BASE / 0.1))
    assert fast.seconds_exposed == pytest.approx(0.05)
    # Four times the batch: only the last quarter's backward pass runs beside the exchange.
    more = predict(hiding, Scenario(bytes_per_second=GIGABIT / 10, batch_factor=4))
    assert more.seconds_exposed == pytest.approx(slow.seconds_exposed)
    assert more.seconds_compute == pytest.approx(2.4)
    # Twice the workers have half the micro-batches of two: the backward pass is as long.
    two = replace(hiding, micro_batches=2)
    twice = predict(two, Scenario(bytes_per_second=GIGABIT / 10, workers=4))
    assert twice.seconds_compute == pytest.approx(0.3)
    assert twice.seconds_exposed == pytest.approx(1.5 * exchange - 0.5 * 0.3 * 2 / 3)


def test_one_machine_needs_no_network() -> None:
    alone = predict(TWO_MACHINES, Scenario(machines=1, workers=2))
    assert alone.bytes_per_step == 0
    assert alone.seconds_exposed == 0


@pytest.mark.parametrize(
    ("scenario", "problem"),
    [
        (Scenario(machines=4, workers=2), "every machine needs a worker"),
        (Scenario(local_fragments=4), "need at least as many local steps"),
        (Scenario(local_steps=8, local_delay=9), "a delay of 9 is more than 8 local steps"),
        (Scenario(local_steps=8, compression="powersgd"), "powersgd only works on gradients"),
    ],
)
def test_what_cannot_be(scenario: Scenario, problem: str) -> None:
    with pytest.raises(UserError, match=problem):
        predict(TWO_MACHINES, scenario)


def test_the_usual_questions_reach_a_thousand_workers() -> None:
    rows = whatif_table(TWO_MACHINES, usual_questions(TWO_MACHINES), steps=50_000)
    assert rows[0].label == "this run"
    assert max(row.workers for row in rows) == 1024
    steps = {row.label: row.seconds_step for row in rows}
    assert steps["infinite bandwidth"] < steps["network of 10 Gb/s"] < steps["network of 1 Gb/s"]
    text = text_table(prediction_cells(rows, 50_000), 200)
    assert "1,024 workers" in text
    assert len({len(line) for line in text.splitlines()[-len(rows) :]}) == 1


def test_every_worker_needs_a_row() -> None:
    run = replace(TWO_MACHINES, rows_per_step=8.0)
    assert max(row.workers for row in whatif_table(run, usual_questions(run))) == 4
    with pytest.raises(UserError, match=r"9 workers for 8 rows of a step: .* --batch-factor"):
        questions_of(Scenario(workers=9), run)
    assert questions_of(Scenario(workers=9, batch_factor=2), run)
    alone = replace(run, machines=1, workers=1, rows_per_step=1.0)
    assert {row.workers for row in whatif_table(alone, usual_questions(alone))} == {1}


def test_a_table_fits_its_terminal_and_loses_nothing() -> None:
    rows = whatif_table(TWO_MACHINES, usual_questions(TWO_MACHINES), 50_000, 2.0)
    cells = prediction_cells(rows, 50_000)
    narrow = text_table(cells, 80)
    assert max(map(len, narrow.splitlines())) <= 80
    words = narrow.split()
    assert all(words.count(word) >= 1 for row in cells for cell in row for word in cell.split())
    # Every row stands in both tables, under its own name.
    first, second = narrow.split("\n\n")
    for row in cells[1:]:
        for table in (first, second):
            assert sum(line.startswith(f"{row[0]} ") for line in table.splitlines()) == 1
    # Four times the batch makes 12,500 steps of as many tokens.
    assert [line.split("  ")[-1].strip() for line in first.splitlines()[:3]] == [
        "tokens of",
        "50,000 steps",
        "take",
    ]


def test_what_was_measured_alone_tests_the_model(tmp_path: Path) -> None:
    def fit(run: RunFolder) -> str:
        findings = analyse(load_evidence(run.write(), START))
        assert findings.latest_times is not None
        assert findings.network is not None
        return describe_fit(findings.latest_times, findings.network, findings.latest_times.mean)

    alone = fit(calm_run(tmp_path / "alone"))
    assert "predicted 1.00 s without waiting for the network; 1.00 s was measured" in alone
    assert alone.endswith("they agree.")
    pair = fit(pair_run(tmp_path / "pair", exposed=0.05, all_reduce=1.0))
    # 2/3 of 0.76 s can be hidden.
    assert "predicted 0.493 s to 1.00 s of waiting; 50.0 ms was measured" in pair
    assert pair.endswith("they do not agree.")
    untested = calm_run(tmp_path / "untested")
    untested.lines = [line for line in untested.lines if line["kind"] != "calibration"]
    assert "There are no independent measurements" in fit(untested)


def test_calibration_of_a_run(tmp_path: Path) -> None:
    # Half a second of exchange (4 MB at 8 MB/s and two latencies), 0.3 s of it exposed.
    found = load_calibration(pair_run(tmp_path, exposed=0.3, all_reduce=0.602).write())
    assert found.gradient_bytes == 4 * PARAMETERS
    assert (found.machines, found.workers) == (2, 2)
    assert (found.bytes_per_second, found.latency_seconds) == (8e6, 0.001)
    assert found.seconds_compute == pytest.approx(0.56)
    # Of the 0.1 s that an exchange took too long hosts account for 0.04, 10 ns a byte.
    assert found.seconds_overhead == pytest.approx(0.04)
    assert found.link_share == pytest.approx(0.5 / 0.56)
    infinite = Scenario(bytes_per_second=math.inf).apply_to(found)
    assert infinite.exchange_seconds == pytest.approx(0.04 + 0.002)
    # 1,024 slots in rows of 128 are 4 rows a worker, and a device takes 4: one micro-batch.
    assert found.micro_batches == 1
    assert found.overlap == pytest.approx((0.602 - 0.3) / (0.56 * 2 / 3))
    assert predict(found, Scenario()).seconds_step == pytest.approx(1.0)


@pytest.mark.parametrize(
    ("too_long", "of_hosts", "link_share"),
    [(-0.1, 0, 1), (0.008, 0.008, 1), (0.2, 0.01, 0.5 / 0.69), (2.0, 1.5, 0.5)],
)
def test_what_an_exchange_takes_too_long_is_the_hosts_within_limits(
    too_long: float, of_hosts: float, link_share: float
) -> None:
    found = split_excess(too_long, on_link=0.5, sent_bytes=1_000)
    assert found == pytest.approx((of_hosts, link_share))
    assert split_excess(0.2, on_link=0.0, sent_bytes=1_000) == (0.2, 1.0)


def test_calibration_of_a_run_with_local_steps(tmp_path: Path) -> None:
    # An exchange of 0.502 s every 5 steps, nothing hidden: 0.1004 s of each step.
    run = pair_run(tmp_path, exposed=0.1004, all_reduce=0.502)
    assert run.settings is not None
    run.settings += '\n[distributed]\nsync = "local"\nlocal_steps = 5\nlocal_delay = 0\n'
    for line in run.lines:
        if line["kind"] == "calibration":
            line["bytes_per_step"] = 4 * PARAMETERS / 5
    found = load_calibration(run.write())
    assert found.local_steps == 5
    assert found.overlap == pytest.approx(0, abs=1e-9)
    outer = 17.5e-9 * PARAMETERS / 5
    assert predict(found, Scenario()).seconds_step == pytest.approx(1.0, abs=2 * outer)
    every_step = predict(found, Scenario(local_steps=1))
    assert every_step.seconds_step == pytest.approx(1.0 - 0.1004 + 0.502)
    assert "an exchange every step" in dict(usual_questions(found))
    # Gradients cannot be sent in four bits, and have no fragments.
    few = replace(found, compression="int4", local_fragments=2)
    assert dict(usual_questions(few))["an exchange every step, bf16"].compression == "bf16"
    (_, asked), *_ = questions_of(Scenario(local_steps=1), few)
    assert (asked.compression, asked.local_fragments) == ("bf16", 1)


@pytest.mark.parametrize(
    ("device", "compression", "beside_link"),
    [("cuda", "int4", 2e-9), ("cpu", "int4", 15e-9), ("cpu", "bf16", 2.5e-9)],
)
def test_what_an_exchange_takes_beside_the_link_is_not_scaled_with_its_bits(
    tmp_path: Path, device: str, compression: str, beside_link: float
) -> None:
    share = compressed_share(compression)  # type: ignore[arg-type]
    on_link = 0.5 * share + 0.002
    run = pair_run(tmp_path, exposed=0.0, all_reduce=on_link + beside_link * PARAMETERS)
    assert run.settings is not None
    run.settings += '\n[distributed]\nsync = "local"\nlocal_steps = 5\n'
    for line in run.lines:
        if line["kind"] == "start":
            line["device"] = device
        if line["kind"] == "calibration":
            line |= {"bytes_per_step": share * 4 * PARAMETERS / 5, "compression": compression}
    found = load_calibration(run.write())
    assert found.seconds_overhead == pytest.approx(0, abs=1e-9)
    every_step = Scenario(local_steps=1, local_fragments=1, compression="none")
    assert every_step.apply_to(found).exchange_seconds == pytest.approx(0.502)


@pytest.mark.parametrize(
    ("by_worker", "rows", "alone"),
    # Twice what the fastest takes for half of the rows, which is worker 0, or the other one.
    [((0.4, 0.8), None, 0.8), ((0.4, 0.2), None, 0.4), ((0.4, 0.8), [20, 10], 0.6)],
)
def test_one_worker_alone_is_the_fastest_one(
    tmp_path: Path, by_worker: tuple[float, ...], rows: list[int] | None, alone: float
) -> None:
    run = pair_run(tmp_path, exposed=0.5, all_reduce=0.502)
    for line in run.lines:
        if line["kind"] == "calibration":
            line |= {"seconds_compute_by_worker": list(by_worker), "balanced_rows": rows}
    found = load_calibration(run.write())
    assert predict(found, ALONE).seconds_compute == pytest.approx(alone)


def test_the_first_line_says_how_far_it_is_from_the_run(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    # 0.5 s were waited for an exchange that takes 0.4 s alone: nothing explains the rest.
    run = pair_run(tmp_path, exposed=0.5, goodput=10_000_000.0, all_reduce=0.4).write()
    found = load_calibration(run)
    assert found.overlap == 0
    assert predict(found, Scenario()).seconds_step == pytest.approx(0.5 + 0.402)
    whatif_command(run, WhatifOptions(), now=START)
    assert "mean step of 1.00 s; for the run itself (first row) it is 9.8% too low" in " ".join(
        capsys.readouterr().out.split()
    )


def test_every_fragment_has_its_hops(tmp_path: Path) -> None:
    run = pair_run(tmp_path, exposed=0.0, all_reduce=None)
    assert run.settings is not None
    run.settings += '\n[distributed]\nsync = "local"\nlocal_steps = 8\nlocal_fragments = 4\n'
    for line in run.lines:
        if line["kind"] == "calibration":
            line["bytes_per_step"] = 4 * PARAMETERS / 8
    findings = analyse(load_evidence(run.write(), START))
    # 4 MB over 8 MB/s, and two latencies for each of four fragments.
    assert findings.network is not None
    assert findings.network.theory_seconds == pytest.approx(0.5 + 4 * 2 * 0.001)
    assert findings.calibration is not None
    assert findings.calibration.exchange_seconds == pytest.approx(0.5 + 4 * 2 * 0.001)


@pytest.mark.parametrize("all_reduce", [None, 0.502])
def test_an_exchange_by_powersgd_is_never_measured_alone(
    tmp_path: Path, all_reduce: float | None
) -> None:
    """Older runs noted the sum of a whole gradient, which no step of theirs ever made."""
    run = pair_run(tmp_path, exposed=0.02, all_reduce=all_reduce)
    for line in run.lines:
        if line["kind"] == "calibration":
            line |= {"compression": "powersgd", "bytes_per_step": 96_000}
    found = load_calibration(run.write())
    assert found.seconds_overhead == 0
    plain = predict(found, Scenario(compression="none"))
    assert plain.seconds_exposed == pytest.approx(0.502)
    # Without a link nothing is known of an exchange, least of all of one without compression.
    run.lines = [line for line in run.lines if line["kind"] != "link"]
    found = load_calibration(run.write())
    assert predict(found, Scenario(compression="none")).seconds_step < 1


def test_a_calibration_is_that_of_the_latest_workers(tmp_path: Path) -> None:
    found = load_calibration(grown_run(tmp_path).write())
    assert found.workers == 4
    assert found.seconds_compute == pytest.approx(0.4)
    assert found.seconds_step == pytest.approx(0.5)


def test_a_run_on_one_machine_can_be_asked_too(tmp_path: Path) -> None:
    measured = load_calibration(calm_run(tmp_path).write())
    assert measured.rows_per_step == 8
    found = replace(measured, rows_per_step=1024.0)
    assert math.isinf(found.bytes_per_second)
    rows = {row.label: row for row in whatif_table(found, usual_questions(found))}
    assert rows["network of 1 Gb/s"].machines == 2
    # Nobody measured a latency: two hops of the usual one.
    exchange = 4 * PARAMETERS / GIGABIT + 2 * USUAL_LATENCY_SECONDS
    assert rows["network of 1 Gb/s"].seconds_exposed == pytest.approx(exchange)
    assert rows["bf16 compression"].bytes_per_step == 2 * PARAMETERS
    assert rows["4 workers"].bytes_per_second == GIGABIT
    sent = 2 * 1023 / 1024 * 4 * PARAMETERS / GIGABIT
    hops = 2 * 1023 * USUAL_LATENCY_SECONDS
    assert rows["1,024 workers"].seconds_exposed == pytest.approx(sent + hops)
    # What has nothing to do with a network is asked about the machine that there was.
    for label in ("4 times the batch", "devices twice as fast"):
        assert (rows[label].machines, rows[label].seconds_exposed) == (1, 0)


def asked(
    run: Path, capsys: pytest.CaptureFixture[str], **options: Any
) -> tuple[list[list[str]], str]:
    """The rows after that of the run itself, their cells, and all words."""
    whatif_command(run, WhatifOptions(**options), now=START)
    text = capsys.readouterr().out
    table = text.split("\n\n")[1].splitlines()
    first = next(place for place, line in enumerate(table) if line.startswith("this run"))
    return [re.split("  +", line) for line in table[first + 1 :]], " ".join(text.split())


def test_several_machines_of_a_run_on_one_have_the_usual_link(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = calm_run(tmp_path).write()
    (eight, half, _), words = asked(run, capsys, workers=8)
    assert (eight[0], eight[-3:]) == ("8 workers", ["1.00 Gb/s", "8", "8"])
    assert half[0] == "... and bf16"
    assert "rows with several assume links of 1.00 Gb/s unless they say" in words
    assert "Not measured: links, because this run had one machine" in words
    assert "1.00 Gb/s and 0.10 ms per hop" in words
    assert "Not measured: an exchange, because this run had one worker" in words
    # The link itself can be asked about: between two machines.
    (link, *_), _ = asked(run, capsys, bandwidth="10Gbit")
    assert (link[0], link[-3:]) == ("10.0 Gb/s, 2 machines", ["10.0 Gb/s", "2", "2"])
    (free, *_), _ = asked(run, capsys, bandwidth="inf")
    assert (free[0], free[-3]) == ("infinite bandwidth, 2 machines", "infinite")
    with pytest.raises(UserError, match="one machine has no links"):
        asked(run, capsys, bandwidth="10Gbit", machines=1)


def test_what_a_sum_inside_a_machine_costs_is_not_made_up(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = calm_run(tmp_path).write()
    rows, words = asked(run, capsys, machines=1, workers=8)
    # Sending less would change nothing of a cost that is not known.
    assert [row[0] for row in rows] == ["1 machine, 8 workers"]
    assert "That cost was not measured, because no machine had two" in words
    assert "On CPUs the workers of a machine share its cores" in words
    rows, words = asked(run, capsys, device_speed=2)
    assert [row[0] for row in rows] == ["2 x device speed"]
    assert "Not measured" not in words
    assert "rows with several" not in words


def test_where_sums_are_not_made_inside_machines_first() -> None:
    def words(scenario: Scenario, **changes: Any) -> str:
        run = replace(TWO_MACHINES, **changes)
        return " ".join(assumptions_of(run, whatif_table(run, [("", scenario)])))

    crowded = Scenario(machines=2, workers=8)
    exception = "Plain kernels on GPUs and PowerSGD"
    assert exception in words(crowded)
    assert exception not in words(crowded, device="cpu")
    assert exception in words(replace(crowded, compression="powersgd"), device="cpu")
    assert exception not in words(Scenario(workers=8))
    assert "the links of this run" in words(crowded, bytes_per_second=math.inf)


def test_one_worker_is_among_the_usual_questions(tmp_path: Path) -> None:
    found = load_calibration(pair_run(tmp_path, exposed=0.5, all_reduce=0.502).write())
    rows = {row.label: row for row in whatif_table(found, usual_questions(found))}
    # Twice 0.4 s of compute and the other phases, and nobody to wait for.
    assert rows["1 worker"].seconds_step == pytest.approx(0.9)
    assert rows["1 worker"].efficiency == pytest.approx(1)
    alone = load_calibration(calm_run(tmp_path / "alone").write())
    assert "1 worker" not in dict(usual_questions(alone))


def test_the_command_answers_what_was_asked(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = pair_run(tmp_path, exposed=0.5, all_reduce=0.502)
    run.lines[0]["device"] = "cuda"
    options = WhatifOptions(bandwidth="64Mbit", workers=4, machines=2, price_per_hour=2.0)
    whatif_command(run.write(), options, now=START)
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == "by-hand: 2 workers on 2 machines, 64.0 Mb/s between them."
    asked = next(line for line in lines if line.startswith("64.0 Mb/s, 2 machines, 4 workers"))
    # Half the compute of 0.4 s, 0.1 s of other phases, and an exchange of 0.502 s. The run hid
    # 0.002 s of it behind its backward pass, so half as much hides behind half of that.
    step = 0.2 + 0.1 + 0.502 - 0.001
    assert "0.801 s" in asked
    assert f"{1000 / step:,.0f}" in asked
    assert asked.endswith(f"{120 * step / 3600 * 2 * 2.0:.2f}")
    assert any(line.startswith("... and bf16") for line in lines)
    assert any(line.startswith("- Ring all-reduce:") for line in lines)


def test_the_command_without_options_asks_the_usual(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    whatif_command(calm_run(tmp_path).write(), WhatifOptions(), now=START)
    text = capsys.readouterr().out
    assert "network of 10 Gb/s" in text
    assert "mean step of 1.00 s; for the run itself (first row) it is exact" in " ".join(
        text.split()
    )


def test_the_options_on_the_command_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = str(pair_run(tmp_path).write())
    options = ["--local-steps", "8", "--local-fragments", "2", "--batch-factor", "4"]
    main(["whatif", run, *options, "--compression", "fp16"])
    assert "\nfp16, 8 local steps, 2 fragments, 4 x batch " in capsys.readouterr().out
    main(["whatif", run, *options, "--local-delay", "3"])
    assert "\n8 local steps, 2 fragments, delay 3, 4 x batch " in capsys.readouterr().out
    code, words = refusal(capsys, "whatif", run, "--compression", "zip")
    assert code == 2
    assert "invalid choice: 'zip'" in words


def test_all_problems_of_the_options_at_once(tmp_path: Path) -> None:
    options = WhatifOptions(
        bandwidth="fast", workers=0, price_per_hour=-1, batch_factor=1e308, device_speed=math.nan
    )
    with pytest.raises(UserError) as problem:
        whatif_command(tmp_path, options)
    assert str(problem.value).splitlines() == [
        "--workers 0: must be a whole number from 1 to 1,000,000,000",
        "--batch-factor 1e+308: must be a number from 1e-06 to 1,000,000,000",
        "--device-speed nan: must be a number from 1e-06 to 1,000,000,000",
        "--price-per-hour -1: must be a number from 0 to 1,000,000,000",
        "--bandwidth fast: must be a number above 0 and a unit, such as 10Gbit or 100Mbit",
    ]


def test_a_run_without_steps_is_refused(tmp_path: Path) -> None:
    run = calm_run(tmp_path)
    run.lines = run.lines[:1]
    with pytest.raises(UserError, match="no timed steps"):
        whatif_command(run.write(), WhatifOptions(), now=START)


@pytest.mark.parametrize(
    ("text", "bytes_per_second"),
    [
        ("10Gbit", 1.25e9),
        ("100 Mb/s", 12.5e6),
        ("1.25GB/s", 1.25e9),
        ("56kbit", 7e3),
        ("inf", math.inf),
    ],
)
def test_bandwidths(text: str, bytes_per_second: float) -> None:
    assert parse_bandwidth(text) == pytest.approx(bytes_per_second)


@pytest.mark.parametrize("text", ["", "fast", "10", "-1Gbit", "0Gbit", "1.2.3Gbit"])
def test_bad_bandwidths(text: str) -> None:
    with pytest.raises(UserError, match="bandwidth"):
        parse_bandwidth(text)


@pytest.mark.parametrize(
    ("share", "words"),
    [(0.0003, "<0.1%"), (0.0953, "9.5%"), (0.9949, "99%"), (0.9953, "99.5%")]
    + [(0.9997, ">99.9%"), (1 - 1e-12, "100%"), (1.0, "100%"), (1.25, "125%")],
)
def test_what_is_nearly_all_is_not_called_all(share: float, words: str) -> None:
    assert in_percent(share) == words
