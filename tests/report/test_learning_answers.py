import math
import re
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import get_args

import numpy as np
import pytest

from dragoman.report.answers import answer_all
from dragoman.report.answers.answer import SEE_WHAT_IS_MISSING, Answer
from dragoman.report.answers.fully_trained import ROWS as TRAINED_ROWS
from dragoman.report.answers.gpus_used import GPU_ROWS, GpuReason
from dragoman.report.answers.is_overfitting import ROWS as OVERFITTING_ROWS
from dragoman.report.answers.learning_rate import ROWS as LEARNING_RATE_ROWS
from dragoman.report.answers.network_bottleneck import ROWS as NETWORK_ROWS
from dragoman.report.answers.step_and_traffic import ROWS as TRAFFIC_ROWS
from dragoman.report.answers.step_time import ROWS as STEP_TIME_ROWS
from dragoman.report.answers.time_and_sizes import ADVICE_BY_REASON
from dragoman.report.evidence import load_evidence
from dragoman.report.findings.analysis import analyse
from dragoman.report.findings.bottleneck import NetworkReason
from dragoman.report.findings.convergence import ConvergenceReason
from dragoman.report.findings.followed_schedule import LearningRateReason
from dragoman.report.findings.overfitting import OverfittingReason
from dragoman.report.findings.step_times import StepTimeReason
from dragoman.report.findings.timeline import DurationReason
from dragoman.report.findings.traffic import TrafficReason
from dragoman.report.page.plots.canvas import WIDE, render_svg
from dragoman.report.page.plots.learning_plots import loss_picture
from dragoman.wording import in_percent
from report.run_folders import START, RunFolder, write_checkpoints

Curve = Callable[[int], float | None]

STEPS = range(10, 301, 10)


def answers_of(path: Path) -> dict[str, Answer]:
    evidence = load_evidence(path, START)
    return {answer.id: answer for answer in answer_all(evidence, analyse(evidence))}


def learned(
    path: Path,
    loss: Curve,
    bleu: Curve,
    sample: Curve = lambda step: 1.9 - step / 1000,
    train_loss: Curve = lambda step: 2.0,
    precision: str = "float32",
) -> RunFolder:
    run = RunFolder(path)
    run.begin(precision=precision)
    for step in STEPS:
        run.train(step, loss=train_loss(step))
        run.evaluate(step, loss(step), bleu(step), train_sample_loss=sample(step))
    run.line("stop", 300, reason="steps", detail="")
    return run


def wobble(size: float, seed: int = 2) -> Curve:
    values = size * np.random.default_rng(seed).standard_normal(400)
    return lambda step: float(values[step])


def no_number(step: int) -> float:
    return math.nan


def turned(step: int) -> float:
    return 2 + 0.25 * math.log(step / 100) ** 2


def test_an_overfitted_run_is_told_to_go_back(tmp_path: Path) -> None:
    answers = answers_of(learned(tmp_path, turned, lambda step: 20.0).write())
    trained = answers["fully_trained"]
    assert (trained.verdict, trained.tone) == ("no", "caution")
    assert trained.note == "worse than at step 100"
    assert trained.next_step == "Do not continue from here: use the checkpoint of step 100."
    assert answers["overfitting"].tone == "bad"
    # The mean of the last three, above the median of the three around step 100.
    rise = np.mean([turned(step) for step in (280, 290, 300)]) - np.median(
        [turned(step) for step in (90, 100, 110)]
    )
    assert answers["overfitting"].note.startswith(f"eval loss {rise:+.3f} since step 100")


def test_a_checkpoint_that_was_not_kept_is_not_advised(tmp_path: Path) -> None:
    path = learned(tmp_path, turned, lambda step: 20.0).write()
    write_checkpoints(path, (120, 200, 300))
    for answer in ("fully_trained", "overfitting"):
        assert "the checkpoint of step 120 (none of step 100 was kept)" in (
            answers_of(path)[answer].next_step
        )


