"""The loop: one step after the other, evaluated, saved, written down."""

import math
import time
from collections import deque
from contextlib import AbstractContextManager, ExitStack, nullcontext
from dataclasses import asdict, replace

from dragoman.cluster.failures import describe_error
from dragoman.cluster.links import SECONDS_PER_LINK, measure_links, neighbours
from dragoman.cluster.processes import Workers
from dragoman.cluster.supervision import Supervision
from dragoman.config import Config, shape_of
from dragoman.errors import SystemFault
from dragoman.inference.evaluate import Interrupted
from dragoman.model.precision import arithmetic
from dragoman.prediction.run_schedule import RunSchedule
from dragoman.records import NO_SCORES, End, Scores, TrainStep
from dragoman.runs.before import read_before
from dragoman.runs.checkpoint import Checkpoint
from dragoman.runs.folder import RunFolder
from dragoman.schedule import learning_rate
from dragoman.training.announcements import announce_beginning, describe_end
from dragoman.training.batches import Ahead
from dragoman.training.calibration import calibrate
from dragoman.training.capacity import kind_of
from dragoman.training.copies import complete_copies, failures_by_host, raise_failures
from dragoman.training.evaluator import Evaluator
from dragoman.training.local_step import LocalStep
from dragoman.training.opening import Opened
from dragoman.training.parts import Parts, choose_rows_per_device, most_rows_per_device
from dragoman.training.row_shares import RowShares, micro_batch_rows
from dragoman.training.step import mark_last
from dragoman.training.step_exchange import PendingResults, QueuedStep, Requests, share_results
from dragoman.training.step_line import end_times, train_line
from dragoman.training.stopping import Stop, StopSignals, Stopwatch, reason_to_stop
from dragoman.training.watch import MachineWatch


