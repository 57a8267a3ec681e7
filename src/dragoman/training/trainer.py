"""The loop: one step after the other, evaluated, saved, written down."""

import time
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import torch

from dragoman.cluster.processes import Workers
from dragoman.cluster.supervision import Supervision
from dragoman.cluster.sync import GradientSync
from dragoman.config import Config, shape_of
from dragoman.corpus.order import keyed_seed
from dragoman.corpus.rows import RowStream, StepRows
from dragoman.corpus.store import PreparedCorpus
from dragoman.errors import SystemFault, UserError
from dragoman.inference.evaluate import rows_to_device
from dragoman.model.transformer import RowTensors, Transformer, count_parameters
from dragoman.runs.checkpoint import Checkpoint, Scores
from dragoman.runs.folder import RunFolder
from dragoman.schedule import learning_rate
from dragoman.training.batches import Ahead
from dragoman.training.capacity import rows_that_fit
from dragoman.training.evaluator import Evaluator
from dragoman.training.opening import Opening
from dragoman.training.optimizer import Optimizer
from dragoman.training.precision import LossScale, arithmetic
from dragoman.training.resume import check_corpus_settings
from dragoman.training.stopping import Stop, StopSignals, Stopwatch, reason_to_stop

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
        self.workers = workers
        self.supervision = supervision
        corpus = PreparedCorpus(Path(config.corpus.folder))
        check_corpus_settings(config, corpus)
        source, target = corpus.subwords()
        torch.manual_seed(config.training.seed)
        self.model = Transformer(
            config.model, source.size, target.size, config.vocabulary.joint
        ).to(workers.device)
        scale = LossScale(config.training.precision, workers.device)
        self.optimizer = Optimizer(self.model, config.optimizer, scale)
        self.evaluator = Evaluator(config, corpus, workers, self._arithmetic)
        self.signals = StopSignals()
        rows_per_step = config.batches.tokens_per_step // config.batches.row_tokens
        if rows_per_step < workers.count:
            raise UserError(
                f"batches.tokens_per_step = {config.batches.tokens_per_step} is {rows_per_step} "
                f"rows, fewer than the {workers.count} workers; raise it"
            )
        stream = RowStream(
            corpus.train,
            config.batches.row_tokens,
            rows_per_step,
            target.begin,
            config.training.seed,
        )
        opening = Opening(config, run, corpus, workers)
        self.recorder = opening.open(self.model, self.optimizer)
        self.progress = opening.progress
        if not self.progress.rows_per_device:
            self.progress.rows_per_device = self._rows_per_device(rows_per_step)
        self.supervision.step = self.progress.step
        self.saves_made = supervision.saves_asked
        life = supervision.begin_life(workers)
        opening.announce(self.recorder, life, count_parameters(self.model))
        self.sync = GradientSync(self.model, workers, config.distributed)
        self.stopwatch = Stopwatch(self.progress.seconds)
        self.batches = Ahead(stream.steps(self.progress.position, workers.rank, workers.count))

    def run(self) -> Stop:
        """Train until a reason to stop; everything is saved when this returns."""
        try:
            with self._signals_caught():
                stop = self._reason_to_stop()
                if stop is not Stop.NO:
                    self.recorder.say(f"the run is complete: {self._limit(stop)}")
                    return stop
                self.recorder.display.start()
                return self._loop()
        except BaseException as error:
            detail = f"{type(error).__name__}: {error}"
            self.recorder.event("stop", self.progress.step, reason="error", detail=detail)
            raise
        finally:
            self.batches.close()
            self.recorder.close()

    def _loop(self) -> Stop:
        self.model.train()
        stop = Stop.NO
        while stop is Stop.NO:
            start = time.perf_counter()
            batch = self.batches.next()
            result = self.train_step(batch, time.perf_counter() - start)
            stop, save_asked = self._finish_step(batch, result, start)
            scores = None
            if stop is not Stop.NO or self._is_due(self.config.evaluation.every_steps):
                scores = self._evaluate()
                stop = stop or self._agree(self._reason_to_stop())
            is_best = scores is not None and self.progress.best.is_new
            is_due = is_best or self._is_due(self.config.checkpoints.every_steps)
            if stop is not Stop.NO or is_due or save_asked > self.saves_made:
                self._save(scores or Scores())
            if save_asked > self.saves_made:
                self._answer_save(save_asked)
        self.recorder.finish_saving()
        detail = self.signals.requested
        self.recorder.event("stop", self.progress.step, reason=stop.name.lower(), detail=detail)
        self.recorder.say(f"stopped at step {self.progress.step:,}: {self._limit(stop)}")
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

    def _finish_step(self, batch: StepRows, result: StepResult, start: float) -> tuple[Stop, int]:
        """Hear from all workers and take note; agree whether to stop, and on saves asked for."""
        progress = self.progress
        progress.step += 1
        progress.epoch, progress.position = batch.epoch, batch.next
        progress.target_tokens += batch.target_tokens
        progress.skipped_in_a_row = progress.skipped_in_a_row + 1 if result.skipped else 0
        self.supervision.step = progress.step
        before = time.perf_counter()
        everyone = self.workers.gather(
            [
                result.loss,
                result.nll,
                result.seconds_compute,
                self._reason_to_stop(),
                self.supervision.saves_asked,
            ]
        )
        end = time.perf_counter()
        losses, nlls, computing, stops, saves_asked = zip(*everyone, strict=True)
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
            **_phases(result, end - start, end - before if self.workers.count > 1 else 0.0),
        }
        if self.workers.count > 1:
            for name, choose in (("slowest", max), ("fastest", min)):
                chosen = choose(computing)
                values[name] = {"worker": computing.index(chosen), "seconds": chosen}
        if self.config.training.precision == "float16":
            values["loss_scale"] = float(self.optimizer.loss_scale)
        if result.skipped:
            values["skipped"] = True
        self.recorder.step(progress.step, values)
        if progress.skipped_in_a_row >= self.config.training.max_skipped_steps:
            raise SystemFault(
                f"no finite gradient in {progress.skipped_in_a_row} steps in a row, up to step "
                f"{progress.step}; lower the learning rate, or train in bfloat16 or float32"
            )
        return Stop(int(max(stops))), int(max(saves_asked))

    def _evaluate(self) -> Scores | None:
        """Score all validation sets and take note; every worker learns the same scores."""
        evaluations = self.evaluator.evaluate(self.model)
        for one in evaluations:
            self.recorder.evaluation(self.progress.step, one)
        if not evaluations:
            return None
        first = evaluations[0]
        self.progress.best.update(first.loss.loss, first.text.bleu)
        return Scores(first.loss.loss, first.loss.nll, first.text.bleu)

    def _save(self, scores: Scores) -> None:
        self.progress.seconds = self.stopwatch.seconds()
        self.recorder.save(
            Checkpoint(
                self.progress.step,
                dict(self.model.named_parameters()),
                self.optimizer.tensors(),
                {"progress": self.progress.to_json(), "optimizer": self.optimizer.state()},
                scores,
            )
        )

    def _answer_save(self, save_asked: int) -> None:
        """Make sure the checkpoint that the launcher asked for is on every disk, and say so."""
        self.recorder.finish_saving()
        self.workers.gather([0.0])
        self.saves_made = save_asked
        if self.workers.is_first:
            self.supervision.note_saved(save_asked)

    def _rows_per_device(self, rows_per_step: int) -> int:
        chosen = self.config.batches.rows_per_device
        if chosen != "auto":
            return chosen
        share = -(-rows_per_step // self.workers.count)
        row_tokens = self.config.batches.row_tokens
        return rows_that_fit(self._try_rows, row_tokens, share, self.workers.device)

    def _try_rows(self, rows: RowTensors) -> None:
        """One forward and backward pass that leaves no trace."""
        with self._arithmetic():
            sums = self.model(rows, self.config.training.label_smoothing)
        sums.loss.backward()
        self.model.zero_grad()

    def _learning_rate(self, step: int) -> float:
        d_model = shape_of(self.config.model).d_model
        return learning_rate(step, self.config.schedule, d_model, self.config.training.steps)

    def _arithmetic(self) -> AbstractContextManager[object]:
        return arithmetic(self.config.training.precision, self.workers.device)

    def _signals_caught(self) -> AbstractContextManager[None]:
        """Under a launcher, signals come to it; a worker that gets one is to end at once."""
        return nullcontext() if self.supervision.is_launched else self.signals.caught()

    def _reason_to_stop(self) -> Stop:
        if self.signals.requested or self.supervision.is_asked_to_stop:
            return Stop.SIGNAL
        seconds = self.stopwatch.seconds()
        progress = self.progress
        return reason_to_stop(
            self.config.training, progress.step, progress.epoch, seconds, progress.best
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


def mark_last(items: Sequence[Item]) -> Iterator[tuple[Item, bool]]:
    """Pair each item with whether it is the last."""
    for index, item in enumerate(items, start=1):
        yield item, index == len(items)


def _phases(result: StepResult, seconds: float, hearing: float) -> dict[str, float]:
    """Where a step's time went; what is not accounted for is `seconds_other`."""
    phases = {
        "seconds_data": result.seconds_data,
        "seconds_compute": result.seconds_compute,
        "seconds_exposed_communication": result.seconds_exposed_communication + hearing,
        "seconds_optimizer": result.seconds_optimizer,
    }
    return {"seconds": seconds, **phases, "seconds_other": seconds - sum(phases.values())}