def test_a_run_that_diverged_to_a_number(tmp_path: Path) -> None:
    def jump(step: int) -> float:
        return 2 + 9 / step if step < 150 else 9.0

    answers = answers_of(learned(tmp_path, jump, lambda step: 1.0, jump).write())
    trained, overfitting = answers["fully_trained"], answers["overfitting"]
    assert (trained.verdict, trained.tone, trained.confidence) == ("no", "bad", "high")
    assert "the run diverged" in trained.answer
    assert "use the checkpoint of step 140" in trained.next_step
    assert (overfitting.verdict, overfitting.tone) == ("no", "plain")
    assert "divergence, not overfitting" in overfitting.answer


@pytest.mark.parametrize(
    ("precision", "offered"),
    [
        ("float16", "or a longer warm-up, or in bfloat16 or float32."),
        ("bfloat16", "or a longer warm-up, or in float32."),
        ("float32", "or a longer warm-up."),
    ],
)
def test_advice_after_a_divergence(tmp_path: Path, precision: str, offered: str) -> None:
    def until_200(step: int) -> float | None:
        return 2.0 if step <= 200 else None

    run = learned(tmp_path, until_200, lambda step: 20.0, until_200, until_200, precision)
    for line in [line for line in run.lines if line["kind"] == "eval" and line["step"] % 50 == 0]:
        run.lines.append(line | {"kind": "checkpoint", "bytes": 1, "seconds_blocking": 0.0})
    answers = answers_of(run.write())
    trained, overfitting = answers["fully_trained"], answers["overfitting"]
    assert trained.note == "NaN or infinite since step 210"
    assert trained.next_step.startswith("Use the checkpoint of step 200, the last before that.")
    assert trained.next_step.endswith(offered)
    # Ten evaluations, from step 210 to 300.
    assert "in 10 evaluations after it the loss is NaN or infinite" in overfitting.answer
    assert "at the end" not in overfitting.answer
    assert overfitting.tone == "plain"


@pytest.mark.parametrize(
    ("rate", "warmup", "advice"),
    [
        (0.0, 100, "Start a new run with a learning rate above zero"),
        (9.0, 100, "Start a new run with a lower learning rate or a longer warm-up."),
        (9.0, 400, "Wait until the warm-up ends, at step 400, and look again."),
    ],
)
def test_a_plateau_of_what_never_learned_is_not_fully_trained(
    tmp_path: Path, rate: float, warmup: int, advice: str
) -> None:
    # The vocabulary has 320 words, and ln 320 is 5.768.
    run = learned(tmp_path, lambda step: 5.9, lambda step: 0.0)
    run.settings = (
        f'[model]\npreset = "tiny"\n[schedule]\nkind = "constant"\npeak = {rate}\n'
        f"warmup_steps = {warmup}\n[training]\nsteps = 300\n"
    )
    for line in run.lines:
        if line["kind"] == "train":
            line["learning_rate"] = rate * min(1, line["step"] / warmup)
    answers = answers_of(run.write())
    trained, learning_rate = answers["fully_trained"], answers["learning_rate"]
    assert (trained.verdict, trained.tone, trained.confidence) == ("no", "bad", "high")
    assert trained.note == "no better than guessing"
    assert "is 5.900; guessing uniformly over the vocabulary gives 5.768" in trained.answer
    assert trained.next_step.startswith(advice)
    assert "it has learned nothing to overfit" in answers["overfitting"].answer
    assert (learning_rate.tone == "bad") == ("It was zero" in learning_rate.answer) == (not rate)


def test_who_learns_far_too_slowly_is_not_told_to_learn_more_slowly(tmp_path: Path) -> None:
    run = learned(tmp_path, lambda step: 5.9 - 1e-6 * step, lambda step: 0.0)
    found = answers_of(run.write())
    assert found["fully_trained"].next_step.startswith("Start a new run with a much higher")
    assert "fully trained" in found["overfitting"].next_step


