import math
from pathlib import Path

import pytest

from dragoman.errors import UserError
from dragoman.report.calibrate import load_calibration
from dragoman.report.whatif import (
    Calibration,
    Scenario,
    parse_bandwidth,
    predict,
    render_table,
    ring_bytes,
    usual_questions,
    whatif_table,
)
from report.run_folders import PARAMETERS, calm_run, pair_run

GIGABIT = 1e9 / 8
BASE = 4 * 60_880_896
TWO_MACHINES = Calibration(
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


def test_bytes_on_the_wire() -> None:
    assert ring_bytes(100, 2, 2, inside=True) == 100
    assert ring_bytes(100, 2, 4, inside=True) == 100
    assert ring_bytes(100, 2, 4, inside=False) == 150
    assert ring_bytes(100, 4, 4, inside=True) == 150
    assert ring_bytes(100, 1, 4, inside=False) == 0


def test_the_reference_model_over_a_gigabit() -> None:
    """The field notes measured 2.05 s of exchange for float32 and 1.03 s for 16 bits."""
    plain = predict(TWO_MACHINES, Scenario())
    assert plain.seconds_exposed == pytest.approx(2.05, rel=0.01)
    assert plain.seconds_step == pytest.approx(0.6 + 0.02 + 0.01 + plain.seconds_exposed)
    half = predict(TWO_MACHINES, Scenario(compression="bf16"))
    assert half.seconds_exposed == pytest.approx(1.03, rel=0.01)
    local = predict(TWO_MACHINES, Scenario(local_steps=8))
    assert local.bytes_per_step == BASE / 8
    assert local.seconds_exposed == pytest.approx(plain.seconds_exposed / 8)
    tenth = predict(TWO_MACHINES, Scenario(bytes_per_second=9.5 * GIGABIT))
    assert tenth.seconds_exposed == pytest.approx(0.205, rel=0.01)


def test_a_prediction_by_hand() -> None:
    # Eight machines: 0.6 x 2 / 8 of compute, 2 x 7/8 of the bytes, 14 hops.
    found = predict(
        TWO_MACHINES,
        Scenario(workers=8, bytes_per_second=1e9, latency_seconds=0.001, compute_speed=2),
        steps=1000,
        price_per_machine_hour=3.0,
    )
    compute = 0.6 * 2 / 8 / 2
    exchange = 1.75 * BASE / 1e9 + 14 * 0.001
    step = compute + 0.01 + 0.02 / 2 + exchange
    assert found.machines == 8
    assert found.seconds_step == pytest.approx(step)
    assert found.tokens_per_second == pytest.approx(30_000 / step)
    assert found.efficiency == pytest.approx((0.6 + 0.02) / (8 * step))
    assert found.hours == pytest.approx(1000 * step / 3600)
    assert found.cost == pytest.approx(1000 * step / 3600 * 8 * 3.0)


def test_overlap_hides_no_more_than_the_backward_pass() -> None:
    hiding = Calibration(**{**vars(TWO_MACHINES), "overlap": 0.5, "latency_seconds": 0.0})
    slow = predict(hiding, Scenario(bytes_per_second=GIGABIT / 10))
    exchange = BASE / (GIGABIT / 10)
    assert slow.seconds_exposed == pytest.approx(exchange - 0.5 * 0.6 * 2 / 3)
    fast = predict(hiding, Scenario(bytes_per_second=BASE / 0.1))
    assert fast.seconds_exposed == pytest.approx(0.05)
    # Four times the batch: only the last quarter's backward pass runs beside the exchange.
    more = predict(hiding, Scenario(bytes_per_second=GIGABIT / 10, accumulation=4))
    assert more.seconds_exposed == pytest.approx(slow.seconds_exposed)
    assert more.seconds_compute == pytest.approx(2.4)


def test_one_machine_needs_no_network() -> None:
    alone = predict(TWO_MACHINES, Scenario(machines=1, workers=2))
    assert alone.bytes_per_step == 0
    assert alone.seconds_exposed == 0


def test_more_machines_than_workers_is_refused() -> None:
    with pytest.raises(UserError, match="every machine needs a worker"):
        predict(TWO_MACHINES, Scenario(machines=4, workers=2))


def test_the_usual_questions_reach_a_thousand_workers() -> None:
    rows = whatif_table(TWO_MACHINES, usual_questions(TWO_MACHINES), steps=50_000)
    assert rows[0].label == "this run"
    assert max(row.workers for row in rows) == 1024
    by_label = {row.label: row for row in rows}
    assert (
        by_label["infinite network"].seconds_exposed < by_label["10 Gb/s network"].seconds_exposed
    )
    text = render_table(rows)
    assert "1,024 workers" in text
    assert "infinite" in text


def test_calibration_of_a_run(tmp_path: Path) -> None:
    # Half a second of exchange (4 MB at 8 MB/s and two latencies), 0.3 s of it exposed.
    run = pair_run(tmp_path, exposed=0.3, all_reduce=0.602)
    found = load_calibration(run.write())
    assert found.gradient_bytes == 4 * PARAMETERS
    assert found.bytes_per_second == 8e6
    assert found.latency_seconds == 0.001
    assert found.seconds_compute == pytest.approx(0.56)
    assert found.seconds_overhead == pytest.approx(0.1)
    # 1,024 slots in rows of 128 are 4 rows a worker, and a device takes 4: one micro-batch.
    assert found.micro_batches == 1
    assert found.overlap == pytest.approx((0.602 - 0.3) / (0.56 * 2 / 3))
    assert predict(found, Scenario()).seconds_step == pytest.approx(1.0)


def test_a_run_tells_whether_it_adds_up_inside_machines_first(tmp_path: Path) -> None:
    for sent, inside in ((4_000_000, True), (6_000_000, False)):
        run = pair_run(tmp_path / str(sent))
        run.hosts, run.workers = ("alpha", "alpha", "beta", "beta"), 4
        for line in run.lines:
            if line["kind"] == "start":
                line |= {"hosts": list(run.hosts), "workers": 4}
            if line["kind"] == "calibration":
                line["bytes_per_step"] = sent
        assert load_calibration(run.write()).reduces_inside is inside


def test_a_run_on_one_machine_can_be_asked_too(tmp_path: Path) -> None:
    found = load_calibration(calm_run(tmp_path).write())
    assert math.isinf(found.bytes_per_second)
    rows = {row.label: row for row in whatif_table(found, usual_questions(found))}
    assert rows["1 Gb/s network"].machines == 2
    assert rows["1 Gb/s network"].seconds_exposed == pytest.approx(4 * PARAMETERS / GIGABIT)
    assert rows["bf16 compression at 1 Gb/s"].bytes_per_step == 2 * PARAMETERS


def test_a_run_without_steps_is_refused(tmp_path: Path) -> None:
    run = calm_run(tmp_path)
    run.lines = run.lines[:1]
    with pytest.raises(UserError, match="no steps or no calibration"):
        load_calibration(run.write())


@pytest.mark.parametrize(
    ("text", "bytes_per_second"),
    [("10Gbit", 1.25e9), ("100 Mb/s", 12.5e6), ("1.25GB/s", 1.25e9), ("56kbit", 7e3)],
)
def test_bandwidths(text: str, bytes_per_second: float) -> None:
    assert parse_bandwidth(text) == pytest.approx(bytes_per_second)


@pytest.mark.parametrize("text", ["", "fast", "10", "-1Gbit", "0Gbit", "1.2.3Gbit"])
def test_bad_bandwidths(text: str) -> None:
    with pytest.raises(UserError, match="bandwidth"):
        parse_bandwidth(text)
