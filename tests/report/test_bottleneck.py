from pathlib import Path

import numpy as np
import pytest

from dragoman.report.answers.network_bottleneck import network_bottleneck
from dragoman.report.answers.step_time import step_time
from dragoman.report.evidence import Evidence, load_evidence
from dragoman.report.findings.analysis import analyse
from dragoman.report.findings.bottleneck import Network, judge_network
from dragoman.report.findings.step_times import measure_steps, steady_steps
from dragoman.thresholds import STRAGGLER_WORTH_NAMING
from report.run_folders import START, RunFolder, calm_run, grown_run, local_run, pair_run


def _load(run: RunFolder) -> Evidence:
    return load_evidence(run.write(), START)


def _network(run: RunFolder) -> Network:
    network = analyse(_load(run)).network
    assert network is not None
    return network


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


def test_the_first_steps_of_every_attempt_are_left_out(tmp_path: Path) -> None:
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
    # All steps but three of each attempt: 117 of one second and 37 of half a second.
    assert findings.times.mean == pytest.approx((117 + 37 / 2) / 154)
    assert findings.latest_times is not None
    assert findings.latest_times.mean == pytest.approx(0.5)
    assert findings.network is not None
    assert findings.network.reason == "small share"
    assert findings.network.infinite_network_seconds == pytest.approx(0.5)
    # At 4 MB a second half a second brings 2 MB; the earlier steps had 4.
    assert findings.network.traffic[0].bytes_per_step == pytest.approx(2e6, rel=1e-3)
    assert findings.correlation.windows is not None
    np.testing.assert_allclose(findings.correlation.windows.seconds_per_step, 0.5)
    answer = step_time(evidence, findings)
    assert answer.verdict == pytest.approx(0.5)
    assert "of the latest 4; all steps took 0.880 s on average" in answer.details[0]
    assert any("40 of 160 steps with the latest workers" in line for line in evidence.missing)


def test_attempts_with_the_same_workers_count_together(tmp_path: Path) -> None:
    run = grown_run(tmp_path)
    run.hosts = ("alpha", "beta")
    run.begin("restart", 160, reason="two workers died")
    for step in range(161, 181):
        run.train(step)
    steps = _load(run).history.latest_steps.step.tolist()
    assert steps == [*range(1, 121), *range(161, 181)]


def test_an_attempt_without_steps_says_nothing_about_the_others(tmp_path: Path) -> None:
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
    assert network.reason == "large share"


def test_the_network_by_hand(tmp_path: Path) -> None:
    # 4 MB a step over 8 MB/s: half a second, all of it exposed, in steps of one second.
    run = pair_run(tmp_path, exposed=0.5)
    run.watch(4_000_000)
    evidence = _load(run)
    times = measure_steps(evidence.history.train)
    assert times is not None
    found = judge_network(evidence, times)
    assert found.reason == "large share"
    assert found.network_share == pytest.approx(0.5)
    assert found.infinite_network_seconds == pytest.approx(0.5)
    assert found.theory_seconds == pytest.approx(0.5 + 2 * 0.001)
    # Calibrated compute 0.4 and 0.1 for data, optimizer and other; 2/3 of 0.4 could be hidden.
    assert found.model_infinite_seconds == pytest.approx(0.5)
    assert found.model_network_seconds == pytest.approx((0.5 - 0.4 * 2 / 3, 0.5))
    assert found.agrees is True
    assert [traffic.host for traffic in found.traffic] == ["alpha", "beta"]
    assert found.traffic[0].bytes_per_step == pytest.approx(4e6, rel=1e-3)
    assert found.traffic[0].bytes_per_second == pytest.approx(4e6, rel=1e-3)
    assert found.traffic[0].capacity == 8e6
    assert found.traffic[0].capacity_source == "measured"


