"""A run as the live page shows it: answers anew now and then, the rest line by line."""

import math
import time
from collections import deque
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from dragoman.documents import parse_leniently
from dragoman.records import (
    Beginning,
    CheckpointFailed,
    End,
    EndReason,
    Evaluation,
    MachineChange,
    SampleTranslation,
    TrainStep,
)
from dragoman.report.answers import answer_all
from dragoman.report.answers.answer import plain
from dragoman.report.evidence import Evidence, load_evidence
from dragoman.report.evidence.history import History
from dragoman.report.evidence.run_evidence import is_abandoned
from dragoman.report.evidence.series import envelope
from dragoman.report.findings.analysis import Findings, analyse
from dragoman.report.live.machine_now import MachineNow
from dragoman.report.live.tail import Tail
from dragoman.runs.folder import RunFolder
from dragoman.runs.metrics_reader import read_event
from dragoman.thresholds import SHORTEST_GAP, SILENCE
from dragoman.wording import in_bits_per_second, in_time

LARGEST_SHARE = 0.006  # Of one core, for making answers anew.
SECONDS_BETWEEN_LOOKS = 1.0
MOST_POINTS = 400  # Of a curve.
RECENT_STEPS = 200  # From which the speed is taken.
SAMPLES_SHOWN = 4
EVENTS_SHOWN = 12
_TOLD = {
    "start": "started",
    "resume": "resumed",
    "restart": "restarted",
    "lost": "lost",
    "joined": "joined",
    "checkpoint_failed": "checkpoint could not be written",
    "stop": "ended",
}
_ENDS: Mapping[EndReason, str] = {
    "steps": "finished: all steps done",
    "epochs": "finished: all epochs done",
    "hours": "finished: time limit reached",
    "patience": "finished: no new best for a while (training.patience)",
    "gain_unlikely": "finished: more steps are unlikely to help",
    "signal": "stopped by a signal; it can be resumed",
    "error": "failed",
}


