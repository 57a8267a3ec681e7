import ast
import json
import math
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any, get_args

import pytest
import torch

from dragoman.cluster.local_steps import OuterSteps
from dragoman.config import Compression, DistributedSettings, OptimizerKind
from dragoman.config_file import sections
from dragoman.documents import items_of
from dragoman.report import answers as answers_package
from dragoman.report.answers import QUESTIONS, answer_all
from dragoman.report.answers.learning_rate import learning_rate
from dragoman.report.answers.time_and_sizes import MOMENTS
from dragoman.report.evidence import load_evidence
from dragoman.report.findings.analysis import analyse
from report.run_folders import (
    PARAMETERS,
    START,
    RunFolder,
    calm_run,
    grown_run,
    local_run,
    pair_run,
    write_checkpoints,
)

IDS = [question.__name__ for question in QUESTIONS]
FIELDS = ["id", "question", "verdict", "answer", "evidence", "confidence", "next_step"]


def answers_of(run: Path) -> dict[str, dict[str, Any]]:
    evidence = load_evidence(run, START)
    answers = [answer.to_json() for answer in answer_all(evidence, analyse(evidence))]
    # Strict JSON: no NaN, no infinity, nothing that is not a plain value.
    plain = json.loads(json.dumps(answers, allow_nan=False))
    return {answer["id"]: answer for answer in plain}


@pytest.fixture
def calm(tmp_path: Path) -> dict[str, dict[str, Any]]:
    run = calm_run(tmp_path)
    run.watch(0)
    path = run.write()
    write_checkpoints(path, (20, 40, 60), {60: (2.15, 28.3), 20: (2.05, 25.0)})
    return answers_of(path)


def test_every_answer_has_all_its_fields(calm: dict[str, dict[str, Any]]) -> None:
    assert list(calm) == IDS
    for answer in calm.values():
        assert list(answer) == FIELDS
        assert answer["confidence"] in ("high", "medium", "low")
        assert answer["question"].endswith("?")
        assert answer["next_step"]


def test_an_answer_is_one_or_two_sentences(tmp_path: Path) -> None:
    runs = [calm_run(tmp_path / "calm"), grown_run(tmp_path / "grown"), local_run(tmp_path / "x")]
    runs += [pair_run(tmp_path / f"pair{steps}", exposed=0.9, steps=steps) for steps in (3, 300)]
    runs.append(pair_run(tmp_path / "odd", exposed=0.2))
    for run in runs:
        run.watch(6_000_000)
        for answer in answers_of(run.write()).values():
            sentences = re.split(r"(?<=[.!?]) +(?=[A-Z0-9])", answer["answer"])
            assert 1 <= len(sentences) <= 2, sentences


def test_numbers_recomputed_by_hand(calm: dict[str, dict[str, Any]]) -> None:
    # 60 steps of one second and 15 evaluations of two.
    assert calm["duration"]["verdict"] == pytest.approx(90)
    assert calm["duration"]["evidence"]["split"]["evaluation"] == pytest.approx(30)
    assert calm["duration"]["evidence"]["target_tokens"] == 60_000
    assert calm["duration"]["evidence"]["epochs"] == pytest.approx(60 / 13)
    assert calm["duration"]["evidence"]["tokens_per_second"] == pytest.approx(1000)
    assert calm["step_time"]["verdict"] == pytest.approx(1.0)
    assert calm["step_time"]["evidence"]["phases"]["compute"] == pytest.approx(0.8)
    # 47,000 + 55,000 bytes of cleaned text.
    assert calm["training_set"]["verdict"] == 102_000
    assert calm["training_set"]["evidence"]["removed"] == {
        "empty_side": 10,
        "duplicate": 30,
        "too_many_words": 20,
    }
    assert "6.0%" in calm["training_set"]["answer"]
    size = 12 * PARAMETERS + 600
    assert calm["checkpoint_size"]["verdict"] == size
    assert calm["checkpoint_size"]["evidence"]["bytes_of_all_kept"] == 3 * size
    assert calm["checkpoint_size"]["evidence"]["best_loss"]["step"] == 20
    assert calm["checkpoint_files"]["verdict"] == [
        "weights.safetensors",
        "optimizer.safetensors",
        "state.json",
    ]
    assert calm["checkpoint_files"]["evidence"]["expected_bytes"] == 12 * PARAMETERS
    assert "12,000,000 bytes" in calm["checkpoint_files"]["answer"]
    contents = "1,000,000 weights and 2,000,000 values of Adam's two moments"
    assert contents in calm["checkpoint_files"]["answer"]