@pytest.mark.parametrize(
    ("exposed", "all_reduce", "reason"),
    [
        (0.5, 0.5, "large share"),
        (0.25, 0.5, "large share"),
        (0.1, 0.5, "small share"),
        (0.2, 0.5, "middling share"),
        (0.5, 0.1, "unexplained wait"),
    ],
)
def test_network_reasons(tmp_path: Path, exposed: float, all_reduce: float, reason: str) -> None:
    run = pair_run(tmp_path, exposed=exposed, all_reduce=all_reduce)
    network = _network(run)
    assert network.reason == reason


def test_one_machine_has_no_network(tmp_path: Path) -> None:
    network = _network(calm_run(tmp_path))
    assert network.reason == "single machine"


def test_without_phase_times_nothing_is_claimed(tmp_path: Path) -> None:
    run = pair_run(tmp_path)
    for line in run.lines:
        line.pop("seconds_exposed_communication", None)
    network = _network(run)
    assert network.reason == "waits not known"


def test_waiting_for_a_slow_worker_is_not_the_network(tmp_path: Path) -> None:
    run = pair_run(tmp_path, exposed=0.5)
    for line in run.lines:
        if line["kind"] == "train":
            line["slowest"] = {"worker": 1, "seconds": line["seconds_compute"] + 0.45}
    network = _network(run)
    assert network.network_seconds == pytest.approx(0.05)
    assert network.reason == "small share"
    assert network.straggler is not None
    assert (network.straggler.worker, network.straggler.host) == (1, "beta")
    assert network.straggler.share_of_steps == 1.0
    assert network.straggler.seconds_behind == pytest.approx(0.45)


def _compute(run: RunFolder, *seconds: float) -> None:
    """Let the workers take turns with these seconds of compute."""
    steps = [line for line in run.lines if line["kind"] == "train"]
    for number, line in enumerate(steps):
        own, other = (seconds[(number + worker) % len(seconds)] for worker in (0, 1))
        line["seconds_compute"] = own
        by_worker = sorted([(own, 0), (other, 1)])
        line["fastest"], line["slowest"] = (
            {"worker": worker, "seconds": taken} for taken, worker in by_worker
        )


@pytest.mark.parametrize("rows", [None, [20, 12]])
def test_a_slow_worker_0_is_named_though_it_never_waits(
    tmp_path: Path, rows: list[int] | None
) -> None:
    run = pair_run(tmp_path, exposed=0.05)
    for line in run.lines:
        if line["kind"] == "calibration":
            line["balanced_rows"] = rows
        if line["kind"] == "train":
            line["slowest"] = {"worker": 0, "seconds": line["seconds_compute"]}
            line["fastest"] = {"worker": 1, "seconds": line["seconds_compute"] - 0.3}
    evidence = _load(run)
    findings = analyse(evidence)
    assert findings.network is not None
    assert findings.network.straggler is not None
    assert findings.network.straggler.seconds == 0
    assert findings.network.straggler.seconds_behind == pytest.approx(0.3)
    assert findings.network.longest_wait_seconds == pytest.approx(0.05 + 0.3)
    assert findings.step_reason == "waits for a worker"
    for answer in (network_bottleneck(evidence, findings), step_time(evidence, findings)):
        assert "Worker 0 on alpha is the slowest in 100% of steps" in answer.next_step
        assert "0.300 s (30% of a step) longer" in answer.next_step
        # It is no advice to those who have followed it.
        assert ("distributed.balance" in answer.next_step) is (rows is None)


def test_who_is_the_slowest_by_chance_is_not_named(tmp_path: Path) -> None:
    run = pair_run(tmp_path, exposed=0.05)
    generator = np.random.default_rng(1)
    for line in run.lines:
        if line["kind"] == "train":
            (slow, slowest), (fast, fastest) = sorted(
                (
                    (float(seconds), worker)
                    for worker, seconds in enumerate(generator.gamma(4, 0.2, 2))
                ),
                reverse=True,
            )
            line["slowest"], line["fastest"] = (
                {"worker": slowest, "seconds": slow},
                {"worker": fastest, "seconds": fast},
            )
    evidence = _load(run)
    findings = analyse(evidence)
    assert findings.network is not None
    assert findings.network.straggler is not None
    assert findings.network.straggler.seconds_behind > STRAGGLER_WORTH_NAMING.value
    assert not findings.network.straggler.is_behind
    assert "slowest in" not in network_bottleneck(evidence, findings).next_step


