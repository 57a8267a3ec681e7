"""The loop: one step after the other, evaluated, saved, written down."""

import time
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, TypeVar

import torch

from dragoman.cluster.agreement import Facts, agree
from dragoman.cluster.processes import Workers, host_name
from dragoman.cluster.supervision import Supervision
from dragoman.cluster.sync import GradientSync
from dragoman.config import Config, shape_of
from dragoman.config_file import dump_config
from dragoman.corpus.order import keyed_seed
from dragoman.corpus.rows import RowStream, StepRows
from dragoman.corpus.store import PreparedCorpus
from dragoman.errors import SystemFault, UserError
from dragoman.inference.evaluate import rows_to_device
from dragoman.model.transformer import RowTensors, Transformer, count_parameters, load_weights
from dragoman.runs.checkpoint import (
    OPTIMIZER,
    WEIGHTS,
    Checkpoint,
    CheckpointWriter,
    Saved,
    Scores,
    read_tensors,
)
from dragoman.runs.folder import RunFolder
from dragoman.runs.metrics import MetricsLog
from dragoman.runs.provenance import describe_machine
from dragoman.schedule import learning_rate
from dragoman.training.batches import Ahead
from dragoman.training.display import Display
from dragoman.training.evaluator import Evaluator
from dragoman.training.optimizer import Optimizer
from dragoman.training.precision import LossScale, arithmetic
from dragoman.training.replicas import choose_writer, newest, share_history
from dragoman.training.resume import (
    Found,
    Progress,
    check_corpus_settings,
    find_progress,
    note_machine,
    open_run,
)
from dragoman.training.stopping import Stop, StopSignals, Stopwatch, reason_to_stop

CPU_SLOTS_AT_ONCE = 4_096

Item = TypeVar("Item")


@dataclass(frozen=True)
class StepResult:
    """What one step came to on this worker, and where its time went."""

    loss: float
    nll: float
    gradient_norm: float
    skipped: bool
    learning_rate: float
    seconds_data: float
    seconds_compute: float
    seconds_exposed_communication: float
    seconds_optimizer: float


