from pathlib import Path

import numpy as np
import pytest

from dragoman.report.answers.machines import step_time
from dragoman.report.answers.network import step_time_vs_network
from dragoman.report.bottleneck import judge_network, measure_steps, steady_steps
from dragoman.report.evidence import Evidence, load_evidence
from dragoman.report.findings import analyse
from dragoman.report.traffic import measure_traffic, training_windows
from report.run_folders import START, RunFolder, calm_run, grown_run, pair_run


def _load(run: RunFolder) -> Evidence:
    return load_evidence(run.write(), START)


def test_step_times_by_hand(tmp_path: Path) -> None:
    run = RunFolder(tmp_path)
    run.begin()
    for step, seconds in enumerate([60.0, 9.0, 5.0] + [1.0, 2.0, 3.0] * 7, 1):
        run.train(step, seconds=seconds)
    times = measure_steps(_load(run).history.train)
    assert times is not None
    assert (times.steps, times.left_out) == (21, 3)
    assert times.mean == pytest.approx(2.0)
    assert times.median == pytest.approx(2.0)
    assert (times.percentile_5, times.percentile_95) == (1.0, 3.0)
    assert times.phases["compute"] == pytest.approx(1.6)
    assert times.phases["optimizer"] == pytest.approx(0.2)
    assert sum(times.phases.values()) == pytest.approx(times.mean)


def test_the_first_steps_of_every_life_are_left_out(tmp_path: Path) -> None:
    run = RunFolder(tmp_path)
    run.begin()
    for step in range(1, 11):
        run.train(step)
    run.begin("resume", 10)
    for step in range(11, 21):
        run.train(step)
    steady = steady_steps(_load(run).history.train)
    assert steady.step.tolist() == [4, 5, 6, 7, 8, 9, 10, 14, 15, 16, 17, 18, 19, 20]


def test_a_short_run_keeps_all_its_steps(tmp_path: Path) -> None:
    run = RunFolder(tmp_path)
    run.begin()
    for step in range(1, 9):
        run.train(step)
    assert len(steady_steps(_load(run).history.train)) == 8


def test_steps_of_other_workers_do_not_count_for_the_network(tmp_path: Path) -> None:
    run = grown_run(tmp_path)
    run.watch(4_000_000)
    evidence = _load(run)
    findings = analyse(evidence)
    assert findings.times is not None
    # All steps but three of each life: 117 of one second and 37 of half a second.
    assert findings.times.mean == pytest.approx((117 + 37 / 2) / 154)
    assert findings.latest_times is not None
    assert findings.latest_times.mean == pytest.approx(0.5)
    assert findings.network is not None
    assert findings.network.verdict == "no"
    assert findings.network.infinite_network_seconds == pytest.approx(0.5)
    # At 4 MB a second half a second brings 2 MB; the earlier steps had 4.
    assert findings.network.traffic[0].bytes_per_step == pytest.approx(2e6, rel=1e-3)
    assert findings.correlation is not None
    np.testing.assert_allclose(findings.correlation.windows.seconds_per_step, 0.5)
    assert "with the latest 4 a step took 0.500 s" in step_time(evidence, findings).answer
    assert any("40 of 160 steps that the latest ones made" in line for line in evidence.missing)


def test_lives_with_the_same_workers_count_together(tmp_path: Path) -> None:
    run = grown_run(tmp_path)
    run.hosts = ("alpha", "beta")
    run.begin("restart", 160, reason="two workers died")
    for step in range(161, 181):
        run.train(step)
    steps = _load(run).history.latest_steps.step.tolist()
    assert steps == [*range(1, 121), *range(161, 181)]


def test_a_life_without_steps_says_nothing_about_the_others(tmp_path: Path) -> None:
    run = pair_run(tmp_path)
    run.lines.pop()
    run.hosts = ("alpha",)
    run.begin("restart", 120, reason="beta died")
    run.calibrate(120, seconds_compute=9.0)
    evidence = _load(run)
    assert evidence.hosts == ("alpha", "beta")
    assert evidence.history.calibration is not None
    assert evidence.history.calibration.seconds_compute == pytest.approx(0.4)
    network = analyse(evidence).network
    assert network is not None
    assert network.verdict == "yes"