def test_workers_that_are_slower_by_turns_are_not_named(tmp_path: Path) -> None:
    run = pair_run(tmp_path, exposed=0.1, all_reduce=0.1)
    _compute(run, 0.6, 0.7)
    evidence = _load(run)
    findings = analyse(evidence)
    assert findings.network is not None
    assert findings.network.straggler is not None
    # Worker 0 waits a tenth of a second in every other step; nobody is behind for good.
    assert findings.network.straggler.seconds == pytest.approx(0.05, rel=0.02)
    assert findings.network.straggler.seconds_behind == pytest.approx(0, abs=0.002)
    assert "slowest in" not in network_bottleneck(evidence, findings).next_step


def test_a_wait_that_piles_up_between_synchronizations_is_not_the_network(tmp_path: Path) -> None:
    network = _network(local_run(tmp_path, behind=0.5))
    # 2 s of exchange and 8 x 0.5 s of waiting for worker 1 in every 8 steps; the first round
    # counts from its fourth step.
    assert network.straggler is not None
    assert network.straggler.seconds == pytest.approx((59 * 4 + 5 * 0.5) / 477)
    assert network.network_seconds == pytest.approx(2 / 8, rel=0.02)


def test_what_a_worker_loses_and_gains_between_synchronizations_cancels(tmp_path: Path) -> None:
    run = local_run(tmp_path)
    _compute(run, 0.6, 0.8)
    network = _network(run)
    assert network.straggler is not None
    assert network.straggler.seconds == pytest.approx(0, abs=0.002)
    assert network.network_seconds == pytest.approx(2 / 8, rel=0.02)


def test_synchronizations_are_no_uneven_steps(tmp_path: Path) -> None:
    evidence = _load(local_run(tmp_path))
    findings = analyse(evidence)
    times = findings.times
    assert times is not None
    # Seven steps of one second and one of three.
    assert (times.percentile_5, times.median, times.percentile_95) == pytest.approx([1.25] * 3)
    assert "of rounds of 8 steps: median 1.25 s" in step_time(evidence, findings).answer
    assert findings.step_reason == "mostly compute"


@pytest.mark.parametrize(
    ("exposed", "all_reduce", "agrees"),
    [
        (0.5, 0.5, True),
        (0.05, 1.0, False),  # At most 2/3 of 0.76 s can be hidden.
        (0.3, 0.1, False),
        (0.015, 0.001, True),  # Too little of a step to matter.
    ],
)
def test_the_wait_itself_has_to_agree_with_the_model(
    tmp_path: Path, exposed: float, all_reduce: float, agrees: bool
) -> None:
    run = pair_run(tmp_path, exposed=exposed, all_reduce=all_reduce)
    run.watch(4_000_000)
    evidence = _load(run)
    findings = analyse(evidence)
    assert findings.network is not None
    assert findings.network.agrees is agrees
    answer = network_bottleneck(evidence, findings)
    if answer.verdict != "unclear":
        assert answer.confidence == ("high" if agrees else "medium")
        assert ("does not agree" in " ".join(answer.details)) is not agrees


def test_with_local_steps_nothing_is_foretold_to_be_hidden(tmp_path: Path) -> None:
    network = _network(local_run(tmp_path))
    assert network.model_network_seconds == pytest.approx((2 / 8, 2 / 8))


def test_compute_that_differs_from_the_calibration_does_not_agree(tmp_path: Path) -> None:
    run = pair_run(tmp_path)
    next(line for line in run.lines if line["kind"] == "calibration")["seconds_compute"] = 0.1
    network = _network(run)
    assert network.agrees is False


def test_confidence_needs_the_traffic_of_every_machine(tmp_path: Path) -> None:
    run = pair_run(tmp_path)
    run.watch(4_000_000)
    del run.monitor["alpha"]
    evidence = _load(run)
    answer = network_bottleneck(evidence, analyse(evidence))
    assert answer.confidence == "medium"
    assert "Traffic of alpha is unknown." in answer.details


