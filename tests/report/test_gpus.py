from pathlib import Path

import pytest

from dragoman.report.evidence import load_evidence
from dragoman.report.findings import analyse
from dragoman.report.gpus import GpuJudgement
from report.run_folders import START, RunFolder, calm_run, grown_run


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
    # Samples within 1.5 s of the evaluation count as part of it: 20 low ones and 3 high ones.
    assert dips["evaluation"].mean_utilization == pytest.approx((20 * 10 + 3 * 98) / 23)


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
