"""The questions that everyone asks after a long run, in the order of the report."""

import time
from collections.abc import Callable
from pathlib import Path

from dragoman.report.answers.answer import Answer
from dragoman.report.answers.fully_trained import fully_trained
from dragoman.report.answers.gained_and_forgotten import adaptation_answers
from dragoman.report.answers.gpus_used import gpu_utilization
from dragoman.report.answers.is_overfitting import overfitting
from dragoman.report.answers.learning_rate import learning_rate
from dragoman.report.answers.network_bottleneck import network_bottleneck
from dragoman.report.answers.step_and_traffic import step_time_vs_network
from dragoman.report.answers.step_time import step_time
from dragoman.report.answers.time_and_sizes import (
    checkpoint_files,
    checkpoint_size,
    duration,
    training_set,
)
from dragoman.report.evidence import Evidence, load_evidence
from dragoman.report.findings.analysis import Findings, analyse

QUESTIONS: tuple[Callable[[Evidence, Findings], Answer], ...] = (
    duration,
    fully_trained,
    overfitting,
    gpu_utilization,
    network_bottleneck,
    learning_rate,
    training_set,
    checkpoint_files,
    checkpoint_size,
    step_time,
    step_time_vs_network,
)


def answer_all(evidence: Evidence, findings: Findings) -> tuple[Answer, ...]:
    """Answer every question that the run raises."""
    answers = (question(evidence, findings) for question in QUESTIONS)
    return (*answers, *adaptation_answers(evidence))


def answers_now(run: Path) -> tuple[Answer, ...]:
    """Every answer about a run as it stands."""
    evidence = load_evidence(run, time.time())
    return answer_all(evidence, analyse(evidence))