def test_several_machines_that_are_slower_than_one_worker(tmp_path: Path) -> None:
    """0.9 s of waiting for 0.08 s of compute: one worker would take 0.16 s and 0.02 s more."""
    run = pair_run(tmp_path, exposed=0.9, all_reduce=0.9)
    evidence = _load(run)
    answer = network_bottleneck(evidence, analyse(evidence))
    slower = "The 2 machines took 5.6 times as long as a single worker would, 0.180 s per step."
    assert answer.answer.endswith(slower)
    assert answer.evidence["one_worker_seconds"] == pytest.approx(0.18)
    # In 16 bits a step would still take 0.55 s; 32 local steps take 0.114 s.
    assert '"auto" (8 local steps in int8): predicted 0.102 s per step' in answer.next_step


def test_where_nothing_beats_one_worker_one_machine_is_advised(tmp_path: Path) -> None:
    run = pair_run(tmp_path, exposed=9.9, seconds=10.0, goodput=400.0, all_reduce=9.9)
    for line in run.lines:
        if line["kind"] == "train":
            line |= {"seconds_compute": 0.02, "seconds_other": 0.065}
            line["slowest"]["seconds"] = line["fastest"]["seconds"] = 0.02
    evidence = _load(run)
    answer = network_bottleneck(evidence, analyse(evidence))
    assert answer.next_step.startswith(
        "Train on one machine: even when sending less, a step is predicted to take 1.26 s, against"
    )


def test_sixteen_bits_are_advised_where_they_are_enough(tmp_path: Path) -> None:
    run = pair_run(tmp_path, exposed=0.3, all_reduce=0.75)
    evidence = _load(run)
    answer = network_bottleneck(evidence, analyse(evidence))
    assert "one worker alone" not in answer.answer
    assert 'distributed.compression = "bf16": predicted 0.703 s per step' in answer.next_step
    assert "Local steps or a faster link save more" in answer.next_step


def test_what_balancing_won_is_told(tmp_path: Path) -> None:
    run = pair_run(tmp_path)
    line = next(line for line in run.lines if line["kind"] == "calibration")
    line["seconds_compute_by_worker"] = [0.2, 0.4]
    evidence = _load(run)
    assert not any("equal shares" in one for one in step_time(evidence, analyse(evidence)).details)
    line["balanced_rows"] = [22, 10]
    evidence = _load(run)
    (told,) = (
        one for one in step_time(evidence, analyse(evidence)).details if "equal shares" in one
    )
    assert "worker 1 on beta would compute 0.400 s a step, 2.0 times as long" in told
    line["balanced_rows"] = [16, 16]
    same = _load(run)
    assert any(
        one.startswith("Rows were split 16:16") for one in step_time(same, analyse(same)).details
    )
    # 22 rows instead of 16 take the first 0.275 s, 10 the second 0.25 s.
    assert "split 22:10 instead (distributed.balance): 0.275 s" in told


def test_three_steps_on_one_machine(tmp_path: Path) -> None:
    run = RunFolder(tmp_path)
    run.begin()
    for step in range(1, 4):
        run.train(step)
    evidence = _load(run)
    findings = analyse(evidence)
    assert network_bottleneck(evidence, findings).verdict == "single machine"
    answer = step_time(evidence, findings)
    assert "median" not in answer.answer
    assert answer.details == ("Only 3 steps count, including the first ones after a start.",)
    assert (answer.confidence, answer.note) == ("low", "")
    assert findings.step_reason == "few steps"


def test_three_steps_on_two_machines(tmp_path: Path) -> None:
    evidence = _load(pair_run(tmp_path, steps=3))
    answer = network_bottleneck(evidence, analyse(evidence))
    assert answer.verdict == "unclear"
    assert "too few steps" in answer.answer
    assert answer.next_step == "Let the run continue for more steps."