def test_the_network_by_hand(tmp_path: Path) -> None:
    # 4 MB a step over 8 MB/s: half a second, all of it exposed, in steps of one second.
    run = pair_run(tmp_path, exposed=0.5)
    run.watch(4_000_000)
    evidence = _load(run)
    times = measure_steps(evidence.history.train)
    assert times is not None
    found = judge_network(evidence, times)
    assert found.verdict == "yes"
    assert found.network_share == pytest.approx(0.5)
    assert found.infinite_network_seconds == pytest.approx(0.5)
    assert found.theory_seconds == pytest.approx(0.5 + 2 * 0.001)
    # Calibrated compute 0.4 and 0.1 for data, optimizer and other; 2/3 of 0.4 could be hidden.
    assert found.model_infinite_seconds == pytest.approx(0.5)
    assert found.model_seconds == pytest.approx((0.5 + 0.5 - 0.4 * 2 / 3, 1.0))
    assert found.agrees is True
    assert [traffic.host for traffic in found.traffic] == ["alpha", "beta"]
    assert found.traffic[0].bytes_per_step == pytest.approx(4e6, rel=1e-3)
    assert found.traffic[0].bytes_per_second == pytest.approx(4e6, rel=1e-3)
    assert found.traffic[0].capacity == 8e6
    assert found.traffic[0].capacity_source == "measured"


@pytest.mark.parametrize(
    ("exposed", "all_reduce", "verdict"),
    [
        (0.5, 0.5, "yes"),
        (0.25, 0.5, "yes"),
        (0.1, 0.5, "no"),
        (0.2, 0.5, "unclear"),  # Between the thresholds.
        (0.5, 0.1, "unclear"),  # The bytes do not explain the wait.
    ],
)
def test_network_verdicts(tmp_path: Path, exposed: float, all_reduce: float, verdict: str) -> None:
    run = pair_run(tmp_path, exposed=exposed, all_reduce=all_reduce)
    network = analyse(_load(run)).network
    assert network is not None
    assert network.verdict == verdict


def test_one_machine_has_no_network(tmp_path: Path) -> None:
    network = analyse(_load(calm_run(tmp_path))).network
    assert network is not None
    assert network.verdict == "single machine"


def test_without_phase_times_nothing_is_claimed(tmp_path: Path) -> None:
    run = pair_run(tmp_path)
    for line in run.lines:
        line.pop("seconds_exposed_communication", None)
    network = analyse(_load(run)).network
    assert network is not None
    assert network.verdict == "unclear"


def test_waiting_for_a_slow_worker_is_not_the_network(tmp_path: Path) -> None:
    run = pair_run(tmp_path, exposed=0.5)
    for line in run.lines:
        if line["kind"] == "train":
            line["slowest"] = {"worker": 1, "seconds": line["seconds_compute"] + 0.45}
    network = analyse(_load(run)).network
    assert network is not None
    assert network.network_seconds == pytest.approx(0.05)
    assert network.verdict == "no"
    assert network.straggler is not None
    assert (network.straggler.worker, network.straggler.host) == (1, "beta")
    assert network.straggler.share_of_steps == 1.0


def test_windows_hold_nothing_but_training(tmp_path: Path) -> None:
    run = pair_run(tmp_path, steps=200)
    run.lines.pop()
    run.evaluate(200, loss=2.0, bleu=10.0, seconds=50.0)
    for step in range(201, 301):
        run.train(step)
    run.watch(4_000_000)
    evidence = _load(run)
    windows = training_windows(evidence, evidence.machines[0])
    assert windows is not None
    assert windows.seconds == 5.0
    # 350 s in windows of 5 s, less those that touch the 50 s of evaluation.
    assert len(windows) == 59
    np.testing.assert_allclose(windows.seconds_per_step, 1.0)
    assert measure_traffic(evidence)[0].peak_bytes_per_second == pytest.approx(4e6)


def test_correlation_with_traffic(tmp_path: Path) -> None:
    """Steps that are slower while more flows: the two rise and fall together."""
    run = RunFolder(tmp_path, hosts=("alpha", "beta"))
    run.begin()
    generator = np.random.default_rng(1)
    sent, step = 0.0, 0
    for _ in range(60):
        load = float(generator.random())
        for _ in range(10):
            step += 1
            run.train(step, seconds=0.5 + load / 2)
        while run.monitor.get("alpha", [{"time": START}])[-1]["time"] < run.clock:
            second = len(run.monitor.get("alpha", []))
            run.sample("alpha", START + second, int(sent))
            sent += 1e6 * (1 + load)
    evidence = _load(run)
    findings = analyse(evidence)
    assert findings.correlation is not None
    correlation = findings.correlation.correlation
    assert correlation is not None
    assert correlation.value > 0.8
    assert correlation.low > 0.5
    answer = step_time_vs_network(evidence, findings)
    assert answer.verdict == correlation.value
    assert "steps are slower when more flows" in answer.answer
