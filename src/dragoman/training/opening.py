"""The beginning of every attempt of a run: find it, load it everywhere, agree, announce it."""

from contextlib import ExitStack
from dataclasses import asdict, replace

import torch

from dragoman.cluster.agreement import Facts, agree
from dragoman.cluster.control_store import PART_OF_TIMEOUT, Attempt
from dragoman.cluster.processes import Workers, host_name
from dragoman.config import Config
from dragoman.corpus.store import PreparedCorpus
from dragoman.documents import encode, parse
from dragoman.model.transformer import Transformer, count_parameters, load_weights
from dragoman.records import Beginning, MachineChange, MachineHardware
from dragoman.runs.checkpoint import has_intact, read_state
from dragoman.runs.checkpoint_index import OPTIMIZER, WEIGHTS
from dragoman.runs.folder import RunFolder
from dragoman.runs.provenance import describe_machine
from dragoman.runs.tensors import read_tensors
from dragoman.training.recorder import Recorder
from dragoman.training.replicas import choose_writers, hold, newest, share_history
from dragoman.training.resume import (
    Found,
    Progress,
    find_progress,
    note_machines,
    open_run,
    refuse_other_things,
)
from dragoman.training.step import TrainingStep


class Opening:
    """Brings all workers of a run to the same state."""

    def __init__(
        self,
        config: Config,
        run: RunFolder,
        corpus: PreparedCorpus,
        workers: Workers,
        attempt: Attempt | None,
    ) -> None:
        self.config, self.run, self.corpus, self.workers = config, run, corpus, workers
        self.attempt = attempt
        self.progress = Progress()
        self.checkpoint: str | None = None
        self.writers: list[int] = []
        self.clock_leads: list[float] = []

    def open(self, model: Transformer, training_step: TrainingStep, at_end: ExitStack) -> Recorder:
        """Open the run folder on every machine and load the latest checkpoint into everyone."""
        run, workers = self.run, self.workers
        self.writers = choose_writers(run, workers)
        writes = self.writers[workers.rank] == workers.rank
        warnings: list[str] = []
        found = None
        if writes:
            refuse_other_things(run)
            is_restart = self.attempt is not None and self.attempt.number > 0
            patience = PART_OF_TIMEOUT * self.config.distributed.timeout_seconds
            hold(run, at_end, patience if is_restart else 0.0)
        # Before anything is written: a start that is refused leaves no run behind. Checkpoints are
        # sent to all, so that weights which are alike now stay so.
        self.clock_leads = agree(
            Facts.collect(self.config, self.corpus.identity, model.parameters()), workers
        )
        if writes:
            tensors = len(list(model.parameters()))
            open_run(run, self.config, self.corpus, count_parameters(model), tensors)
            found = find_progress(run, warnings.append)
        source = newest(run, found, workers)
        if source is not None:
            self._load(found, source, model, training_step)
        share_history(run, workers, source, writes)
        told = workers.gather_json([host_name(), encode(describe_machine())])
        if writes:
            note_machines(run, {host: parse(MachineHardware, machine) for host, machine in told})
        recorder = Recorder(run, self.config, workers, writes, self.progress.step)
        at_end.callback(recorder.close)
        for warning in warnings:
            recorder.say(warning)
        return recorder

    def announce(self, recorder: Recorder, parameters: int) -> None:
        """Say what is about to run, on the screen and in the metrics."""
        workers, device, step = self.workers, self.workers.device, self.progress.step
        beginning = Beginning(
            workers=workers.count,
            hosts=tuple(workers.hosts),
            device=device.type,
            device_name=torch.cuda.get_device_name(device) if device.type == "cuda" else "cpu",
            precision=self.config.training.precision,
            rows_per_device=self.progress.rows_per_device,
            checkpoint=self.checkpoint,
        )
        attempt = self.attempt
        if not self.checkpoint and not recorder.has_history:
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
        if self.checkpoint:
            recorder.say(f"resuming from {self.checkpoint}")
        hosts = list(dict.fromkeys(workers.hosts))
        on_hosts = f" on {', '.join(hosts)}" if len(hosts) > 1 else ""
        recorder.say(
            f"{parameters:,} parameters, {len(self.corpus.train):,} pairs, "
            f"{workers.count} {device.type} worker{'s' * (workers.count > 1)}{on_hosts}, "
            f"{self.config.batches.tokens_per_step:,} target slots a step"
        )

    def _load(
        self, found: Found | None, source: int, model: Transformer, training_step: TrainingStep
    ) -> None:
        """Give every worker the checkpoint that the source's machine has."""
        workers = self.workers
        mine = [found.name, asdict(found.progress), found.optimizer] if found else None
        name, progress, numbers = workers.broadcast(mine, source)
        moments, saved = training_step.tensors(), self.run.checkpoints / name
        if workers.rank == source:
            weights = dict(model.named_parameters())
            load_weights(model, read_tensors(saved / WEIGHTS, weights))
            moments = read_tensors(saved / OPTIMIZER, moments)
        training_step.load(moments, numbers)
        workers.broadcast_tensors((value.data for value in model.parameters()), source)
        workers.broadcast_tensors(training_step.tensors().values(), source)
        if self.config.distributed.sync == "local" and has_intact(self.run.checkpoints, name):
            # Between meetings workers have moments of their own; their folder remembers them.
            own = read_state(self.run.checkpoints, name).optimizer
            training_step.load(read_tensors(saved / OPTIMIZER, training_step.tensors()), own)
        training_step.weights_changed()
        self.progress, self.checkpoint = parse(Progress, progress), name
