"""Every analysis of a run, made once, for the answers and the pictures."""

from dataclasses import dataclass

from dragoman.report.bottleneck import Network, StepTimes, judge_network, measure_steps
from dragoman.report.calibrate import calibrate
from dragoman.report.evidence import Evidence
from dragoman.report.gpus import GpuJudgement, judge_gpus
from dragoman.report.learning import (
    Convergence,
    Law,
    Overfitting,
    judge_convergence,
    judge_overfitting,
    law_of,
)
from dragoman.report.timeline import Duration, split_duration
from dragoman.report.traffic import TrafficCorrelation, correlate_with_steps
from dragoman.report.whatif import Calibration, Prediction, usual_questions, whatif_table


@dataclass(frozen=True)
class Findings:
    """What the evidence amounts to; None where it carries nothing."""

    duration: Duration
    convergence: Convergence
    overfitting: Overfitting
    law: Law | None
    gpus: GpuJudgement
    times: StepTimes | None
    latest_times: StepTimes | None  # Of the steps that the latest workers made.
    network: Network | None
    correlation: TrafficCorrelation | None
    calibration: Calibration | None
    predictions: tuple[Prediction, ...]


def analyse(evidence: Evidence) -> Findings:
    """Make every analysis."""
    train, evaluations = evidence.history.train, evidence.evaluations
    law = law_of(evidence.settings)
    latest = measure_steps(evidence.history.latest_steps, evidence.local_steps)
    network = judge_network(evidence, latest) if latest else None
    calibration = calibrate(evidence, latest, network) if latest and network else None
    questions = usual_questions(calibration) if calibration else []
    return Findings(
        duration=split_duration(evidence.history),
        convergence=judge_convergence(evaluations, train, law),
        overfitting=judge_overfitting(evaluations),
        law=law,
        gpus=judge_gpus(evidence),
        times=measure_steps(train, evidence.local_steps),
        latest_times=latest,
        network=network,
        correlation=correlate_with_steps(evidence) if len(evidence.hosts) > 1 else None,
        calibration=calibration,
        predictions=whatif_table(calibration, questions, train.last_step) if calibration else (),
    )
