"""Every analysis of a run, made once, for the answers and the pictures."""

from dataclasses import dataclass

from dragoman.prediction.questions import usual_questions
from dragoman.prediction.run_schedule import RunSchedule, schedule_of
from dragoman.prediction.step_model import MeasuredRun, Prediction, whatif_table
from dragoman.report.evidence import Evidence
from dragoman.report.findings.bottleneck import Network, judge_network
from dragoman.report.findings.convergence import Convergence, Learning, judge_learning
from dragoman.report.findings.followed_schedule import LearningRate, judge_learning_rate
from dragoman.report.findings.gpus import GpuJudgement, judge_gpus
from dragoman.report.findings.measured_run import calibrate
from dragoman.report.findings.overfitting import Overfitting
from dragoman.report.findings.step_times import (
    StepTimeReason,
    StepTimes,
    judge_steps,
    measure_steps,
)
from dragoman.report.findings.timeline import Duration, split_duration
from dragoman.report.findings.traffic import TrafficCorrelation, correlate_with_steps


@dataclass(frozen=True)
class Findings:
    """What the evidence amounts to; None where it carries nothing."""

    duration: Duration
    learning: tuple[Learning, ...]  # By each validation set; at least one.
    schedule: RunSchedule | None
    learning_rate: LearningRate
    gpus: GpuJudgement
    times: StepTimes | None
    step_reason: StepTimeReason | None
    latest_times: StepTimes | None  # Of the steps that the latest workers made.
    usual_times: StepTimes | None  # Those, or of all steps if they are few.
    network: Network | None
    correlation: TrafficCorrelation
    calibration: MeasuredRun | None
    predictions: tuple[Prediction, ...]

    @property
    def convergence(self) -> Convergence:
        """By the first validation set."""
        return self.learning[0].convergence

    @property
    def overfitting(self) -> Overfitting:
        """By the first validation set."""
        return self.learning[0].overfitting


def analyse(evidence: Evidence) -> Findings:
    """Make every analysis."""
    train = evidence.history.train
    schedule = schedule_of(evidence.settings)
    latest = measure_steps(evidence.history.latest_steps, evidence.local_steps)
    network = judge_network(evidence, latest) if latest else None
    times = measure_steps(train, evidence.local_steps)
    usual = latest if latest and not latest.are_few else times
    straggler = network.straggler if network else None
    is_held_up = bool(latest and straggler and straggler.is_worth_naming(latest.mean))
    calibration = calibrate(evidence, latest, network) if latest and network else None
    questions = usual_questions(calibration) if calibration else []
    return Findings(
        duration=split_duration(evidence.history),
        learning=judge_learning(
            evidence.history.evaluations, train, schedule, evidence.guessing_loss
        ),
        schedule=schedule,
        learning_rate=judge_learning_rate(train, schedule),
        gpus=judge_gpus(evidence),
        times=times,
        step_reason=judge_steps(usual, is_held_up) if usual else None,
        latest_times=latest,
        usual_times=usual,
        network=network,
        correlation=correlate_with_steps(evidence),
        calibration=calibration,
        predictions=whatif_table(calibration, questions, train.last_step) if calibration else (),
    )
