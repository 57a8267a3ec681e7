"""Several workers end like one, and like themselves after a fault."""

from functools import partial
from pathlib import Path

import pytest

from launched import LONG, has_restarted, train, training, worker_processes
from support import PATIENCE, assert_same_end, has_step, metrics, wait_until

pytestmark = pytest.mark.slow

NO_DROPOUT = ["model.dropout=0.0", "model.attention_dropout=0.0", "model.relu_dropout=0.0"]


def test_losses_agree_for_any_number_of_workers_and_compression(prepared: Path) -> None:
    steps = ["training.steps=24", "evaluation.every_steps=24"]
    histories = []
    for workers in (1, 2, 3):
        # Who computes which rows makes no difference.
        balance = f"distributed.balance={'true' if workers == 3 else 'false'}"
        result = train(prepared, f"run{workers}", workers, *NO_DROPOUT, *steps, balance)
        assert result.returncode == 0, result.stderr
        histories.append(metrics(prepared / f"run{workers}", "train"))
    assert [len(history) for history in histories] == [24] * 3
    for alone, *shared in zip(*histories, strict=True):
        for other in shared:
            assert other["loss"] == pytest.approx(alone["loss"], rel=2e-5)
            assert other["gradient_norm"] == pytest.approx(alone["gradient_norm"], rel=1e-3)
            assert other["target_tokens"] == alone["target_tokens"]
    evaluations = [metrics(prepared / f"run{workers}", "eval") for workers in (1, 2, 3)]
    for alone, *shared in zip(*evaluations, strict=True):
        for other in shared:
            assert other["loss"] == pytest.approx(alone["loss"], rel=1e-4)
            assert other["pairs"] == alone["pairs"] == 20
            assert other["bleu"] == pytest.approx(alone["bleu"], abs=5.0)
    for history, workers in zip(histories[1:], (2, 3), strict=True):
        assert {line["slowest"]["worker"] for line in history} <= set(range(workers))
    for compression in ("bf16", "fp16", "powersgd"):
        settings = [*NO_DROPOUT, *steps, f"distributed.compression={compression}"]
        result = train(prepared, compression, 2, *settings)
        assert result.returncode == 0, result.stderr
        packed = metrics(prepared / compression, "train")
        tolerance = 0.15 if compression == "powersgd" else 0.02
        assert packed[-1]["loss"] == pytest.approx(histories[0][-1]["loss"], rel=tolerance)
        assert packed[-1]["loss"] != histories[1][-1]["loss"], "nothing was compressed"


def test_a_kill_is_told_and_what_is_repeated_is_marked(prepared: Path) -> None:
    """test_faults.py kills ten times."""
    steps = ["training.steps=60", "evaluation.every_steps=30"]
    assert train(prepared, "whole", 2, *steps).returncode == 0
    run = prepared / "run"
    with training(prepared, *steps) as process:
        wait_until(partial(has_step, run, 10))
        worker_processes(process)[1].kill()
        wait_until(partial(has_restarted, run, 1))
        _, errors = process.communicate(timeout=PATIENCE)
        assert process.returncode == 0, errors
    assert_same_end(prepared / "whole", run)
    (restart,) = metrics(run, "restart")
    assert restart["reason"].startswith("worker 1 ")
    assert restart["reason"].endswith(": killed by SIGKILL")
    counted = {}
    for line in metrics(run, "train"):
        assert line.get("repeated", False) == (line["step"] in counted)
        counted[line["step"]] = line
    assert sorted(counted) == list(range(1, 61))


def test_nan_in_one_worker_makes_all_skip_together(prepared: Path) -> None:
    fault = {"FAULT": "1,9,nan"}
    settings = [*LONG, "training.max_skipped_steps=3"]
    with training(prepared, *settings, environment=fault) as process:
        _, errors = process.communicate(timeout=PATIENCE)
    assert process.returncode == 1
    assert "no finite gradient for 3 consecutive steps, up to step 11" in errors
    skipped = {line["step"] for line in metrics(prepared / "run", "train") if "skipped" in line}
    assert skipped == {9, 10, 11}


def test_local_steps_resume_and_restart_exactly(prepared: Path) -> None:
    """With whole models and adam, tests/cluster/test_local_steps.py does so in one process."""
    local = ["optimizer.kind=muon"]
    local += ["distributed.sync=local", "distributed.local_steps=3", "distributed.compression=bf16"]
    local += ["distributed.local_fragments=2", "evaluation.every_steps=12"]
    result = train(prepared, "whole", 2, *local)
    assert result.returncode == 0, result.stderr
    assert "less than a round" not in result.stderr
    local.append("checkpoints.every_steps=4")
    for step in (7, 15):
        fault = {"FAULT": f"1,{step},exception"}
        with training(prepared, *local, "distributed.max_restarts=0", environment=fault) as process:
            assert process.wait(timeout=PATIENCE) == 1
    train(prepared, "run", 2, *local)
    assert_same_end(prepared / "run", prepared / "whole")


def test_local_steps_learn_what_steps_together_learn(prepared: Path) -> None:
    ends = {}
    for name, local in (("together", []), ("alone", ["distributed.sync=local"])):
        settings = [*local, "training.steps=60", "evaluation.every_steps=60"]
        settings += ["distributed.local_steps=4"] if local else []
        result = train(prepared, name, 2, *NO_DROPOUT, *settings)
        assert result.returncode == 0, result.stderr
        ends[name] = metrics(prepared / name, "eval")[-1]["loss"]
    assert ends["alone"] == pytest.approx(ends["together"], abs=0.15)


def test_evaluations_between_two_exchanges_are_told_to_score_the_same(prepared: Path) -> None:
    local = ["distributed.sync=local", "distributed.local_steps=16", "distributed.local_delay=0"]
    local += ["distributed.local_fragments=1", "training.steps=12", "evaluation.every_steps=4"]
    result = train(prepared, "run", 2, *local)
    assert result.returncode == 0, result.stderr
    assert "evaluation.every_steps = 4 is less than a round of 16 local steps" in result.stderr
    losses = {line["step"]: line["loss"] for line in metrics(prepared / "run", "eval")}
    assert losses[4] == losses[8]