class Trainer:
    """One worker's part in a run."""

    def __init__(
        self, config: Config, run: RunFolder, workers: Workers, supervision: Supervision
    ) -> None:
        self.config = config
        self.run_folder = run
        self.workers = workers
        self.supervision = supervision
        self.corpus = PreparedCorpus(Path(config.corpus.folder))
        check_corpus_settings(config, self.corpus)
        source, target = self.corpus.subwords()
        torch.manual_seed(config.training.seed)
        self.model = Transformer(
            config.model, source.size, target.size, config.vocabulary.joint
        ).to(workers.device)
        self.optimizer = Optimizer(
            self.model,
            config.optimizer,
            LossScale(config.training.precision, workers.device),
        )
        self.evaluator = Evaluator(config, self.corpus, workers, self._arithmetic)
        self.signals = StopSignals()
        self.progress = Progress()
        self.display: Display
        self.metrics: MetricsLog
        self.checkpoints: CheckpointWriter
        self.saves_made = 0
        batches = config.batches
        rows_per_step = batches.tokens_per_step // batches.row_tokens
        if rows_per_step < workers.count:
            raise UserError(
                f"batches.tokens_per_step = {batches.tokens_per_step} is {rows_per_step} rows, "
                f"fewer than the {workers.count} workers; raise it"
            )
        self.stream = RowStream(
            self.corpus.train, batches.row_tokens, rows_per_step, target.begin, config.training.seed
        )

    def run(self) -> Stop:
        """Train until a reason to stop; everything is saved when this returns."""
        self._open_run_folder()
        self.sync = GradientSync(self.model, self.workers, self.config.distributed)
        first = self.progress.position, self.workers.rank, self.workers.count
        self.batches = Ahead(self.stream.steps(*first))
        self.stopwatch = Stopwatch(self.progress.seconds)
        self.display.start()
        try:
            with self._signals_caught():
                stop = self._reason_to_stop(0.0)
                if stop is not Stop.NO:
                    self.display.say(f"{self.run_folder.path} is complete: {self._limit(stop)}")
                    return stop
                return self._loop()
        except BaseException as error:
            self._write("stop", reason="error", detail=f"{type(error).__name__}: {error}")
            self.supervision.post_failure(error)
            raise
        finally:
            self.batches.close()
            self._close()

    def _loop(self) -> Stop:
        self.model.train()
        stop = Stop.NO
        while stop is Stop.NO:
            start = time.perf_counter()
            batch = self.batches.next()
            result = self.train_step(batch, time.perf_counter() - start)
            stop, is_save_asked = self._finish_step(batch, result, start)
            scores = None
            if stop is not Stop.NO or self._is_due(self.config.evaluation.every_steps):
                scores = self._evaluate()
                stop = stop or self._agree(self._reason_to_stop(batch.epoch))
            is_best = scores is not None and self.progress.best.is_new
            is_due = self._is_due(self.config.checkpoints.every_steps)
            if stop is not Stop.NO or is_best or is_due or is_save_asked:
                self._save(scores or Scores())
            if is_save_asked:
                self._answer_save()
        if self.writes:
            self._note_saved(self.checkpoints.finish())
        self._write("stop", reason=stop.name.lower(), detail=self.signals.requested)
        self.display.say(f"stopped at step {self.progress.step:,}: {self._limit(stop)}")
        return stop

    def train_step(self, batch: StepRows, seconds_data: float) -> StepResult:
        """Update the weights once from all micro-batches of all workers."""
        step = self.progress.step + 1
        # Dropout depends on the seed, the step and the worker alone, so that a resumed run
        # repeats it without saving any generator's state.
        torch.manual_seed(keyed_seed(self.config.training.seed, step, self.workers.rank))
        start = time.perf_counter()
        loss = torch.zeros((), device=self.workers.device)
        nll = torch.zeros((), device=self.workers.device)
        for rows, is_last in mark_last(self._micro_batches(batch)):
            with self.sync.gradients(enabled=is_last):
                with self._arithmetic():
                    sums = self.sync.model(rows, self.config.training.label_smoothing)
                # Gradients are summed over workers, so that every token weighs the same.
                share = self.sync.divisor / batch.target_tokens
                (sums.loss * (self.optimizer.loss_scale * share)).backward()
            loss += sums.loss.detach()
            nll += sums.nll
        computed = time.perf_counter()
        rate = self._learning_rate(step)
        update = self.optimizer.step(rate)
        skipped = bool(update.skipped)
        updated = time.perf_counter()
        return StepResult(
            loss=float(loss),
            nll=float(nll),
            gradient_norm=float(update.gradient_norm),
            skipped=skipped,
            learning_rate=rate,
            seconds_data=seconds_data,
            seconds_compute=computed - start - self.sync.seconds_exposed,
            seconds_exposed_communication=self.sync.seconds_exposed,
            seconds_optimizer=updated - computed,
        )

    def _micro_batches(self, batch: StepRows) -> list[RowTensors]:
        size = self.progress.rows_per_device
        return [
            rows_to_device(batch.rows[start : start + size], self.workers.device)
            for start in range(0, len(batch.rows), size)
        ]

    def _finish_step(self, batch: StepRows, result: StepResult, start: float) -> tuple[Stop, bool]:
        """Hear from all workers, take note of the step, agree whether to stop or to save."""
        progress = self.progress
        progress.step += 1
        progress.position = batch.next
        progress.target_tokens += batch.target_tokens
        progress.skipped_in_a_row = progress.skipped_in_a_row + 1 if result.skipped else 0
        stop = self._reason_to_stop(batch.epoch)
        heard_start = time.perf_counter()
        everyone = self.workers.gather(
            [result.loss, result.nll, result.seconds_compute, stop, self.supervision.saves_asked]
        )
        end = time.perf_counter()
        losses, nlls, computing, stops, saves_asked = zip(*everyone, strict=True)
        seconds = end - start
        heard = end - heard_start if self.workers.count > 1 else 0.0
        phases = {
            "seconds_data": result.seconds_data,
            "seconds_compute": result.seconds_compute,
            "seconds_exposed_communication": result.seconds_exposed_communication + heard,
            "seconds_optimizer": result.seconds_optimizer,
        }
        values: dict[str, Any] = {
            "loss": sum(losses) / batch.target_tokens,
            "nll": sum(nlls) / batch.target_tokens,
            "learning_rate": result.learning_rate,
            "gradient_norm": result.gradient_norm,
            "target_tokens": batch.target_tokens,
            "source_tokens": batch.source_tokens,
            "pairs": batch.pairs,
            "slots": batch.slots,
            "epoch": batch.epoch,
            "seconds": seconds,
            **phases,
            "seconds_other": seconds - sum(phases.values()),
        }
        if self.workers.count > 1:
            for name, choose in (("slowest", max), ("fastest", min)):
                chosen = choose(computing)
                values[name] = {"worker": computing.index(chosen), "seconds": chosen}
        if self.config.training.precision == "float16":
            values["loss_scale"] = float(self.optimizer.loss_scale)
        if result.skipped:
            values["skipped"] = True
        self._write("train", **values)
        self.supervision.step = progress.step
        self.display.step(progress.step, values)
        if self.writes:
            self._note_saved(self.checkpoints.done())
        if progress.skipped_in_a_row >= self.config.training.max_skipped_steps:
            raise SystemFault(
                f"no finite gradient in {progress.skipped_in_a_row} steps in a row, up to step "
                f"{progress.step}; lower the learning rate, or train in bfloat16 or float32"
            )
        self.save_asked = int(max(saves_asked))
        return Stop(int(max(stops))), self.save_asked > self.saves_made

    def _answer_save(self) -> None:
        """Make sure the checkpoint that the launcher asked for is on every disk, and say so."""
        if self.writes:
            self._note_saved(self.checkpoints.finish())
        self.workers.gather([0.0])
        self.saves_made = self.save_asked
        if self.workers.is_first:
            self.supervision.note_saved(self.saves_made)

    def _evaluate(self) -> Scores | None:
        """Score all validation sets and take note; every worker learns the same scores."""
        evaluations = self.evaluator.evaluate(self.model)
        for one in evaluations:
            values = {
                "set": one.name,
                "pairs": one.pairs,
                "loss": one.loss.loss,
                "nll": one.loss.nll,
                "train_sample_loss": one.train_sample.loss,
                "train_sample_nll": one.train_sample.nll,
                "bleu": one.text.bleu,
                "chrf": one.text.chrf,
                "signature": one.text.signature,
                "chrf_signature": one.text.chrf_signature,
                "seconds": one.seconds,
            }
            self._write("eval", **values)
            if self.workers.is_first:
                for sample in one.samples:
                    self.metrics.write_sample(self.progress.step, **asdict(sample))
                self.display.evaluation(
                    self.progress.step,
                    values,
                    [
                        (sample.source, sample.reference, sample.translation)
                        for sample in one.samples
                    ],
                )
        if not evaluations:
            return None
        first = evaluations[0]
        self.progress.best.update(first.loss.loss, first.text.bleu)
        return Scores(first.loss.loss, first.loss.nll, first.text.bleu)

    def _save(self, scores: Scores) -> None:
        """Hand the state to the background writer, on every machine."""
        if not self.writes:
            return
        self.progress.seconds = self.stopwatch.seconds()
        checkpoint = Checkpoint(
            self.progress.step,
            dict(self.model.named_parameters()),
            self.optimizer.tensors(),
            {"progress": self.progress.to_json(), "optimizer": self.optimizer.state()},
            scores,
        )
        self._note_saved(self.checkpoints.save(checkpoint))

    def _note_saved(self, saved: Saved | None) -> None:
        if saved is None:
            return
        if saved.failure:
            self.metrics.write("checkpoint_failed", saved.step, reason=saved.failure)
            self.display.say(
                f"checkpoint {saved.name} could not be written: {saved.failure}; "
                "training goes on, the older ones are kept"
            )
            return
        self.metrics.write(
            "checkpoint",
            saved.step,
            name=saved.name,
            bytes=saved.bytes,
            seconds_blocking=saved.seconds_blocking,
            seconds_background=saved.seconds_background,
        )

    def _open_run_folder(self) -> None:
        """Open the run folder on every machine; everyone starts from the latest checkpoint."""
        workers, run = self.workers, self.run_folder
        self.writes = choose_writer(run, workers)
        messages: list[str] = []
        found = None
        if self.writes:
            tensors = len(list(self.model.parameters()))
            open_run(run, self.config, self.corpus, count_parameters(self.model), tensors)
            found = find_progress(run, messages.append)
        source = newest(found, workers)
        checkpoint = self._load(found, source) if source is not None else None
        share_history(run, workers, source or 0, self.writes)
        facts = Facts.collect(
            dump_config(self.config), self.corpus.identity, self.model.parameters()
        )
        agree(facts, workers)
        self.progress.rows_per_device = self.progress.rows_per_device or self._rows_per_device()
        self.saves_made = self.supervision.saves_asked
        machines = dict(workers.gather_json([host_name(), describe_machine()]))
        self.display = Display(
            f"dragoman: {run.name}",
            run.log if workers.is_first else None,
            self.config.training.steps,
        )
        for message in messages:
            self.display.say(message)
        if self.writes:
            note_machine(run, machines)
            self.metrics = MetricsLog(run, self.progress.step, self.display.say)
            self.checkpoints = CheckpointWriter(run, self.config.checkpoints)
        self._announce(checkpoint)

    def _announce(self, checkpoint: str | None) -> None:
        """Say what is about to run, on the screen and in the metrics."""
        workers, device = self.workers, self.workers.device
        hosts = list(dict.fromkeys(workers.hosts))
        begun = self.supervision.begin_life(hosts) if workers.is_first else None
        life = workers.broadcast(
            [begun.number, str(begun.cause or ""), begun.lost, begun.joined] if begun else None
        )
        details = {
            "workers": workers.count,
            "hosts": list(workers.hosts),
            "device": device.type,
            "device_name": torch.cuda.get_device_name(device) if device.type == "cuda" else "cpu",
            "precision": self.config.training.precision,
            "rows_per_device": self.progress.rows_per_device,
        }
        if life and life[0]:
            _, cause, lost, joined = life
            reason = cause or f"{', '.join(joined) or 'a machine'} joined"
            self._write("restart", **details, checkpoint=checkpoint, reason=reason)
            for kind, names in (("lost", lost), ("joined", joined)):
                for name in names:
                    self._write(kind, host=name, reason=reason, workers=workers.count)
            self.display.say(f"restarted ({reason})")
        elif checkpoint:
            self._write("resume", **details, checkpoint=checkpoint, reason="the same command")
        else:
            self._write("start", **details)
        if checkpoint:
            self.display.say(f"going on from {checkpoint}")
        on_hosts = f" on {', '.join(hosts)}" if len(hosts) > 1 else ""
        self.display.say(
            f"{count_parameters(self.model):,} parameters, {len(self.corpus.train):,} pairs, "
            f"{workers.count} {device.type} worker{'s' * (workers.count > 1)}{on_hosts}, "
            f"{self.config.batches.tokens_per_step:,} target slots a step"
        )

    def _load(self, found: Found | None, source: int) -> str:
        """Give every worker the checkpoint that the source's machine has; return its name."""
        is_source = self.workers.rank == source
        mine = [found.name, found.progress.to_json(), found.optimizer] if found else None
        name, progress, numbers = self.workers.broadcast(mine, source)
        moments = self.optimizer.tensors()
        if is_source:
            load_weights(self.model, read_tensors(self.run_folder.checkpoints, name, WEIGHTS))
            moments = read_tensors(self.run_folder.checkpoints, name, OPTIMIZER)
        self.optimizer.load(moments, numbers)
        self.progress = Progress.from_json(progress)
        self.workers.broadcast_tensors(
            (parameter.data for parameter in self.model.parameters()), source
        )
        self.workers.broadcast_tensors(self.optimizer.tensors().values(), source)
        return str(name)

    def _rows_per_device(self) -> int:
        chosen = self.config.batches.rows_per_device
        if chosen != "auto":
            return chosen
        return max(1, CPU_SLOTS_AT_ONCE // self.config.batches.row_tokens)

    def _learning_rate(self, step: int) -> float:
        d_model = shape_of(self.config.model).d_model
        return learning_rate(step, self.config.schedule, d_model, self.config.training.steps)

    def _arithmetic(self) -> AbstractContextManager[object]:
        return arithmetic(self.config.training.precision, self.workers.device)

    def _reason_to_stop(self, epoch: float) -> Stop:
        if self.signals.requested or self.supervision.is_asked_to_stop:
            return Stop.SIGNAL
        seconds = self.stopwatch.seconds()
        return reason_to_stop(
            self.config.training, self.progress.step, epoch, seconds, self.progress.best
        )

    def _agree(self, stop: Stop) -> Stop:
        return Stop(int(max(reason for (reason,) in self.workers.gather([stop]))))

    def _is_due(self, every_steps: int) -> bool:
        return self.progress.step % every_steps == 0

    def _limit(self, stop: Stop) -> str:
        training = self.config.training
        return {
            Stop.STEPS: f"training.steps = {training.steps} reached",
            Stop.EPOCHS: f"training.epochs = {training.epochs} reached",
            Stop.HOURS: f"training.hours = {training.hours} reached",
            Stop.PATIENCE: f"{training.patience} evaluations without a better "
            f"{training.patience_metric}",
            Stop.SIGNAL: f"asked to by {self.signals.requested or 'the launcher'}; "
            "the same command goes on",
        }[stop]

    def _signals_caught(self) -> AbstractContextManager[None]:
        """Under a launcher, signals come to it; a worker that gets one is to end at once."""
        return nullcontext() if self.supervision.is_launched else self.signals.caught()

    def _write(self, kind: str, **values: Any) -> None:
        if self.writes:
            self.metrics.write(kind, self.progress.step, **values)

    def _close(self) -> None:
        if self.writes:
            self.metrics.close()
        self.display.stop()


def mark_last(items: Sequence[Item]) -> Iterator[tuple[Item, bool]]:
    """Pair each item with whether it is the last."""
    for index, item in enumerate(items, start=1):
        yield item, index == len(items)