@pytest.mark.parametrize("bleu", [0.4, 1.4, None])
def test_a_plateau_that_hardly_translates_is_not_fully_trained(
    tmp_path: Path, bleu: float | None
) -> None:
    """Knowing which words are frequent is better than guessing, and no translation."""
    run = learned(tmp_path, lambda step: 4.5, lambda step: bleu)
    found = answers_of(run.write())["fully_trained"]
    assert found.verdict == ("no" if bleu == 0.4 else "yes")
    if bleu == 0.4:
        assert (found.tone, found.confidence) == ("bad", "medium")
        assert found.note == "best BLEU 0.40"
        assert "But the best BLEU is only 0.40: the model hardly translates at all." in found.answer
        assert found.next_step.startswith(
            "Read the sample translations. If they are all alike, start a new run"
        )


def test_who_overfits_beyond_guessing_has_learned(tmp_path: Path) -> None:
    """Being sure of what is wrong costs more than a guess; BLEU may be well all the same."""
    run = learned(tmp_path, lambda step: 2.8 * turned(step), lambda step: 20.0)
    found = answers_of(run.write())["fully_trained"]
    assert 2.8 * turned(300) > math.log(320)
    assert found.evidence["reason"] == "past its best"


def test_one_bad_step_at_the_end_is_a_notice_only(tmp_path: Path) -> None:
    run = learned(
        tmp_path,
        lambda step: 2.0,
        lambda step: 20.0,
        train_loss=lambda step: None if step == 300 else 2.0,
    )
    path = run.write()
    assert answers_of(path)["fully_trained"].verdict == "yes"
    assert any("first at step 300" in line for line in load_evidence(path, START).missing)


def test_the_card_shows_how_likely_a_gain_is(tmp_path: Path) -> None:
    run = learned(
        tmp_path,
        lambda step: 4 - 0.2 * math.log(step),
        lambda step: 20 + 0.5 * math.log(step),
        lambda step: 3.9 - 0.2 * math.log(step),
    )
    answer = answers_of(run.write())["fully_trained"]
    assert answer.evidence["reason"] == "still improving"
    # BLEU gains less than what counts; the loss decided.
    assert answer.evidence["probability"] == answer.evidence["loss"]["probability"] > 0.95
    assert answer.evidence["bleu"]["probability"] < 0.15
    assert (
        answer.note
        == f"{in_percent(answer.evidence['probability'])} likely to gain from 50% more steps"
    )
    low, high = answer.evidence["loss"]["low"], answer.evidence["loss"]["high"]
    assert low <= 0.2 * math.log(1.5) <= high


def test_a_run_down_schedule_is_held_against_a_longer_one(tmp_path: Path) -> None:
    run = learned(tmp_path, lambda step: 2.0, lambda step: 20.0)
    run.settings = (
        '[model]\npreset = "tiny"\n\n[schedule]\nkind = "cosine"\npeak = 1e-3\n'
        "warmup_steps = 10\n\n[training]\nsteps = 300\n"
    )
    answer = answers_of(run.write())["fully_trained"]
    assert answer.evidence["reason"] == "nothing left in the schedule"
    assert (answer.verdict, answer.confidence) == ("yes", "medium")


def turns_late(rise: float) -> Curve:
    """Lowest at step 180, and so much higher at step 300."""
    error = wobble(0.01, seed=6)
    return lambda step: (
        2
        + 1.5 * max(0, 0.6 - step / 300) ** 2
        + rise * max(0, step - 180) / 120
        + (error(step) or 0)
    )


def test_a_plateau_that_may_have_turned_is_less_surely_the_best(tmp_path: Path) -> None:
    bleu = wobble(0.1)
    run = learned(tmp_path, turns_late(0.03), lambda step: 20 + (bleu(step) or 0))
    answers = answers_of(run.write())
    trained, overfitting = answers["fully_trained"], answers["overfitting"]
    assert overfitting.evidence["reason"] == "rise within noise"
    assert (trained.verdict, trained.confidence) == ("yes", "medium")


def test_a_turn_of_few_evaluations_is_less_sure(tmp_path: Path) -> None:
    chances = []
    for every in (10, 50):
        run = learned(tmp_path / str(every), turns_late(0.06), lambda step: 20.0)
        run.lines = [
            line for line in run.lines if line["kind"] != "eval" or not line["step"] % every
        ]
        found = answers_of(run.write())["overfitting"]
        assert not found.evidence["rise"]["least"] > 10 * found.evidence["rise"]["noise"]
        chances.append(found.evidence["probability"])
    assert chances[0] > chances[1]