class RunState:
    """Follows one run folder; `look` is cheap, and asked for only while someone watches."""

    def __init__(self, run: RunFolder, clock: Callable[[], float] = time.time) -> None:
        self._run, self._clock = run, clock
        self._metrics, self._samples = Tail(run.metrics), Tail(run.samples)
        self._machines: dict[str, MachineNow] = {}
        self._answers: list[dict[str, Any]] = []
        self._evidence: Evidence | None = None
        self._next_judgement = 0.0  # On the monotonic clock.
        self._judged_at = 0.0
        self._looked = 0.0
        self._forget()

    def _forget(self) -> None:
        """Begin anew, before everything is read again."""
        self._train: list[tuple[float, float]] = []  # Steps and losses, thinned out.
        # Seconds, step and target tokens.
        self._recent: deque[tuple[float, int, float]] = deque(maxlen=RECENT_STEPS)
        self._ends_at = math.inf  # When training.hours will be over.
        self._evaluations: dict[int, dict[str, Any]] = {}
        self._events: list[dict[str, Any]] = []
        self._lost: set[str] = set()  # Machines that have not come back.
        self._translations: dict[str, dict[str, Any]] = {}
        self._outlook: dict[str, Any] = {}
        self._last_time = 0.0
        self._end: End | None = None

    def look(self) -> dict[str, Any]:
        """Read what is new and give the whole state, ready for JSON."""
        now = time.monotonic()
        if now - self._looked >= SECONDS_BETWEEN_LOOKS:
            self._looked = now
            if self._is_judgement_due(now):
                self._judge()
            self._read()
        state: dict[str, Any] = plain(self._state())
        return state

    def _is_judgement_due(self, now: float) -> bool:
        if self._metrics.is_cut or self._samples.is_cut:
            return True  # A machine that came back brought a longer or shorter history.
        return now >= self._next_judgement and (self._evidence is None or self._is_alive())

    def _is_alive(self) -> bool:
        """Whether anything may have changed since the answers were made."""
        return self._last_time > self._judged_at - 2 * SILENCE.value

    def _judge(self) -> None:
        """Make all answers anew, as the report does, and take the curves from its evidence."""
        if not self._run.has_evidence():
            return
        spent = time.process_time()
        # What is written while the evidence is being loaded is read afterwards.
        tails = Tail.from_end(self._run.metrics), Tail.from_end(self._run.samples)
        evidence = load_evidence(self._run.path, self._clock())
        findings = analyse(evidence)
        self._answers = [_card(answer) for answer in answer_all(evidence, findings)]
        self._evidence, self._judged_at = evidence, self._clock()
        self._forget()
        self._take(evidence, findings)
        self._metrics, self._samples = tails
        spent = time.process_time() - spent
        self._next_judgement = time.monotonic() + max(5.0, spent / LARGEST_SHARE)

    def _take(self, evidence: Evidence, findings: Findings) -> None:
        """Take all there is from the evidence; what is written from then on is added to it."""
        history = evidence.history
        curve = envelope(history.train.step, history.train.loss, MOST_POINTS)
        self._train = list(zip(curve.x.tolist(), curve.mean.tolist(), strict=True))
        for seconds, step, tokens in zip(
            history.train.seconds[-RECENT_STEPS:].tolist(),
            history.train.step[-RECENT_STEPS:].tolist(),
            history.train.target_tokens[-RECENT_STEPS:].tolist(),
            strict=True,
        ):
            self._recent.append((seconds, int(step), tokens))
        series = evidence.evaluations
        if series is not None:
            rows = zip(
                series.step.tolist(),
                series.loss.tolist(),
                series.train_sample_loss.tolist(),
                series.bleu.tolist(),
                strict=True,
            )
            for step, loss, sample, bleu in rows:
                self._evaluations[int(step)] = {"loss": loss, "sample": sample, "bleu": bleu}
        hours, duration = evidence.setting("training", "hours"), findings.duration
        if isinstance(hours, (int, float)):
            counted = duration.wall - duration.paused - duration.lost_steps
            self._ends_at = history.last_time + 3600 * hours - counted
        self._outlook = {
            name: _ahead(found.path_steps, sign * found.path, found.last_step)
            for name, sign, found in (
                ("loss", 1, findings.learning[0].outlook.loss),
                ("bleu", -1, findings.learning[0].outlook.bleu),
            )
            if found is not None
        }
        self._take_events(history)
        if history.end is not None:
            self._note("stop", history.last_time, history.train.last_step, history.end)
        for sample in evidence.samples:
            self._note_sample(sample)
        self._last_time = history.last_time if np.isfinite(history.last_time) else 0.0

    def _take_events(self, history: History) -> None:
        """Note attempts and machines as they came and went: the last word on a machine counts."""
        happened: list[tuple[str, float, int, Beginning | MachineChange]] = []
        for one in history.attempts:
            happened.append((one.kind, one.time, one.step, one.began))
            for host in one.began.joined or ():
                joined = MachineChange(host, "", one.began.workers)
                happened.append(("joined", one.time, one.step, joined))
        happened += [("lost", one.time, one.step, one.event) for one in history.machines_lost]
        for event in sorted(happened, key=lambda one: one[1]):
            self._note(*event)

    def _read(self) -> None:
        """Take in the lines that were added."""
        for logged in filter(None, map(read_event, self._metrics.lines())):
            at = logged.time if np.isfinite(logged.time) else self._last_time
            self._last_time = max(self._last_time, at)
            match logged.event:
                case TrainStep() as event:
                    self._note_step(logged.step, event)
                case Evaluation() as event:
                    self._note_evaluation(logged.step, event)
                case Beginning() | MachineChange() | CheckpointFailed() | End() as event:
                    self._note(logged.kind, at, logged.step, event)
                    if isinstance(event, Beginning):
                        self._void_beyond(logged.step)
        for line in self._samples.lines():
            self._note_sample(parse_leniently(SampleTranslation, line))
        if self._run.monitor.is_dir():
            for path in sorted(self._run.monitor.glob("*.jsonl")):
                if path.stem not in self._machines:
                    self._machines[path.stem] = MachineNow(path)
                self._machines[path.stem].read()

    def _note_step(self, step: int, event: TrainStep) -> None:
        self._recent.append((event.seconds, step, event.target_tokens))
        if np.isfinite(event.loss):
            self._train.append((float(step), event.loss))
        if len(self._train) > 2 * MOST_POINTS:
            half = np.array(self._train[: len(self._train) // 2 * 2]).reshape(-1, 2, 2).mean(axis=1)
            self._train = [(float(x), float(y)) for x, y in half]

    def _note_evaluation(self, step: int, event: Evaluation) -> None:
        first = self._evidence and self._evidence.evaluations
        if not first or event.set == first.name:
            scores = {"loss": event.loss, "sample": event.train_sample_loss, "bleu": event.bleu}
            self._evaluations[step] = scores

    def _note(
        self,
        kind: str,
        at: float,
        step: int,
        event: Beginning | MachineChange | CheckpointFailed | End,
    ) -> None:
        who = event.host if isinstance(event, MachineChange) else ""
        why = event.reason or ""
        self._end = event if isinstance(event, End) else None
        if kind == "lost":
            self._lost.add(who)
        elif kind == "joined":
            self._lost.discard(who)
        elif kind in ("start", "resume"):
            self._lost.clear()
        if who and why.startswith(who):
            why = ""  # It says the same once more.
        words = f"{who} {_TOLD[kind]}".strip()
        if self._end:
            words, why = _ENDS[self._end.reason], self._end.detail or ""
        told = {"kind": kind, "time": at, "step": step, "what": words, "why": why}
        self._events.append(told)

    def _void_beyond(self, step: int) -> None:
        """A resume makes void what lay beyond it."""
        self._train = [point for point in self._train if point[0] <= step]
        self._evaluations = {at: one for at, one in self._evaluations.items() if at <= step}
        self._recent.clear()

    def _note_sample(self, sample: SampleTranslation) -> None:
        text, step = sample.translation, sample.step
        kept = self._translations.setdefault(
            sample.source, {"source": sample.source, "reference": sample.reference, "tries": []}
        )
        # A restart repeats evaluations: the last translation at a step counts.
        before = [one for one in kept["tries"] if one["step"] < step]
        if not before or before[-1]["text"] != text:
            before = [*before, {"step": step, "text": text}][-6:]
        kept["tries"] = before

    def _state(self) -> dict[str, Any]:
        now = self._clock()
        steps = sorted(self._evaluations)
        machines = self._evidence.machines if self._evidence else ()
        interfaces = {machine.host: machine.interface for machine in machines}
        return {
            "name": self._evidence.name if self._evidence else self._run.name,
            "state": self._state_words(now),
            "speed": self._speed(now),
            "answers": self._answers,
            "answers_age": self._age(now),
            "train": self._train,
            "evaluations": [{"step": step, **self._evaluations[step]} for step in steps],
            "outlook": self._outlook,
            "has_ended": self._end is not None,
            "machines": [
                one.state(host, interfaces.get(host, ""), self._last_time if self._end else now)
                | {"is_lost": host in self._lost}
                for host, one in self._machines.items()
                if one.has_sample
            ],
            "links": self._links(),
            "samples": list(self._translations.values())[:SAMPLES_SHOWN],
            "events": [
                one | {"ago": in_time(max(0.0, now - one["time"]))}
                for one in self._events[-EVENTS_SHOWN:][::-1]
            ],
        }

    def _age(self, now: float) -> str | None:
        if not self._judged_at:
            return None
        seconds = now - self._judged_at
        return "just now" if seconds < 5 else f"{in_time(round(seconds))} ago"

    def _state_words(self, now: float) -> dict[str, Any]:
        if self._end is not None:
            tone = "bad" if self._end.reason == "error" else "plain"
            return {"tone": tone, "words": _ENDS[self._end.reason]}
        if not self._last_time:
            return {"tone": "plain", "words": "waiting for the run to start"}
        silent = self._seconds_silent(now)
        if silent > self._longest_silence():
            return {"tone": "bad", "words": f"no log output for {in_time(silent)}"}
        return {"tone": "good", "words": "running"}

    def _longest_silence(self) -> float:
        attempt = self._evidence.history.attempt if self._evidence else None
        hosts = attempt.began.hosts if attempt else ()
        return (SHORTEST_GAP if is_abandoned(self._run, hosts) else SILENCE).value

    def _seconds_silent(self, now: float) -> float:
        return now - max([self._last_time, *(one.time for one in self._machines.values())])

    def _speed(self, now: float) -> dict[str, Any]:
        """Step, tokens a second while training, and time left without evaluations."""
        if not self._recent:
            return {"step": max(self._evaluations, default=0)}
        last = self._recent[-1][1]
        total = self._evidence.setting("training", "steps") if self._evidence else None
        speed: dict[str, Any] = {"step": last, "total": total}
        timed = [(seconds, tokens) for seconds, _, tokens in self._recent if seconds > 0]
        spent = sum(seconds for seconds, _ in timed)
        if timed:
            speed["tokens_per_second"] = f"{sum(tokens for _, tokens in timed) / spent:,.0f}"
            speed["seconds_per_step"] = in_time(spent / len(timed))
            of_steps = (total - last) * spent / len(timed) if isinstance(total, int) else math.inf
            left = min(of_steps, self._ends_at - now)
            is_going = self._end is None and self._seconds_silent(now) <= self._longest_silence()
            if is_going and math.isfinite(left):
                speed["left"] = in_time(max(0.0, left))
        return speed

    def _links(self) -> list[dict[str, str]]:
        links = self._evidence.history.links if self._evidence else ()
        return [
            {
                "between": " to ".join(link.hosts),
                "goodput": in_bits_per_second(link.goodput_bytes_per_second),
                "latency": in_time(link.latency_seconds),
            }
            for link in links
        ]


def _card(answer: Any) -> dict[str, Any]:
    names = ("id", "question", "headline", "tone", "note", "answer", "next_step", "confidence")
    return {name: getattr(answer, name) for name in names}


def _ahead(steps: Any, path: Any, last: float) -> dict[str, Any]:
    """The band in which a curve goes on, 9 times out of 10."""
    ahead = steps >= last
    low, middle, high = np.quantile(path[:, ahead], (0.05, 0.5, 0.95), axis=0)
    return {
        "steps": steps[ahead].tolist(),
        "low": low.tolist(),
        "middle": middle.tolist(),
        "high": high.tolist(),
    }
