"""Loads a run folder, be the run finished, alive or dead; only reads files."""

import math
import socket
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

import numpy as np

from dragoman.corpus.manifest import SIDES, Manifest
from dragoman.documents import (
    Mismatch,
    encode,
    number_or_none,
    parse,
    parse_leniently,
)
from dragoman.errors import UserError
from dragoman.files import find_file_damage, is_held_here
from dragoman.records import (
    CheckpointIndex,
    CorpusStep,
    Provenance,
    SampleTranslation,
    SavedFile,
)
from dragoman.report.evidence.corpus_counts import read_corpus_counts
from dragoman.report.evidence.history import Attempt, History, read_history
from dragoman.report.evidence.json_lines import read_json, read_json_lines, table_of, whole_number
from dragoman.report.evidence.kept_checkpoints import read_checkpoints
from dragoman.report.evidence.monitor_logs import Machine, read_machines
from dragoman.report.evidence.run_settings import read_settings
from dragoman.report.evidence.step_series import Evaluations, TrainSteps
from dragoman.runs.folder import RunFolder
from dragoman.thresholds import (
    MUCH_ELSEWHERE,
    OUTLIER,
    SHORTEST_GAP,
    SILENCE,
    STEADY_STEPS_NEEDED,
    WARM_UP_STEPS,
)
from dragoman.wording import in_percent, in_time, plural

State = Literal["finished", "stopped", "running", "crashed", "not started", "lost"]

_MOST_NAMED = 8  # Of events of one kind.


@dataclass(frozen=True)
class Evidence:
    """Everything that is known about a run."""

    run: Path
    name: str
    state: State
    history: History
    machines: tuple[Machine, ...]
    settings: Mapping[str, Any]  # config.toml as it stands, without what is not valid.
    provenance: Provenance  # Blank where it is damaged.
    checkpoints: CheckpointIndex
    samples: tuple[SampleTranslation, ...]
    missing: tuple[str, ...]  # What is damaged, absent or odd, in sentences.
    corpora: Mapping[str, CorpusStep]  # How often each corpus of a mix was read.

    @property
    def attempt(self) -> Attempt | None:
        """The latest start, resume or restart that made steps, or else the latest."""
        return self.history.attempt

    @property
    def hosts(self) -> tuple[str, ...]:
        """The machines of the latest attempt, worker 0's first."""
        return tuple(dict.fromkeys(self.attempt.began.hosts)) if self.attempt else ()

    @property
    def workers(self) -> int:
        """Workers of the latest attempt."""
        return self.attempt.began.workers if self.attempt else 1

    @property
    def evaluations(self) -> Evaluations | None:
        """Those of the first validation set, which decides what is best."""
        return self.history.evaluations[0] if self.history.evaluations else None

    def setting(self, section: str, name: str) -> Any:
        """A setting of the run, or None."""
        return table_of(self.settings.get(section)).get(name)

    @property
    def local_steps(self) -> int:
        """Steps from one exchange to the next."""
        if self.setting("distributed", "sync") != "local":
            return 1
        return max(1, whole_number(self.setting("distributed", "local_steps")))

    @property
    def local_fragments(self) -> int:
        """Parts of an exchange that travel one after the other."""
        if self.local_steps == 1:
            return 1
        fragments = whole_number(self.setting("distributed", "local_fragments"))
        return min(max(1, fragments), self.local_steps)

    @property
    def local_delay(self) -> int | None:
        """Steps that a part may travel; None if it may until the next one sets out."""
        delay = self.setting("distributed", "local_delay")
        return None if delay is None else whole_number(delay)

    @property
    def goodput(self) -> float:
        """Bytes per second that the slowest link carries, infinite if none was measured."""
        measured = (link.goodput_bytes_per_second for link in self.history.links)
        return min((goodput for goodput in measured if goodput), default=math.inf)

    @property
    def bleu_at_start(self) -> float | None:
        """The first set's BLEU of the weights that the run started from, if it was measured."""
        name = self.evaluations.name if self.evaluations else None
        scores = (
            one.event.bleu
            for one in self.history.all_evaluations
            if not one.step and one.event.set == name
        )
        return next(scores, None)

    @property
    def latency(self) -> float:
        """Seconds of the slowest link."""
        return max((link.latency_seconds or 0.0 for link in self.history.links), default=0.0)

    @property
    def parameters(self) -> int | None:
        """Size of the model."""
        calibration = self.history.calibration
        measured = calibration.parameters if calibration else 0
        return self.provenance.model.parameters or measured or None

    @property
    def corpus(self) -> Manifest:
        """What can be read of the copy of the corpus's manifest."""
        return parse_leniently(Manifest, self.provenance.corpus.manifest)

    @property
    def guessing_loss(self) -> float:
        """Loss per token of guessing among all words of the vocabulary; infinite if not known."""
        sizes = self.corpus.vocabulary.sizes
        # That of the target comes last, if there are two.
        return math.log(sizes[-1]) if sizes else math.inf