def test_workers_of_one_machine_that_wait_for_each_other(tmp_path: Path) -> None:
    run = pair_run(tmp_path, exposed=0.7)
    for line in run.lines:
        if "hosts" in line:
            line["hosts"] = ["alpha", "alpha"]
    evidence = _load(run)
    findings = analyse(evidence)
    answer = network_bottleneck(evidence, findings)
    assert (answer.verdict, answer.tone) == ("single machine", "caution")
    assert "0.700 s of each step of 1.00 s (70%) waiting for each other" in answer.answer
    assert "fewer workers" in answer.next_step
    assert findings.step_reason == "waits for gradients"


def test_workers_of_one_machine_that_wait_for_something_else(tmp_path: Path) -> None:
    """Sixteen bits would not help where sending takes a hundredth of the wait."""
    run = pair_run(tmp_path, exposed=0.7, all_reduce=0.007)
    for line in run.lines:
        if "hosts" in line:
            line["hosts"] = ["alpha", "alpha"]
    evidence = _load(run)
    answer = network_bottleneck(evidence, analyse(evidence))
    assert "an exchange takes only 7.00 ms, so the workers must be waiting for" in answer.answer
    assert "what else keeps the machine's cores busy" in answer.next_step
    assert (answer.tone, answer.confidence) == ("caution", "medium")


def test_one_long_step_is_named_and_makes_no_machine_a_loss(tmp_path: Path) -> None:
    run = pair_run(tmp_path, exposed=0.1, all_reduce=0.1)
    late = False
    for line in run.lines:
        if line["kind"] == "train" and line["step"] == 60:
            line |= {"seconds": 201.0, "seconds_exposed_communication": 200.1}
            late = True
        line["time"] += 200 * late
    evidence = _load(run)
    (told,) = (one for one in evidence.missing if "means include it" in one)
    assert told.startswith("Step 60 took 3 min 21 s, 63% of all time in steps, where half of them")
    answer = network_bottleneck(evidence, analyse(evidence))
    assert "than a single worker" not in answer.answer
    assert "as a single worker" not in answer.answer
    ordinary = load_evidence(pair_run(tmp_path / "ordinary").write(), START)
    assert not any("means include it" in one for one in ordinary.missing)


@pytest.mark.parametrize(
    ("seconds", "reason"),
    [
        ([1.0] * 20, "mostly compute"),
        ([1.0] * 18 + [3.0] * 2, "some slow steps"),
        ([1.0] * 2 + [3.0] * 18, "half of the steps slow"),
    ],
)
def test_uneven_steps(tmp_path: Path, seconds: list[float], reason: str) -> None:
    run = RunFolder(tmp_path)
    run.begin()
    for step in range(1, 201):
        run.train(step, seconds=seconds[step % 20])
    evidence = _load(run)
    findings = analyse(evidence)
    assert findings.step_reason == reason
    is_well = reason == "mostly compute"
    assert step_time(evidence, findings).tone == ("plain" if is_well else "caution")


@pytest.mark.parametrize(
    ("phases", "reason"),
    [
        ({"seconds_data": 0.05, "seconds_compute": 0.80}, "mostly compute"),
        ({"seconds_data": 0.15, "seconds_compute": 0.70}, "waits for data"),
        ({"seconds_data": 0.4, "seconds_compute": 0.45}, "waits for data"),
        ({"seconds_compute": 0.2, "seconds_optimizer": 0.7}, "mostly optimizer"),
        ({"seconds_compute": 0.2, "seconds_other": 0.7}, "mostly outside the phases"),
    ],
)
def test_where_the_time_of_a_step_went(
    tmp_path: Path, phases: dict[str, float], reason: str
) -> None:
    run = RunFolder(tmp_path)
    run.begin()
    for step in range(1, 201):
        run.train(step, **phases)
    assert analyse(_load(run)).step_reason == reason


def test_steps_that_do_not_tell_their_phases(tmp_path: Path) -> None:
    run = RunFolder(tmp_path)
    run.begin()
    for step in range(1, 201):
        run.train(step)
        run.lines[-1] = {
            key: value for key, value in run.lines[-1].items() if not key.startswith("seconds_")
        }
    assert analyse(_load(run)).step_reason == "phases not known"