def test_every_optimizer_has_words_for_what_it_remembers() -> None:
    assert set(MOMENTS) == set(get_args(OptimizerKind))


def test_a_checkpoint_of_muon_holds_less(tmp_path: Path) -> None:
    run = calm_run(tmp_path)
    assert run.settings
    run.settings += '[optimizer]\nkind = "muon"\n'
    write_checkpoints(run.write(), [20])
    answer = answers_of(run.path)["checkpoint_files"]
    # tiny: 4 layers each, 4 x 128^2 and 8 x 128^2 of attention, 2 x 128 x 256 of feed-forward.
    matrices = 4 * (12 * 128**2 + 4 * 128 * 256)
    assert (
        f"{2_000_000 - matrices:,} values of Muon's momentum and Adam's two moments"
        in answer["answer"]
    )
    assert answer["evidence"]["expected_bytes"] == 12_000_000 - 4 * matrices


def test_learning_rate_follows_its_law(calm: dict[str, dict[str, Any]]) -> None:
    answer = calm["learning_rate"]
    assert answer["verdict"] == "transformer"
    law = answer["evidence"]["law"]
    assert law["peak_step"] == 16
    # 2 / sqrt(128) / sqrt(16)
    assert law["peak"] == pytest.approx(2 / 128**0.5 / 4)
    assert answer["evidence"]["largest_deviation_from_law"] < 1e-9


def test_a_learning_rate_that_left_its_law(tmp_path: Path) -> None:
    run = calm_run(tmp_path)
    for line in run.lines:
        if line["kind"] == "train" and line["step"] > 30:
            line["learning_rate"] *= 0.5
    evidence = load_evidence(run.write(), START)
    found = analyse(evidence).learning_rate
    assert found.reason == "leaves the schedule"
    # Worst at step 31: half of 2 / sqrt(128) / sqrt(31), as part of the peak.
    assert found.largest_deviation == pytest.approx(0.5 * 4 / 31**0.5)


@pytest.mark.parametrize(
    ("settings", "rate", "reason"),
    [
        (True, 1e-3, "leaves the schedule"),
        (True, 0.0, "always zero"),
        (True, None, "nothing logged"),
        (False, 1e-3, "schedule not known"),
        (False, 0.0, "always zero"),
        (False, None, "nothing known"),
    ],
)
def test_what_is_known_of_the_learning_rate(
    tmp_path: Path, settings: bool, rate: float | None, reason: str
) -> None:
    run = calm_run(tmp_path)
    run.settings = run.settings if settings else ""
    for line in run.lines:
        if line["kind"] == "train":
            line["learning_rate"] = rate
    evidence = load_evidence(run.write(), START)
    findings = analyse(evidence)
    assert findings.learning_rate.reason == reason
    answer = learning_rate(evidence, findings)
    assert (answer.tone == "bad") == (reason == "always zero")


@pytest.mark.parametrize(
    ("kind", "settings", "now"),
    [
        ("inverse_square_root", "peak = 1e-3\nwarmup_steps = 10", 1e-3 * (10 / 60) ** 0.5),
        ("cosine", "peak = 1e-3\nwarmup_steps = 10\nfinal_fraction = 0.1", 1e-4),
        ("constant", "peak = 1e-3\nwarmup_steps = 10", 1e-3),
        ("warmup_stable_decay", "peak = 1e-3\nwarmup_steps = 10\ndecay_steps = 20", 0.0),
    ],
)
def test_every_schedule_is_named(tmp_path: Path, kind: str, settings: str, now: float) -> None:
    run = RunFolder(tmp_path)
    assert run.settings is not None
    head, _, tail = run.settings.partition("[schedule]")
    run.settings = f'{head}[schedule]\nkind = "{kind}"\n{settings}\n\n[training]\nsteps = 60\n'
    assert tail
    run.begin()
    run.train(60, learning_rate=now)
    answer = answers_of(run.write())["learning_rate"]
    assert answer["verdict"] == kind
    assert answer["evidence"]["largest_deviation_from_law"] == pytest.approx(0, abs=1e-9)


