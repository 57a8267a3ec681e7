"""Loads a run folder, be the run finished, alive or dead; only reads files."""

import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np

from dragoman.errors import UserError
from dragoman.report.checkpoint_index import CheckpointIndex, read_checkpoints
from dragoman.report.history import History, read_history
from dragoman.report.json_lines import read_json, read_json_lines
from dragoman.report.machines import Machine, read_machines
from dragoman.report.records import Evaluations, Life
from dragoman.report.thresholds import SILENCE
from dragoman.report.wording import plural

State = Literal["finished", "stopped", "running", "crashed", "not started"]


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
        """The latest start, resume or restart."""
        return self.history.lives[-1] if self.history.lives else None

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
        table = self.settings.get(section)
        return table.get(name) if isinstance(table, dict) else None


def load_evidence(run: Path, now: float) -> Evidence:
    """Read a run folder; `now` tells a live run from a dead one."""
    if not run.is_dir():
        raise UserError(f"{run}: no such run folder")
    if not any((run / name).exists() for name in ("metrics.jsonl", "config.toml")):
        raise UserError(f"{run} is not a run folder: it has neither metrics.jsonl nor config.toml")
    missing: list[str] = []
    history = read_history(run / "metrics.jsonl", missing)
    hosts = list(dict.fromkeys(host for life in history.lives for host in life.hosts))
    interfaces = {link.hosts[0]: link.interface for link in history.links if link.hosts}
    machines = read_machines(run / "monitor", hosts, interfaces, missing)
    provenance = read_json(run / "provenance.json", missing)
    settings = _read_settings(run / "config.toml", missing)
    checkpoints = read_checkpoints(run / "checkpoints", missing)
    samples = _read_samples(run / "samples.jsonl", missing)
    missing += _gaps_in_history(history)
    return Evidence(
        run=run,
        name=str(provenance.get("run") or run.resolve().name),
        state=_state(history, machines, now),
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


def _state(history: History, machines: tuple[Machine, ...], now: float) -> State:
    """Tell from the last lines how the run stands."""
    if not history.lives and not len(history.train):
        return "not started"
    if history.stop is not None:
        return "stopped" if history.stop.reason in ("error", "signal") else "finished"
    newest = [history.last_time, *(machine.time[-1] for machine in machines if len(machine))]
    # A slow run is silent for longer than a fast one.
    longest_step = float(np.nanmax(history.train.seconds, initial=0.0))
    alive = now - max(newest) <= max(SILENCE.value, 3 * longest_step)
    return "running" if alive else "crashed"


def _gaps_in_history(history: History) -> list[str]:
    """What a reader should know before trusting the numbers."""
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
        notices.append(f"{skipped:,} steps were skipped: a gradient was not finite")
    for evaluations in history.evaluations:
        bad = int((~np.isfinite(evaluations.loss)).sum())
        if bad:
            notices.append(
                f"{bad:,} of {len(evaluations):,} evaluations of {evaluations.name} have a loss "
                "that is not a number; they are left out"
            )
    if not history.evaluations:
        notices.append("There is no evaluation: nothing can be said about quality")
    again = [life for life in history.lives if life.kind != "start"]
    if again:
        steps = ", ".join(f"{life.step:,}" for life in again[:8])
        more = " …" if len(again) > 8 else ""
        lost = len(history.lost)
        notices.append(
            f"The run went on from a checkpoint {plural(len(again), 'time')} (at step {steps}"
            f"{more}); "
            + (
                f"{plural(lost, 'step')} made in vain count as time only"
                if lost
                else "nothing lost"
            )
        )
    if len(train) and history.calibration is None:
        notices.append("There is no calibration line: compute-only time and peak are not known")
    several_machines = any(len(set(life.hosts)) > 1 for life in history.lives)
    if several_machines and not history.links:
        notices.append("There is no link line: the capacity of the network was not measured")
    failures = [write for write in history.checkpoints if write.failure]
    notices += [
        f"The checkpoint of step {write.step:,} could not be written: {write.failure}"
        for write in failures[:5]
    ]
    return notices