def load_evidence(run: Path, now: float) -> Evidence:
    """Read a run folder; `now` tells a live run from a dead one."""
    if not run.is_dir():
        raise UserError(f"{run}: no such run folder")
    if not RunFolder(run).has_evidence():
        raise UserError(
            f"{run} is not a run folder: it has no metrics.jsonl, config.toml or provenance.json"
        )
    folder = RunFolder(run)
    missing: list[str] = []
    history = read_history(folder.metrics, missing)
    hosts = list(dict.fromkeys(host for one in history.attempts for host in one.began.hosts))
    interfaces = {link.hosts[0]: link.interface for link in history.links}
    machines = read_machines(folder.monitor, hosts, interfaces, missing)
    provenance = _read_provenance(folder.provenance, missing)
    settings = read_settings(folder.config, missing)
    checkpoints = read_checkpoints(folder.checkpoints, missing)
    if history.checkpoints and not checkpoints.checkpoints:
        written = plural(len(history.checkpoints), "checkpoint")
        missing.append(f"checkpoints/ is empty or missing: the log mentions {written}")
    samples = _read_samples(folder.samples, missing)
    missing += _oddities(history)
    found = Evidence(
        run=run,
        name=provenance.run or run.resolve().name,
        state=_state(folder, history, machines, bool(checkpoints.checkpoints), now),
        history=history,
        machines=machines,
        settings=settings,
        provenance=provenance,
        checkpoints=checkpoints,
        samples=samples,
        missing=tuple(missing),
        corpora=read_corpus_counts(folder.metrics),
    )
    return replace(found, missing=(*found.missing, *_missing_files(folder, found)))


def _read_provenance(path: Path, missing: list[str]) -> Provenance:
    """What can be read of it, with a word about the rest."""
    document = read_json(path, missing)
    provenance = parse_leniently(Provenance, document)
    if document is not None:
        try:
            parse(Provenance, document)
        except Mismatch as error:
            missing.append(f"{path.name}: {error}; this report leaves out what does not fit")
        manifest = provenance.corpus.manifest
        read = encode(parse_leniently(Manifest, manifest), with_defaults=True)
        missing += [
            f"{path.name}: corpus.{where} has an unexpected value; this report leaves it out"
            for where in list(_left_out(manifest, read, "manifest"))[:_MOST_NAMED]
        ]
    return provenance


def _left_out(document: Any, read: Any, where: str) -> Iterator[str]:
    """The places of a document of which something else was read, or nothing."""
    if isinstance(document, Mapping) and isinstance(read, Mapping) and (read or not document):
        for key in document.keys() & read.keys():
            yield from _left_out(document[key], read[key], f"{where}.{key}")
    elif isinstance(document, list) and isinstance(read, list) and len(document) == len(read):
        for place, pair in enumerate(zip(document, read, strict=True)):
            yield from _left_out(*pair, f"{where}[{place}]")
    elif document != read:
        yield where


def _missing_files(folder: RunFolder, evidence: Evidence) -> Iterator[str]:
    """Files that every run writes as soon as it starts, or evaluates."""
    if not evidence.history.attempts:
        return
    manifest = evidence.corpus
    for side, path in zip(SIDES, folder.subwords, strict=True):
        names = manifest.vocabulary.files
        saved = manifest.files.get(names[0 if side == "source" else -1]) if names else None
        if not path.is_file():
            yield f"{path.name} is missing: without its vocabulary, the run cannot translate"
        elif saved is not None and (damage := _damage(path, saved)):
            yield f"{damage}: it is not the vocabulary that the run was trained with"
    if not folder.log.is_file():
        yield f"{folder.log.name} is missing: what the run printed is unknown"
    is_sampled = evidence.evaluations is not None and evidence.setting("evaluation", "samples")
    if is_sampled and not folder.samples.is_file():
        yield f"{folder.samples.name} is missing: there are no sample translations to show"


def _damage(path: Path, saved: SavedFile) -> str | None:
    try:
        return find_file_damage(path, saved.bytes, saved.sha256 or None)
    except OSError as error:
        return f"{path.name} cannot be read ({error.strerror})"


def _read_samples(path: Path, missing: list[str]) -> tuple[SampleTranslation, ...]:
    """The last translation of each sentence at each step; a repeated step counts once."""
    samples: dict[tuple[int, str], SampleTranslation] = {}
    if path.is_file():
        for line in read_json_lines(path, missing):
            if number_or_none(line.get("step")) is not None:
                sample = parse_leniently(SampleTranslation, line)
                samples[sample.step, sample.source] = sample
    return tuple(samples.values())


def is_abandoned(folder: RunFolder, hosts: Sequence[str]) -> bool:
    """Whether no process holds a run any more, as is known of one on this machine alone."""
    return set(hosts) == {socket.gethostname()} and is_held_here(folder.path) is False