def test_there_is_no_minus_nothing(tmp_path: Path) -> None:
    run = learned(tmp_path, lambda step: 2 + step / 1e6, lambda step: 20 - step / 1e6)
    expected = answers_of(run.write())["fully_trained"].details[0]
    assert not re.search(r"-0\.0+\b", expected)
    assert "+0.00 BLEU (+0.00" in expected


def test_noise_lowers_the_confidence(tmp_path: Path) -> None:
    def plateau(size: float) -> Answer:
        noise = wobble(size)
        run = learned(
            tmp_path / str(size),
            lambda step: 2 - 0.01 * math.log(step) + (noise(step) or 0.0),
            lambda step: 20.0,
        )
        return answers_of(run.write())["fully_trained"]

    steady, noisy = plateau(0.002), plateau(0.08)
    assert (steady.verdict, steady.confidence) == ("yes", "high")
    assert noisy.confidence != "high"
    assert steady.evidence["probability"] < noisy.evidence["probability"]


@pytest.mark.parametrize(
    ("evaluations", "bleu", "advice"),
    [
        (18, 0.0, "Make evaluations shorter, not rarer"),
        (18, 0.9, "Keep them: even with all of them it is unclear"),
        (60, 0.0, "Evaluate less often"),
    ],
)
def test_evidence_is_not_spared_where_there_is_little(
    tmp_path: Path, evaluations: int, bleu: float, advice: str
) -> None:
    run = RunFolder(tmp_path)
    run.begin()
    for step in range(1, evaluations + 1):
        run.train(step)
        rising = bleu * (2 * math.log(step) + (wobble(1.0)(step) or 0.0))
        run.evaluate(step, 2.0, 20.0 + rising, seconds=10.0)
    assert answers_of(run.write())["duration"].next_step.startswith(advice)


@pytest.mark.parametrize(
    ("steps", "is_alive", "advice"),
    [
        (360, True, "Wait for step 240, when there will be 10 evaluations."),
        (360, False, "Resume the run and wait for step 240, when there will be 10 evaluations."),
        (230, True, "Wait for step 230, when there will be 10 evaluations."),  # The final one.
        (216, True, "Evaluate more often: at least 10 evaluations over the run"),
    ],
)
def test_who_has_planned_enough_evaluations_is_told_to_wait(
    tmp_path: Path, steps: int, is_alive: bool, advice: str
) -> None:
    run = RunFolder(tmp_path)
    run.settings = f"[training]\nsteps = {steps}\n[evaluation]\nevery_steps = 24\n"
    run.begin()
    for step in range(1, 48):
        run.train(step)
        if step == 24:
            run.evaluate(step, 2.0, 20.0)
    if not is_alive:
        run.line("stop", 47, reason="signal", detail="")
    evidence = load_evidence(run.write(), run.clock)
    answers = {one.id: one for one in answer_all(evidence, analyse(evidence))}
    for name in ("fully_trained", "overfitting"):
        assert answers[name].next_step.startswith(advice)


@pytest.mark.parametrize(
    ("kind", "advice"),
    [
        ("constant", "Evaluate more often: at least 10 evaluations over the run"),
        ("cosine", "Start a new run that evaluates more often: at least 10 times, every 30 steps"),
    ],
)
def test_who_cannot_go_on_is_told_to_evaluate_more_in_a_new_run(
    tmp_path: Path, kind: str, advice: str
) -> None:
    run = RunFolder(tmp_path)
    run.settings = (
        f'[model]\npreset = "tiny"\n[schedule]\nkind = "{kind}"\npeak = 1e-3\n'
        "warmup_steps = 10\n[training]\nsteps = 300\n"
    )
    run.begin()
    for step in (100, 200, 300):
        run.train(step)
        run.evaluate(step, 2.0, 20.0)
    run.line("stop", 300, reason="steps", detail="")
    answers = answers_of(run.write())
    for name in ("fully_trained", "overfitting"):
        assert answers[name].next_step.startswith(advice)


