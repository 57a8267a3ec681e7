from collections.abc import Callable
from pathlib import Path

import pytest

from dragoman.report.answers.answer import Answer
from dragoman.report.answers.gpus_used import gpu_utilization
from dragoman.report.evidence import load_evidence
from dragoman.report.findings.analysis import analyse
from dragoman.report.findings.gpus import GpuJudgement
from report.run_folders import START, RunFolder, busy_gpu, calm_run, grown_run, pair_run


def _gpu_run(path: Path) -> RunFolder:
    run = RunFolder(path, device="cuda")
    run.begin()
    for step in range(1, 101):
        run.train(step)
        if step == 50:
            run.evaluate(step, loss=2.0, bleu=5.0, seconds=20.0)
    return run


def _judge(run: RunFolder) -> GpuJudgement:
    return analyse(load_evidence(run.write(), START)).gpus


@pytest.mark.parametrize(
    ("percent", "verdict"), [(100, "full"), (90, "full"), (80, "partial"), (30, "low")]
)
def test_verdicts(tmp_path: Path, percent: float, verdict: str) -> None:
    run = _gpu_run(tmp_path)
    run.watch(0, utilization=percent)
    found = _judge(run)
    assert found.verdict == verdict
    assert found.mean == pytest.approx(percent)
    assert found.gpus[0].share_full == (percent >= 90)


@pytest.mark.parametrize(
    ("percent", "words"),
    [(90.2, "90%"), (89.96, "89.9%"), (89.6, "89.6%"), (89.4, "89%"), (49.7, "49.7%")],
)
def test_no_rounding_up_to_a_threshold(tmp_path: Path, percent: float, words: str) -> None:
    run = _gpu_run(tmp_path)
    run.watch(0, utilization=percent)
    answer = _answer(run)
    assert answer.note == f"{words} busy"
    assert f"busy {words} of the time" in answer.answer


def test_no_gpu(tmp_path: Path) -> None:
    run = calm_run(tmp_path)
    run.watch(0)
    found = _judge(run)
    assert found.verdict == "none"
    assert found.cpu_percent == pytest.approx(75)


def test_no_monitor(tmp_path: Path) -> None:
    found = _judge(_gpu_run(tmp_path))
    assert found.verdict == "none"


def test_dips_have_a_cause(tmp_path: Path) -> None:
    run = _gpu_run(tmp_path)
    for second in range(121):
        busy = 10 if 50 < second <= 70 else 98
        busy = 5 if second in (90, 91) else busy
        gpu = {"index": 0, "name": "A GPU", "utilization": busy}
        run.sample("alpha", START + second, 0, gpus=[gpu])
    dips = {dip.cause: dip for dip in _judge(run).dips}
    assert dips["evaluation"].count == 1
    assert dips["evaluation"].seconds == pytest.approx(20)
    assert dips["training"].count == 1
    assert dips["training"].seconds == pytest.approx(2)
    # The samples of training right before and after do not count, though dips near it do.
    assert dips["evaluation"].mean_utilization == pytest.approx(10)
    assert dips["evaluation"].idle_seconds == pytest.approx(20 * 0.9)
    assert dips["training"].idle_seconds == pytest.approx(2 * 0.95 + 99 * 0.02)


def test_gpus_that_no_worker_used_are_left_out(tmp_path: Path) -> None:
    run = _gpu_run(tmp_path)
    for second in range(121):
        gpus = [{"index": index, "name": "A GPU", "utilization": 97 * index} for index in (0, 1)]
        run.sample("alpha", START + second, 0, gpus=gpus)
    found = _judge(run)
    assert found.verdict == "full"
    assert [gpu.index for gpu in found.gpus] == [1]
    assert found.unused == 1


def test_share_of_peak_arithmetic_by_hand(tmp_path: Path) -> None:
    # 1,000 tokens a second x 6e6 operations of 1e11 possible ones.
    found = _judge(calm_run(tmp_path))
    assert found.arithmetic_share == pytest.approx(1000 * 6e6 / 1e11)


def test_share_of_peak_arithmetic_is_that_of_the_latest_workers(tmp_path: Path) -> None:
    # 2,000 tokens a second on four workers.
    found = _judge(grown_run(tmp_path))
    assert found.arithmetic_share == pytest.approx(2000 * 6e6 / 4e11)


