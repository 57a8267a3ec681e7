"""Every analysis of a run, made once, for the answers and the pictures."""

from dataclasses import dataclass

import numpy as np

from dragoman.report.bottleneck import Network, StepTimes, judge_network, measure_steps
from dragoman.report.calibrate import calibrate
from dragoman.report.duration import Duration, split_duration
from dragoman.report.evidence import Evidence
from dragoman.report.gpus import GpuJudgement, judge_gpus
from dragoman.report.learning import (
    Convergence,
    Overfitting,
    judge_convergence,
    judge_overfitting,
)
from dragoman.report.schedules import Law, law_of
from dragoman.report.traffic import TrafficCorrelation, correlate_with_steps
from dragoman.report.whatif import Calibration, Prediction, usual_questions, whatif_table


@dataclass(frozen=True)
class Findings:
    """What the evidence amounts to; None where it carries nothing."""

    duration: Duration
    convergence: Convergence
    overfitting: Overfitting
    gpus: GpuJudgement
    times: StepTimes | None
    network: Network | None
    correlation: TrafficCorrelation | None
    law: Law | None
    calibration: Calibration | None
    predictions: tuple[Prediction, ...]


def analyse(evidence: Evidence) -> Findings:
    """Make every analysis."""
    train = evidence.history.train
    times = measure_steps(train)
    network = judge_network(evidence, times) if times else None
    calibration = calibrate(evidence, times, network) if times and network else None
    steps = float(np.max(train.step, initial=0.0))
    predictions = (
        whatif_table(calibration, usual_questions(calibration), steps) if calibration else ()
    )
    several = len(evidence.hosts) > 1
    return Findings(
        duration=split_duration(evidence.history),
        convergence=judge_convergence(evidence.evaluations, train),
        overfitting=judge_overfitting(evidence.evaluations),
        gpus=judge_gpus(evidence),
        times=times,
        network=network,
        correlation=correlate_with_steps(evidence, train) if several else None,
        law=law_of(evidence.settings),
        calibration=calibration,
        predictions=predictions,
    )
