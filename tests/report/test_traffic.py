from pathlib import Path

import numpy as np
import pytest

from dragoman.report.answers.step_and_traffic import step_time_vs_network
from dragoman.report.evidence import Evidence, load_evidence
from dragoman.report.findings.analysis import analyse
from dragoman.report.findings.traffic import correlate_with_steps, measure_traffic, training_windows
from report.run_folders import START, RunFolder, local_run, pair_run


def _load(run: RunFolder) -> Evidence:
    return load_evidence(run.write(), START)


def test_windows_of_local_steps_are_whole_rounds(tmp_path: Path) -> None:
    # Rounds of 10 s and of 14 s: 60 s hold five of them, or six, or a part.
    evidence = _load(local_run(tmp_path, paces=(1.0, 1.0, 1.5)))
    windows = training_windows(evidence, evidence.machines[0])
    assert windows is not None
    np.testing.assert_allclose(windows.steps, 40, atol=1e-3)
    np.testing.assert_allclose(windows.bytes_per_step, 500_000, rtol=1e-6)
    np.testing.assert_allclose(windows.seconds_per_step, (2 * 10 + 14) / 24, rtol=0.03)
    findings = analyse(evidence)
    assert findings.network is not None
    assert findings.network.traffic[0].bytes_per_step == pytest.approx(500_000)
    assert findings.correlation.reason != "no samples"
    assert "which agrees" in step_time_vs_network(evidence, findings).answer


def test_steps_that_do_not_say_how_long_they_took_have_no_windows(tmp_path: Path) -> None:
    run = local_run(tmp_path)
    for line in run.lines:
        line.pop("seconds", None)
    evidence = _load(run)
    assert training_windows(evidence, evidence.machines[0]) is None
    assert correlate_with_steps(evidence).reason == "no windows"


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


def test_what_measured_the_links_is_not_counted_as_the_steps_own(tmp_path: Path) -> None:
    """The sample before the first step is older than the test of the links."""
    run = pair_run(tmp_path, steps=60)
    for second in range(61):
        sent = 0 if not second else 300_000_000 + 4_000_000 * second
        run.sample("alpha", START - 0.5 + second, sent)
    evidence = _load(run)
    assert measure_traffic(evidence)[0].bytes_per_step == pytest.approx(4e6, rel=1e-3)


def test_what_a_machine_can_send_is_what_its_own_link_carries(tmp_path: Path) -> None:
    run = pair_run(tmp_path)
    run.lines.insert(2, dict(run.lines[1], hosts=["beta", "alpha"], goodput_bytes_per_second=9e7))
    run.watch(4_000_000)
    capacities = {one.host: one.capacity for one in measure_traffic(_load(run))}
    assert capacities == {"alpha": 8e6, "beta": 9e7}


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
    correlation = findings.correlation.correlation
    assert correlation is not None
    assert correlation.value > 0.8
    assert correlation.low > 0.5
    answer = step_time_vs_network(evidence, findings)
    assert answer.verdict == correlation.value
    assert findings.correlation.reason == "slower with more traffic"
    assert answer.confidence == "high"


def _varied_run(path: Path, other_bytes_per_second: float) -> RunFolder:
    """Every step sends 4 MB; others send more while steps are slower."""
    run = RunFolder(path, hosts=("alpha", "beta"))
    run.begin()
    run.calibrate(seconds_compute=0.4, seconds_all_reduce=0.1, bytes_per_step=4_000_000)
    generator = np.random.default_rng(1)
    sent, step = 0.0, 0
    for _ in range(60):
        load = float(generator.random())
        seconds = 0.5 + load / 2
        for _ in range(20):
            step += 1
            run.train(step, seconds=seconds)
        rate = 4e6 / seconds + other_bytes_per_second * load
        while run.monitor.get("alpha", [{"time": START}])[-1]["time"] < run.clock:
            second = len(run.monitor.get("alpha", []))
            for host in run.hosts:
                run.sample(host, START + second, int(sent))
            sent += rate
    return run


def test_the_same_bytes_a_step_say_nothing_about_the_network(tmp_path: Path) -> None:
    evidence = _load(_varied_run(tmp_path, other_bytes_per_second=0))
    findings = analyse(evidence)
    assert findings.correlation.correlation is not None
    assert findings.correlation.correlation.high < -0.5
    assert findings.correlation.reason == "slower with less traffic"
    assert step_time_vs_network(evidence, findings).confidence == "medium"


def test_others_on_the_link_are_found_behind_the_runs_own_bytes(tmp_path: Path) -> None:
    evidence = _load(_varied_run(tmp_path, other_bytes_per_second=2e6))
    findings = analyse(evidence)
    assert findings.correlation.correlation is not None
    assert findings.correlation.correlation.value < 0, "less flows in all while steps are slower"
    other = findings.correlation.with_other_traffic
    assert other is not None
    assert other.low > 0.5
    answer = step_time_vs_network(evidence, findings)
    assert "steps are slower while others use the link" in answer.details[0]
    assert "Find out what else uses the link" in answer.next_step
    assert answer.evidence["with_other_traffic"]["value"] == other.value


def test_traffic_of_another_machine_is_less_sure(tmp_path: Path) -> None:
    run = _varied_run(tmp_path, other_bytes_per_second=2e6)
    del run.monitor["alpha"]
    evidence = _load(run)
    answer = step_time_vs_network(evidence, analyse(evidence))
    assert "Step times are from alpha, traffic is from beta." in answer.details
    assert answer.confidence == "medium"
