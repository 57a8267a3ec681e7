"""Loads a run folder, be the run finished, alive or dead; only reads files."""

import math
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np

from dragoman.errors import UserError
from dragoman.report.evidence.checkpoints import CheckpointIndex, read_checkpoints
from dragoman.report.evidence.history import History, read_history
from dragoman.report.evidence.json_lines import read_json, read_json_lines, table_of, whole_number
from dragoman.report.evidence.machines import Machine, read_machines
from dragoman.report.evidence.records import Evaluations, Life
from dragoman.report.thresholds import SILENCE
from dragoman.report.wording import plural
from dragoman.runs.folder import RunFolder

State = Literal["finished", "stopped", "running", "crashed", "not started", "lost"]

_MOST_NAMED = 8  # Of events of one kind.


@dataclass(frozen=True)
class Sample:
    """A fixed sentence, translated at one evaluation."""

    step: int
    source: str
    reference: str
    translation: str


@dataclass(frozen=True)
class Evidence:
    """Everything that is known about a run."""

    run: Path
    name: str
    state: State
    history: History
    machines: tuple[Machine, ...]
    settings: Mapping[str, Any]  # config.toml as it stands.
    provenance: Mapping[str, Any]
    checkpoints: CheckpointIndex
    samples: tuple[Sample, ...]
    missing: tuple[str, ...]  # What is damaged, absent or odd, in sentences.

    @property
    def life(self) -> Life | None:
        """The latest start, resume or restart that made steps, or else the latest."""
        return self.history.life

    @property
    def hosts(self) -> tuple[str, ...]:
        """The machines of the latest life, worker 0's first."""
        return tuple(dict.fromkeys(self.life.hosts)) if self.life else ()

    @property
    def workers(self) -> int:
        """Workers of the latest life."""
        return self.life.workers if self.life else 1

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
        return max(1, int(self.setting("distributed", "local_steps") or 1))

    @property
    def local_fragments(self) -> int:
        """Parts of an exchange that travel one after the other."""
        if self.local_steps == 1:
            return 1
        return max(1, int(self.setting("distributed", "local_fragments") or 1))

    @property
    def goodput(self) -> float:
        """Bytes per second that the slowest link carries, infinite if none was measured."""
        measured = (link.goodput_bytes_per_second for link in self.history.links)
        return min((goodput for goodput in measured if goodput), default=math.inf)

    @property
    def latency(self) -> float:
        """Seconds of the slowest link."""
        return max((link.latency_seconds or 0.0 for link in self.history.links), default=0.0)

    @property
    def parameters(self) -> int | None:
        """Size of the model."""
        parameters = table_of(self.provenance.get("model")).get("parameters")
        calibration = self.history.calibration
        if not isinstance(parameters, int) and calibration and calibration.parameters:
            parameters = int(calibration.parameters)
        return parameters if isinstance(parameters, int) else None

    @property
    def corpus(self) -> Mapping[str, Any]:
        """The copy of the corpus's manifest."""
        return table_of(table_of(self.provenance.get("corpus")).get("manifest"))

    @property
    def guessing_loss(self) -> float:
        """Loss per token of guessing among all words of the vocabulary; infinite if not known."""
        sizes = table_of(self.corpus.get("vocabulary")).get("sizes")
        # That of the target comes last, if there are two.
        words = whole_number(sizes[-1]) if isinstance(sizes, list) and sizes else 0
        return math.log(words) if words > 0 else math.inf


def load_evidence(run: Path, now: float) -> Evidence:
    """Read a run folder; `now` tells a live run from a dead one."""
    if not run.is_dir():
        raise UserError(f"{run}: no such run folder")
    if not RunFolder(run).has_evidence():
        raise UserError(
            f"{run} is not a run folder: it has no metrics.jsonl, config.toml or provenance.json"
        )
    missing: list[str] = []
    history = read_history(run / "metrics.jsonl", missing)
    hosts = list(dict.fromkeys(host for life in history.lives for host in life.hosts))
    interfaces = {link.hosts[0]: link.interface for link in history.links if link.hosts}
    machines = read_machines(run / "monitor", hosts, interfaces, missing)
    provenance = read_json(run / "provenance.json", missing)
    settings = _read_settings(run / "config.toml", missing)
    checkpoints = read_checkpoints(run / "checkpoints", missing)
    if history.checkpoints and not checkpoints.kept:
        written = plural(len(history.checkpoints), "checkpoint")
        missing.append(f"checkpoints/ is empty or missing: the log tells of {written}")
    samples = _read_samples(run / "samples.jsonl", missing)
    missing += _oddities(history)
    return Evidence(
        run=run,
        name=str(provenance.get("run") or run.resolve().name),
        state=_state(history, machines, bool(checkpoints.kept), now),
        history=history,
        machines=machines,
        settings=settings,
        provenance=provenance,
        checkpoints=checkpoints,
        samples=samples,
        missing=tuple(missing),
    )