class Trainer:
    """One worker's part in a run."""

    def __init__(
        self,
        config: Config,
        run: RunFolder,
        parts: Parts,
        opened: Opened,
        workers: Workers,
        supervision: Supervision,
        signals: StopSignals,
    ) -> None:
        self.config, self.run_folder, self.workers = config, run, workers
        self.supervision, self.signals = supervision, signals
        self.parts, self.model, self.step = parts, parts.model, parts.step
        self.local = self.step if isinstance(self.step, LocalStep) else None
        self.opened, self.recorder, self.progress = opened, opened.recorder, opened.progress
        self.stopwatch = Stopwatch(self.progress.seconds)
        d_model = shape_of(config.model).d_model
        self.schedule = RunSchedule(config.schedule, d_model, config.training.steps)
        self.evaluator = Evaluator(
            config,
            parts.corpus,
            workers,
            self._arithmetic,
            self._is_asked_to_stop,
            read_before(run),
        )
        self.watch = MachineWatch(
            run, workers, self.recorder, opened.clock_leads, lambda: self.progress.step
        )
        self.batches = Ahead(parts.stream.steps(self.progress.position))
        rows = parts.stream.rows_per_step
        self.shares = RowShares(
            rows,
            workers.count,
            workers.rank,
            is_balanced=config.distributed.balance,
            unit=1 if workers.device.type == "cpu" else micro_batch_rows(rows),
        )
        self.queued: deque[QueuedStep] = deque()
        self.pending: PendingResults | None = None  # Shared, but not collected from all others.
        # The attempt before may have left a request unanswered.
        self.saves_made = opened.attempt.saves_answered if opened.attempt else 0
        self.mark = time.perf_counter()  # When the last step was queued.

    def run(self, at_end: ExitStack) -> Stop:
        """Train until a reason to stop; everything is saved when this returns."""
        at_end.callback(self.evaluator.close)
        stop = self._agree(self._reason_to_stop())
        if stop is not Stop.NO and not self.progress.owes_evaluation:
            name, writers = self.opened.checkpoint, self.opened.writers
            if name and stop is not Stop.SIGNAL:
                for host in complete_copies(self.run_folder, name, writers, self.workers):
                    self.recorder.say(f"{host}: copied {name}, which was missing there")
                self.recorder.end_if_missing(self.progress.step, End(stop.reason, None))
            self._conclude(stop)
            return stop
        try:
            at_end.callback(self.watch.close)
            at_end.callback(self.batches.close)
            self._begin()
            self._calibrate()
            hours = self.config.training.hours
            left = math.inf if hours is None else 3600 * hours - self.stopwatch.seconds()
            self.recorder.display.start(left)
            return self._loop()
        except BaseException as error:
            # Who hears of a final failure ends this process at once.
            self.recorder.flush()
            self.supervision.post_failure(error)  # Not after a long save.
            self.recorder.finish_saving()
            detail = describe_error(error, None, None).reason
            self.recorder.event("stop", self.progress.step, End("error", detail))
            raise

    def _begin(self) -> None:
        """Announce this attempt of the run and get everything ready for its first step."""
        config, workers, progress = self.config, self.workers, self.progress
        most = most_rows_per_device(config, self.parts, workers)
        device = kind_of(workers.device, self.parts.kernels.kind, most)
        if progress.device != device:
            progress.device = device
            progress.rows_per_device = choose_rows_per_device(config, self.parts, workers)
        self.supervision.note_step(progress.step)
        announce_beginning(self.opened, config, self.parts, workers)
        if workers.device.type == "cuda":
            chosen = self.parts.kernels
            self.recorder.say(f"{chosen.kind} kernels: {chosen.reason}")
        self.step.begin(progress.rows_per_device)
        if self.local:
            self.local.go_on(self.opened.writers, progress.step)
        self.watch.start()

    def _loop(self) -> Stop:
        self.model.train()
        self.mark = time.perf_counter()
        stop = Stop.NO
        if self.progress.owes_evaluation:
            stop = self._evaluate_and_save(stop, saves_asked=0)
        while stop is Stop.NO:
            self._queue_step()
            step, is_pause_due = self.progress.step, self._is_pause_due()
            if not is_pause_due and self.local and not self.local.synchronizes_at(step):
                continue
            stop, saves_asked = self._collect_results(is_pause_due=is_pause_due)
            if stop is not Stop.NO or is_pause_due or saves_asked > self.saves_made:
                self._collect_results(is_pause_due=True)
                stop = self._evaluate_and_save(stop, saves_asked)
        failures = self._finish_saving()
        self.watch.collect()
        raise_failures(failures)
        end = End(stop.reason, self.signals.requested)
        self.recorder.event("stop", self.progress.step, end)
        self._conclude(stop)
        return stop

    def _evaluate_and_save(self, stop: Stop, saves_asked: int) -> Stop:
        """Evaluate and save what is due, with no step on its way; that may be reason to stop."""
        if self.local and stop not in (Stop.NO, Stop.SIGNAL):
            self.local.finish()
        with self.local.common_weights() if self.local else nullcontext():
            scores, stop = self._evaluate_if_due(stop)
            is_best = self.config.checkpoints.keep_best and self.progress.best.is_new
            is_save_asked = saves_asked > self.saves_made
            is_save_due = self._is_due(self.config.checkpoints.every_steps)
            is_new_best = is_best and scores is not None
            if stop is not Stop.NO or is_new_best or is_save_due or is_save_asked:
                self._save(scores or NO_SCORES)
        if is_save_asked:
            self._answer_save(saves_asked)
        self.mark = time.perf_counter()
        return stop

    def _evaluate_if_due(self, stop: Stop) -> tuple[Scores | None, Stop]:
        """Evaluate at the end and every so often; a signal puts it off to the next attempt."""
        progress = self.progress
        is_due = self._is_due(self.config.evaluation.every_steps) or progress.owes_evaluation
        # Who sends a signal does not wait long.
        progress.owes_evaluation = stop is Stop.SIGNAL and (is_due or bool(self._limit()))
        if stop is Stop.SIGNAL or (stop is Stop.NO and not is_due):
            return None, stop
        try:
            return self._evaluate(), stop or self._agree(self._reason_to_stop())
        except Interrupted:
            progress.owes_evaluation = True
            return None, Stop.SIGNAL

    def _calibrate(self) -> None:
        """Measure computing and synchronizing apart, before they happen together."""
        step = self.progress.step
        for link in measure_links(self.workers, neighbours(self.workers), SECONDS_PER_LINK):
            self.recorder.event("link", step, link)
        batch = self.shares.own(self.batches.peek())
        measured = calibrate(self.step, self.model, batch, self.workers, self.config)
        self.shares.start(measured.seconds_compute_by_worker)
        if self.config.distributed.balance:
            measured = replace(measured, balanced_rows=self.shares.rows_by_worker)
        self.recorder.event("calibration", step, measured)

    def _queue_step(self) -> None:
        """Take the next batch and set a step going; plain kernels are done when this returns."""
        start = time.perf_counter()
        batch = self.shares.own(self.batches.next())
        waited = time.perf_counter() - start
        progress = self.progress
        schedule = self.schedule
        rate = learning_rate(
            progress.step + 1, schedule.settings, schedule.d_model, schedule.total_steps
        )
        self.step.queue(batch, progress.step + 1, rate, waited)
        progress.step += 1
        progress.epoch, progress.position = batch.epoch, batch.next
        self.supervision.note_step(progress.step)
        end = time.perf_counter()
        rows = self.shares.rows_by_worker
        self.queued.append(QueuedStep(progress.step, batch, rows, rate, end - self.mark))
        self.mark = end

    def _collect_results(self, *, is_pause_due: bool) -> tuple[Stop, int]:
        """Collect how steps went; agree whether to stop, and on saves asked for.

        Before a pause no step stays on its way. Workers that step alone do not wait for each
        other's results, but collect them the next time.
        """
        in_flight = 0 if is_pause_due else self.step.lag
        finished = [
            (self.queued.popleft(), self.step.result()) for _ in range(len(self.queued) - in_flight)
        ]
        pending, self.pending = [self.pending] if self.pending else [], None
        if finished:
            own = Requests(self._reason_to_stop(), self.supervision.saves_asked, self.watch.is_due)
            pending.append(share_results(self.workers, own, finished))
            if self.local and not is_pause_due:
                self.pending = pending.pop()
        agreed = [self._note_results(one) for one in pending]
        stops, saves_asked = zip(*agreed, strict=True) if agreed else ((), ())
        return max(stops, default=Stop.NO), max(saves_asked, default=self.saves_made)

    def _note_results(self, pending: PendingResults) -> tuple[Stop, int]:
        """Write finished steps down once everyone's results are here, and give all requests."""
        start, seconds_collecting = time.perf_counter(), 0.0
        requests, steps = pending.collect()
        if self.workers.count > 1:
            now = time.perf_counter()
            seconds_collecting, self.mark = now - start, now
        lines = []
        for ((queued, result), is_last), everyone in zip(
            mark_last(pending.finished), steps, strict=True
        ):
            self.shares.note(queued.rows_by_worker, [one.seconds_compute for one in everyone])
            lines.append(train_line(queued, result, everyone, seconds_collecting * is_last))
        ends = end_times([line.seconds for line in lines], pending.moment + seconds_collecting)
        for (queued, _), line, end in zip(pending.finished, lines, ends, strict=True):
            self._note_step(queued.step, line, end)
        # Not before: times in the log only go forward.
        self.recorder.note_saved()
        if requests[0].is_collection_due:
            self.watch.collect()
        stop = max(one.stop for one in requests)
        return Stop(int(stop)), int(max(one.saves_asked for one in requests))

    def _note_step(self, step: int, line: TrainStep, end: float) -> None:
        """Write a finished step down."""
        self.recorder.step(step, line, end)
        progress = self.progress
        progress.skipped_in_a_row = progress.skipped_in_a_row + 1 if line.skipped else 0
        if progress.skipped_in_a_row >= self.config.training.max_skipped_steps:
            is_finest = self.config.training.precision == "float32"
            raise SystemFault(
                f"no finite gradient for {progress.skipped_in_a_row} consecutive steps, up to "
                f"step {step}; lower the learning "
                f"rate{'' if is_finest else ', or train in float32'}"
            )

    def _is_pause_due(self) -> bool:
        """Whether all workers have to look up from training after this step; known to each."""
        training = self.config.training
        return (
            self._is_due(self.config.evaluation.every_steps)
            or self._is_due(self.config.checkpoints.every_steps)
            or (training.steps is not None and self.progress.step >= training.steps)
            or (training.epochs is not None and self.progress.epoch >= training.epochs)
        )

    def _evaluate(self) -> Scores | None:
        """Score all validation sets and take note; every worker learns the same scores."""
        evaluations = self.evaluator.evaluate(self.model)
        if self.progress.step == 0 and self.config.training.start_from:
            self.recorder.before(self.evaluator.compare_with(evaluations))
        for one in evaluations:
            self.recorder.evaluation(self.progress.step, one)
        if not evaluations:
            return None
        first = evaluations[0].scores
        self.progress.best.update(first.loss, first.bleu)
        looks_ahead = self.config.training.stop_when_gain_unlikely is not None
        schedule = self.schedule if looks_ahead else None
        self.progress.scores.add(self.progress.step, first.loss, first.bleu, schedule)
        return Scores(first.loss, first.nll, first.bleu)

    def _save(self, scores: Scores) -> None:
        self.progress.seconds = self.stopwatch.seconds()
        if self.local:
            self.local.share_own()
        self.recorder.save(
            Checkpoint(
                self.progress.step,
                dict(self.model.named_parameters()),
                self.step.tensors(),
                asdict(self.progress),
                self.step.state(),
                scores,
            )
        )

    def _answer_save(self, save_asked: int) -> None:
        """Tell the launcher that the checkpoint it asked for is on every disk, if it is."""
        failures = self._finish_saving()
        self.saves_made = save_asked
        if failures:
            # The launcher does not wait for ever; a try at every step would help nobody.
            told = "; ".join(map(": ".join, failures.items()))
            self.recorder.say(f"{told}; the launcher that requested it will get no answer")
        elif self.workers.is_first:
            self.supervision.note_saved(save_asked)

    def _finish_saving(self) -> dict[str, str]:
        """Wait until the last checkpoint is on every disk; tell where it is not, and why."""
        return failures_by_host(self.recorder.finish_saving(), self.workers)

    def _arithmetic(self) -> AbstractContextManager[object]:
        return arithmetic(self.config.training.precision, self.workers.device)

    def _is_asked_to_stop(self) -> bool:
        return bool(self.signals.requested) or self.supervision.is_asked_to_stop

    def _reason_to_stop(self) -> Stop:
        return self._limit() or (Stop.SIGNAL if self._is_asked_to_stop() else Stop.NO)

    def _limit(self) -> Stop:
        """The limit of the settings that is reached, if any."""
        return reason_to_stop(self.config.training, self.progress, self.stopwatch.seconds())

    def _agree(self, stop: Stop) -> Stop:
        return Stop(int(max(self.workers.gather_number(stop))))

    def _is_due(self, every_steps: int) -> bool:
        return self.progress.step % every_steps == 0

    def _conclude(self, stop: Stop) -> None:
        """All is on every disk: tell the launcher, then everybody."""
        self.supervision.conclude(self.workers, stop.name)
        signal, training = self.signals.requested, self.config.training
        self.recorder.say(describe_end(stop, self.progress, training, signal))