def test_losses_that_are_no_numbers_are_not_too_few(tmp_path: Path) -> None:
    run = learned(tmp_path, no_number, lambda step: 0.0, no_number, train_loss=no_number)
    found = answers_of(run.write())["overfitting"]
    assert "In 30 evaluations the loss is NaN or infinite." in found.answer
    assert found.next_step == SEE_WHAT_IS_MISSING


@pytest.mark.parametrize(
    ("finished", "advice"),
    [(True, "If in doubt, use the checkpoint of step"), (False, "Watch the next evaluations")],
)
def test_what_has_ended_has_no_next_evaluation(tmp_path: Path, finished: bool, advice: str) -> None:
    run = learned(tmp_path, turns_late(0.028), lambda step: 20.0)
    run.lines = run.lines if finished else run.lines[:-1]
    found = answers_of(run.write())["overfitting"]
    assert found.evidence["reason"] == "rise within noise"
    assert found.next_step.startswith(advice)


def test_a_loss_below_that_of_the_training_sample(tmp_path: Path) -> None:
    run = learned(tmp_path, lambda step: 2.0, lambda step: 20.0, lambda step: 1.9 + step / 1000)
    words = answers_of(run.write())["overfitting"].answer
    assert "It is 0.200 below the loss on a sample of the training text" in words
    assert "(at the first evaluation, 0.090 above it)" in words


def two_sets(path: Path, second: Curve) -> dict[str, Answer]:
    run = RunFolder(path)
    run.begin()
    for step in STEPS:
        run.train(step)
        loss = 4 - 0.2 * math.log(step)
        for name, value in (("news", loss), ("talks", second(step))):
            run.evaluate(step, value, None, set=name, train_sample_loss=loss - 0.1)
    return answers_of(run.write())


def test_a_set_that_disagrees_is_heard(tmp_path: Path) -> None:
    answers = two_sets(tmp_path, turned)
    trained, overfitting = answers["fully_trained"], answers["overfitting"]
    assert trained.answer.endswith(
        "This is the verdict on news, but talks says no (past its best)."
    )
    assert trained.next_step.startswith("According to news: Continue")
    assert (
        "According to talks: Do not continue from here: use the checkpoint of step 100."
        in trained.next_step
    )
    assert trained.confidence == "low"
    assert (overfitting.verdict, overfitting.tone, overfitting.confidence) == (
        "no",
        "caution",
        "medium",
    )
    assert "but talks says yes (turned while training falls)" in overfitting.answer
    assert overfitting.evidence["other_sets"]["talks"]["best_step"] == 100
    assert overfitting.note.endswith("; different on talks")


def test_sets_that_agree(tmp_path: Path) -> None:
    answers = two_sets(tmp_path, lambda step: 5 - 0.2 * math.log(step))
    assert answers["fully_trained"].answer.endswith("the verdict on news; talks agrees.")
    assert answers["fully_trained"].confidence == "medium"
    assert answers["overfitting"].tone == "good"


def test_the_loss_of_every_set_is_drawn(tmp_path: Path) -> None:
    two_sets(tmp_path, turned)
    evidence = load_evidence(tmp_path, START)
    picture = loss_picture(evidence, analyse(evidence))
    assert picture is not None
    svg = render_svg(picture, WIDE)
    assert "evaluation (news)" in svg
    assert "evaluation (talks)" in svg


@pytest.mark.parametrize(
    ("rows", "reasons"),
    [
        (TRAINED_ROWS, ConvergenceReason),
        (OVERFITTING_ROWS, OverfittingReason),
        (NETWORK_ROWS, NetworkReason),
        (GPU_ROWS, GpuReason),
        (LEARNING_RATE_ROWS, LearningRateReason),
        (STEP_TIME_ROWS, StepTimeReason),
        (TRAFFIC_ROWS, TrafficReason),
        (ADVICE_BY_REASON, DurationReason),
    ],
)
def test_every_reason_has_a_row(rows: Mapping[str, object], reasons: object) -> None:
    assert set(rows) == set(get_args(reasons))