def test_two_machines_and_a_slow_link(tmp_path: Path) -> None:
    run = pair_run(tmp_path, exposed=0.5)
    run.watch(4_000_000)
    answers = answers_of(run.write())
    network = answers["network_bottleneck"]
    assert network["verdict"] == "yes"
    assert network["confidence"] == "high"
    assert network["evidence"]["infinite_network_seconds"] == pytest.approx(0.5)
    assert "with an infinitely fast network they would take 0.500 s" in network["answer"]
    added_up = "compute measured in isolation and the other phases add up to 0.500 s."
    assert f"Without the network, {added_up}" in network["evidence"]["details"]
    assert "4 local steps in int8" in network["next_step"]
    relation = answers["step_time_vs_network"]
    assert relation["evidence"]["bytes_per_step_seen"]["alpha"] == pytest.approx(4e6, rel=1e-3)
    assert relation["evidence"]["bytes_per_step_theory"] == 4e6
    assert "which agrees" in relation["answer"]
    # Every step is alike, so there is nothing to correlate.
    assert relation["verdict"] == "unclear"


def test_other_traffic_on_the_interface_is_named(tmp_path: Path) -> None:
    run = pair_run(tmp_path)
    run.watch(6_000_000)
    assert "other traffic" in answers_of(run.write())["step_time_vs_network"]["answer"]


def test_gradients_that_take_another_way_are_named(tmp_path: Path) -> None:
    run = pair_run(tmp_path)
    run.watch(1_000)
    assert "another path" in answers_of(run.write())["step_time_vs_network"]["answer"]


def test_one_machine(calm: dict[str, dict[str, Any]]) -> None:
    assert calm["network_bottleneck"]["verdict"] == "single machine"
    assert calm["step_time_vs_network"]["verdict"] == "single machine"
    assert calm["step_time_vs_network"]["confidence"] == "high"
    assert calm["gpu_utilization"]["verdict"] == "none"
    assert "75% busy" in calm["gpu_utilization"]["answer"]


def test_an_empty_run_answers_too(tmp_path: Path) -> None:
    run = RunFolder(tmp_path, settings=None, provenance=None)
    answers = answers_of(run.write())
    assert list(answers) == IDS
    assert {answer["verdict"] for answer in answers.values()} == {"unclear", "none"}


def test_a_schedule_that_has_run_down_is_judged_by_a_longer_one(tmp_path: Path) -> None:
    run = calm_run(tmp_path)
    run.settings = (
        '[model]\npreset = "tiny"\n\n[schedule]\nkind = "cosine"\npeak = 1e-3\n'
        "warmup_steps = 10\n\n[training]\nsteps = 60\n"
    )
    for line in run.lines:
        if line["kind"] == "train":
            line["learning_rate"] = 1e-5
    answer = answers_of(run.write())["fully_trained"]
    assert answer["evidence"]["rate"] == "has run down"
    # How much of the gain the fall of the rate has brought cannot be told apart exactly.
    assert answer["evidence"]["reason"] == "gain uncertain"
    assert "on a schedule of that length" in answer["answer"]


@pytest.mark.parametrize(("bleu", "confidence"), [(20.0, "high"), (None, "medium")])
def test_overfitting_by_loss_alone_is_less_sure(
    tmp_path: Path, bleu: float | None, confidence: str
) -> None:
    run = RunFolder(tmp_path)
    run.begin()
    for step in range(10, 301, 10):
        run.train(step)
        run.evaluate(step, 2 + abs(step - 100) / 400, bleu, train_sample_loss=2 - step / 1000)
    answer = answers_of(run.write())["overfitting"]
    assert answer["verdict"] == "yes"
    assert answer["confidence"] == confidence
    assert ("BLEU was not measured" in answer["answer"]) == (bleu is None)


