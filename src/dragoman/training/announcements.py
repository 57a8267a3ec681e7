"""What a run says of itself when it begins and when it ends."""

from dataclasses import replace

import torch

from dragoman.cluster.processes import Workers
from dragoman.config import Config, TrainingSettings
from dragoman.model.transformer import count_parameters
from dragoman.records import Beginning, MachineChange
from dragoman.training.opening import Opened
from dragoman.training.parts import Parts
from dragoman.training.progress import Progress
from dragoman.training.stopping import Stop
from dragoman.wording import in_percent


def announce_beginning(opened: Opened, config: Config, parts: Parts, workers: Workers) -> None:
    """Say what is about to run, on the screen and in the metrics."""
    recorder, step, device = opened.recorder, opened.progress.step, workers.device
    beginning = Beginning(
        workers=workers.count,
        hosts=tuple(workers.hosts),
        device=device.type,
        device_name=torch.cuda.get_device_name(device) if device.type == "cuda" else "cpu",
        precision=config.training.precision,
        rows_per_device=opened.progress.rows_per_device,
        checkpoint=opened.checkpoint,
    )
    attempt = opened.attempt
    if not opened.checkpoint and not recorder.has_history:
        recorder.event("start", step, beginning)
    elif attempt and attempt.number:
        reason, lost, joined = attempt.reason, tuple(attempt.lost), tuple(attempt.joined)
        again = replace(beginning, reason=reason, lost=lost, joined=joined)
        recorder.event("restart", step, again)
        for name in lost:
            recorder.event("lost", step, MachineChange(name, reason, workers.count))
        for name in joined:
            recorder.event("joined", step, MachineChange(name, reason, workers.count))
        recorder.say(f"restarted ({reason})")
    else:
        recorder.event("resume", step, replace(beginning, reason="the same command"))
    if opened.checkpoint:
        recorder.say(f"resuming from {opened.checkpoint}")
    elif config.training.start_from:
        recorder.say(f"starting from the weights of {config.training.start_from}")
    hosts = list(dict.fromkeys(workers.hosts))
    on_hosts = f" on {', '.join(hosts)}" if len(hosts) > 1 else ""
    recorder.say(
        f"{count_parameters(parts.model):,} parameters, {len(parts.corpus.train):,} pairs, "
        f"{workers.count} {device.type.upper()} worker{'s' * (workers.count > 1)}{on_hosts}, "
        f"{config.batches.tokens_per_step:,} target slots per step"
    )
    every, sync = config.evaluation.every_steps, config.distributed
    if sync.sync == "local" and workers.count > 1 and every < sync.local_steps:
        recorder.say(
            f"evaluation.every_steps = {every} is less than a round of {sync.local_steps} local "
            "steps: evaluations score what all workers share, which changes once a round"
        )


def describe_end(
    stop: Stop, progress: Progress, training: TrainingSettings, signal: str | None
) -> str:
    """Say in one line why a run ends, or what resumes it."""
    step = progress.step
    if stop is Stop.SIGNAL:
        asker = f" by {signal}" if signal else ""
        return f"stopped at step {step:,}, as requested{asker}; the same command resumes the run"
    reason = {
        Stop.STEPS: f"training.steps = {training.steps} reached",
        Stop.EPOCHS: f"training.epochs = {training.epochs} reached",
        Stop.HOURS: f"training.hours = {training.hours} reached",
        Stop.PATIENCE: f"{training.patience} evaluations without a better "
        f"{'BLEU' if training.patience_metric == 'bleu' else 'loss'}",
        Stop.GAIN_UNLIKELY: "50% more steps are only "
        f"{in_percent(progress.scores.gain_probability or 0.0)} likely to bring a gain",
    }[stop]
    return f"the run is complete at step {step:,}: {reason}"