def _read_settings(path: Path, missing: list[str]) -> dict[str, Any]:
    """The settings as they stand, even of another version of Dragoman."""
    try:
        return tomllib.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        missing.append("config.toml is missing: the settings are not known")
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        missing.append(f"config.toml cannot be read: {error}")
    return {}


def _read_samples(path: Path, missing: list[str]) -> tuple[Sample, ...]:
    """The last translation of each sentence at each step; a repeated step counts once."""
    samples: dict[tuple[int, str], Sample] = {}
    if path.is_file():
        for line in read_json_lines(path, missing):
            step = line.get("step")
            if isinstance(step, int):
                texts = (str(line.get(key, "")) for key in ("source", "reference", "translation"))
                sample = Sample(step, *texts)
                samples[step, sample.source] = sample
    return tuple(samples.values())


def _state(history: History, machines: tuple[Machine, ...], is_saved: bool, now: float) -> State:
    """Tell from the last lines how the run stands."""
    if not history.lives and not len(history.train):
        return "lost" if is_saved else "not started"
    if history.stop is not None:
        return "finished" if history.stop.is_finish else "stopped"
    newest = [history.last_time, *(machine.time[-1] for machine in machines if len(machine))]
    # A slow run is silent for longer than a fast one.
    longest_step = float(np.nanmax(history.train.seconds, initial=0.0))
    alive = now - max(newest) <= max(SILENCE.value, 3 * longest_step)
    return "running" if alive else "crashed"


def _oddities(history: History) -> list[str]:
    """What a reader should know before trusting the numbers."""
    notices = _losses_without_number(history) + _course_of_events(history)
    if not history.evaluations:
        notices.append("There is no evaluation: nothing can be said about quality")
    if len(history.train) and history.calibration is None:
        notices.append("There is no calibration line: compute-only time and peak are not known")
    several_machines = any(len(set(life.hosts)) > 1 for life in history.lives)
    if several_machines and not history.links:
        notices.append("There is no link line: the capacity of the network was not measured")
    return notices


def _losses_without_number(history: History) -> list[str]:
    notices = []
    train = history.train
    no_number = ~np.isfinite(train.loss)
    if no_number.any():
        first = int(train.step[np.argmax(no_number)])
        notices.append(
            f"The training loss is not a number at {int(no_number.sum()):,} of {len(train):,} "
            f"steps, first at step {first:,}"
        )
    skipped = int(np.nansum(train.skipped))
    if skipped:
        notices.append(f"{plural(skipped, 'step')} skipped: a gradient was not finite")
    for evaluations in history.evaluations:
        bad = int((~np.isfinite(evaluations.loss)).sum())
        if bad:
            notices.append(
                f"{bad:,} of {len(evaluations):,} evaluations of {evaluations.name} have a loss "
                "that is not a number; they are left out"
            )
    return notices


def _course_of_events(history: History) -> list[str]:
    """Where the run began again, and what failed on the way."""
    notices = []
    again = [life for number, life in enumerate(history.lives) if number or life.kind != "start"]
    if again:
        steps = ", ".join(f"{life.step:,}" for life in again[:_MOST_NAMED])
        more = " …" if len(again) > _MOST_NAMED else ""
        vain = f"{plural(len(history.lost), 'step')} made in vain count as time only"
        notices.append(
            f"The run was taken up again {plural(len(again), 'time')} (at step {steps}{more}); "
            f"{vain if len(history.lost) else 'nothing lost'}"
        )
    own, all_steps = len(history.latest_steps), len(history.train)
    if own < all_steps:
        notices.append(
            "The workers changed on the way: the network, the share of peak arithmetic and the "
            f"predictions count the {own:,} of {all_steps:,} steps that the latest ones made"
        )
    notices += [
        f"{lost.host or 'A machine'} was lost at step {lost.step:,}: {lost.reason}"
        for lost in history.machines_lost[:_MOST_NAMED]
    ]
    notices += [
        f"The checkpoint of step {write.step:,} could not be written: {write.reason}"
        for write in history.failed_checkpoints[:_MOST_NAMED]
    ]
    return notices