def _state(
    folder: RunFolder,
    history: History,
    machines: tuple[Machine, ...],
    is_saved: bool,
    now: float,
) -> State:
    """Tell from the last lines how the run stands."""
    if not history.attempts and not len(history.train):
        return "lost" if is_saved else "not started"
    if history.end is not None:
        return "finished" if history.end.is_finish else "stopped"
    newest = [history.last_time, *(machine.time[-1] for machine in machines if len(machine))]
    # A slow run is silent for longer than a fast one.
    longest_step = float(np.nanmax(history.train.seconds, initial=0.0))
    allowed = max(SILENCE.value, 3 * longest_step)
    if is_abandoned(folder, history.attempt.began.hosts if history.attempt else ()):
        allowed = SHORTEST_GAP.value
    return "running" if now - max(newest) <= allowed else "crashed"


def _oddities(history: History) -> list[str]:
    """What a reader should know before trusting the numbers."""
    notices = _losses_without_number(history) + _course_of_events(history)
    notices += _outliers(history.train)
    if not history.evaluations:
        notices.append("There is no evaluation: quality is unknown")
    if len(history.train) and history.calibration is None:
        notices.append(
            "metrics.jsonl has no calibration line: compute-only time and peak compute are unknown"
        )
    several_machines = any(len(set(one.began.hosts)) > 1 for one in history.attempts)
    if several_machines and not history.links:
        notices.append("metrics.jsonl has no link line: the network's capacity was not measured")
    return notices


def _losses_without_number(history: History) -> list[str]:
    notices = []
    train = history.train
    no_number = ~np.isfinite(train.loss)
    if no_number.any():
        first = int(train.step[np.argmax(no_number)])
        notices.append(
            f"The training loss is NaN or infinite at {int(no_number.sum()):,} of {len(train):,} "
            f"steps, first at step {first:,}"
        )
    skipped = int(np.nansum(train.skipped))
    if skipped:
        notices.append(f"{plural(skipped, 'step')} skipped because a gradient was not finite")
    for evaluations in history.evaluations:
        bad = int((~np.isfinite(evaluations.loss)).sum())
        if bad:
            notices.append(
                f"{bad:,} of {len(evaluations):,} evaluations of {evaluations.name} have a NaN "
                "or infinite loss and are left out"
            )
    return notices


def _outliers(train: TrainSteps) -> list[str]:
    """A step or two that took so long that every mean speaks of them."""
    place = np.arange(len(train)) - np.searchsorted(train.attempt, train.attempt)
    steady = train.take((place >= WARM_UP_STEPS.value) & np.isfinite(train.seconds))
    if len(steady) < 2 * STEADY_STEPS_NEEDED.value or not steady.seconds.any():
        return []
    share, median = steady.seconds / steady.seconds.sum(), float(np.median(steady.seconds))
    is_long = (share > MUCH_ELSEWHERE.value) & (steady.seconds > OUTLIER.value * median)
    if is_long.sum() > 2:
        return []
    return [
        f"Step {step:,.0f} took {in_time(seconds)}, {in_percent(part)} of all time in steps, where "
        f"half of them took under {in_time(median)}: means include it"
        for step, seconds, part in zip(
            steady.step[is_long], steady.seconds[is_long], share[is_long], strict=True
        )
    ]


_AGAIN = {"start": "started again", "resume": "resumed", "restart": "restarted"}


def _course_of_events(history: History) -> list[str]:
    """Where the run began again, and what failed on the way."""
    notices = []
    again = [one for number, one in enumerate(history.attempts) if number or one.kind != "start"]
    if again:
        steps = ", ".join(f"{one.step:,}" for one in again[:_MOST_NAMED])
        more = " …" if len(again) > _MOST_NAMED else ""
        where = "from step" if len(again) == 1 else "from steps"
        verb = "counts" if len(history.lost) == 1 else "count"
        vain = f"{plural(len(history.lost), 'step')} had to be repeated and {verb} as time only"
        times = {1: "once", 2: "twice"}.get(len(again), f"{len(again):,} times")
        began = " or ".join(dict.fromkeys(_AGAIN[one.kind] for one in again))
        notices.append(
            f"The run was {began} {times} ({where} {steps}{more}); "
            f"{vain if len(history.lost) else 'nothing was lost'}"
        )
    own, all_steps = len(history.latest_steps), len(history.train)
    if own < all_steps:
        notices.append(
            "The workers changed during the run: answers on the network, peak compute and "
            f"predictions use only the {own:,} of {all_steps:,} steps with the latest workers"
        )
    restarts = [
        (number, one) for number, one in enumerate(history.attempts, 1) if one.kind == "restart"
    ]
    for number, one in restarts[:_MOST_NAMED]:
        tried = [steps.step[steps.attempt == number - 1] for steps in (history.train, history.lost)]
        reached = int(max((steps.max() for steps in tried if len(steps)), default=one.step))
        notices.append(
            f"It was restarted at step {reached:,}, from step {one.step:,}: "
            f"{one.began.reason or 'the log does not say why'}"
        )
    notices += [
        f"The checkpoint of step {write.step:,} could not be written"
        f"{f' on {write.event.host}' if write.event.host else ''}: {write.event.reason}"
        for write in history.failed_checkpoints[:_MOST_NAMED]
    ]
    return notices