def _answer(run: RunFolder) -> Answer:
    evidence = load_evidence(run.write(), START)
    return gpu_utilization(evidence, analyse(evidence))


def _on_gpus(run: RunFolder) -> RunFolder:
    run.lines[0]["device"] = "cuda"
    return run


def _sample(run: RunFolder, busy: Callable[[int], float]) -> None:
    for host in dict.fromkeys(run.hosts):
        for second in range(int(run.clock - START) + 1):
            run.sample(host, START + second, 0, gpus=[busy_gpu(busy(second))])


def test_the_most_idle_time_decides_the_advice_not_the_deepest_dip(tmp_path: Path) -> None:
    run = _gpu_run(tmp_path)
    for line in run.lines:
        if line["kind"] == "train":
            line |= {"seconds_data": 0.4, "seconds_compute": 0.45}
    # 20 s of evaluation at 45% are 11 s of idling, 100 s of training at 60% are 40.
    _sample(run, lambda second: 45 if 50 < second <= 70 else 60)
    answer = _answer(run)
    assert "45% during evaluations" in answer.answer
    assert (
        "is during training, which spends 40% of each step waiting for batches" in answer.next_step
    )


def test_idle_evaluations_are_named(tmp_path: Path) -> None:
    run = _gpu_run(tmp_path)
    _sample(run, lambda second: 5 if 50 < second <= 70 else 97)
    assert "is during evaluations" in _answer(run).next_step


def test_a_gap_is_not_blamed_on_training(tmp_path: Path) -> None:
    run = _gpu_run(tmp_path)
    run.clock += 500
    run.train(101)
    _sample(run, lambda second: 0 if 120 < second <= 620 else 97)
    answer = _answer(run)
    assert answer.verdict == "low"
    assert "a gap that the log does not explain" in answer.next_step


@pytest.mark.parametrize(("exposed", "headline"), [(0.1, "Full"), (0.3, "Busy, partly waiting")])
def test_waiting_in_a_collective_is_no_good_news(
    tmp_path: Path, exposed: float, headline: str
) -> None:
    run = _on_gpus(pair_run(tmp_path, exposed=exposed))
    next(line for line in run.lines if line["kind"] == "calibration")["arithmetic_per_token"] = 6e7
    _sample(run, lambda second: 98)
    answer = _answer(run)
    assert (answer.verdict, answer.headline) == ("full", headline)
    assert answer.tone == ("good" if headline == "Full" else "caution")
    assert ("The fastest worker spends 30% of each step waiting." in answer.details) == (
        exposed == 0.3
    )


def test_busy_with_little_arithmetic_is_no_good_news(tmp_path: Path) -> None:
    # 1,000 tokens a second x 6e6 operations of 1e11 possible ones are 6%.
    run = _on_gpus(calm_run(tmp_path))
    _sample(run, lambda second: 98)
    answer = _answer(run)
    assert answer.tone == "plain"
    assert "it reached 6.0% of the devices' peak compute" in answer.answer
    assert "more to do at once" in answer.next_step


def test_a_machine_without_samples_is_missed(tmp_path: Path) -> None:
    run = _on_gpus(pair_run(tmp_path))
    _sample(run, lambda second: 98)
    assert "2 GPUs were busy" in _answer(run).answer
    assert _answer(run).confidence == "high"
    del run.monitor["alpha"]
    (tmp_path / "monitor" / "alpha.jsonl").unlink()
    answer = _answer(run)
    assert answer.answer.startswith("1 of 2 GPUs was busy 98%")
    assert answer.confidence == "medium"


def test_a_run_too_short_for_a_sample_says_so(tmp_path: Path) -> None:
    run = RunFolder(tmp_path, device="cuda")
    run.begin()
    run.clock += 5
    for step in range(1, 4):
        run.train(step, seconds=0.1)
    for second in range(5):
        run.sample("alpha", START + second, 0, gpus=[busy_gpu(0)])
    answer = _answer(run)
    assert "no monitor sample was taken during training" in answer.answer
    assert "for longer" in answer.next_step