@pytest.mark.parametrize(("compression", "numbers"), [("bf16", 3), ("int8", 4), ("int2", 4)])
def test_local_steps_keep_as_many_numbers_as_they_have_tensors(
    tmp_path: Path, compression: Compression, numbers: int
) -> None:
    settings = DistributedSettings(sync="local", compression=compression)
    tensors = OuterSteps(torch.nn.Linear(3, 2, bias=False), settings, None).tensors()
    assert len(tensors) == numbers
    run = calm_run(tmp_path)
    assert run.settings is not None
    run.settings += f'\n[distributed]\nsync = "local"\ncompression = "{compression}"\n'
    path = run.write()
    write_checkpoints(path, (60,))
    answer = answers_of(path)["checkpoint_files"]
    assert answer["evidence"]["expected_bytes"] == (12 + 4 * numbers) * PARAMETERS
    assert "the outer momentum" in answer["answer"]


def texts_of(node: ast.AST) -> Iterator[str]:
    """Every string of a source, parts of it joined."""
    if isinstance(node, ast.JoinedStr):
        yield "".join(str(getattr(part, "value", "")) for part in node.values)
    elif isinstance(node, ast.Constant) and isinstance(node.value, str):
        yield node.value
    else:
        for child in ast.iter_child_nodes(node):
            yield from texts_of(child)


def test_what_cannot_change_on_resume_is_advised_for_a_new_run_only() -> None:
    may_change = {
        f"{section.name}.{item.name}": item.metadata["may_change"]
        for section, kind in sections()
        for item, _ in items_of(kind)
    }
    named = [
        (text, name)
        for path in Path(answers_package.__file__).parent.glob("*.py")
        for text in texts_of(ast.parse(path.read_text()))
        for name in may_change
        if name in text
    ]
    assert len(named) > 10
    for text, name in named:
        assert may_change[name] or "new run" in text, text
        assert may_change[name] or not re.search("resume|go on|same command", text, re.I), text


def improving_run(path: Path, schedule: str, total: int) -> RunFolder:
    """60 steps, getting better all the time, of so many that its schedule has."""
    run = calm_run(path)
    run.settings = (
        f'[model]\npreset = "tiny"\n\n[schedule]\nkind = "{schedule}"\npeak = 1e-3\n'
        f"warmup_steps = 10\nfinal_fraction = 0.5\n\n[training]\nsteps = {total}\n"
    )
    for line in run.lines:
        if line["kind"] == "train":
            line["learning_rate"] = 1e-3
        if line["kind"] == "eval":
            line["loss"], line["bleu"] = 5 - 0.4 * math.log(line["step"]), 5.0
    return run


@pytest.mark.parametrize(
    ("schedule", "total", "reason", "advice"),
    [
        ("constant", 60, "still improving", "raise training.steps to 90"),
        ("cosine", 60, "longer schedule helps", "start a new run with a schedule of 90"),
        ("cosine", 80, "rate still to fall", "Continue to the end of the schedule, step 80"),
    ],
)
def test_a_schedule_with_an_end_is_not_made_longer(
    tmp_path: Path, schedule: str, total: int, reason: str, advice: str
) -> None:
    answer = answers_of(improving_run(tmp_path, schedule, total).write())["fully_trained"]
    assert answer["evidence"]["reason"] == reason
    assert advice in answer["next_step"]


@pytest.mark.parametrize(
    ("ended_by", "advice"),
    [
        ("hours", "Raise training.hours, which ended the run, and continue to the end"),
        ("gain_unlikely", "Lower training.stop_when_gain_unlikely, which ended the run, and"),
        ("signal", "Continue to the end of the schedule, step 80"),
    ],
)
def test_the_limit_that_ended_a_run_is_named(tmp_path: Path, ended_by: str, advice: str) -> None:
    run = improving_run(tmp_path, "cosine", 80)
    for line in run.lines:
        if line["kind"] == "stop":
            line["reason"] = ended_by
    assert answers_of(run.write())["fully_trained"]["next_step"].startswith(advice)
