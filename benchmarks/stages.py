"""The commands of a benchmark, side by side where they can be, and none of them twice.

What ends well is noted, with what it said. The same benchmark, given again, goes on with what is
missing: a training with its last checkpoint, a text with the parts that are not there.
"""

import json
import re
import subprocess
import sys
import tarfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

SECONDS_BETWEEN_LOOKS = 0.2
SECONDS_TO_STOP = 30
# What is small and worth taking home, beside logs and configs.
KEPT = ("*.toml", "*.md", "*.jsonl", "logs/*.log", "runs/*/metrics.jsonl", "*/augment.json")
SCORE = re.compile(r"^(\S+): .* pairs|^  BLEU  (\S+)   95% (\S+) to (\S+)", re.MULTILINE)


@dataclass(frozen=True)
class Stage:
    """A command, and those that must have ended before."""

    name: str
    command: tuple[str, ...]
    after: tuple[str, ...]
    is_training: bool


@dataclass
class Running:
    """A command under way."""

    stage: Stage
    process: subprocess.Popen[bytes]
    begun: float = field(default_factory=time.monotonic)

    @property
    def seconds(self) -> float:
        """Since its start."""
        return time.monotonic() - self.begun


@dataclass
class Stages:
    """All commands of a benchmark, whose files lie in one folder."""

    folder: Path
    trainings_at_once: int
    home: Path | None = None  # Of a packed file of all that is small, renewed with every stage.
    _stages: list[Stage] = field(default_factory=list)
    _running: list[Running] = field(default_factory=list)

    def add(
        self, name: str, *words: str | Path, after: Sequence[str] = (), is_training: bool = False
    ) -> str:
        """Plan a dragoman command; those planned first start first."""
        command = (sys.executable, "-m", "dragoman", *map(str, words))
        self._stages.append(Stage(name, command, tuple(after), is_training))
        return name

    def add_model(self, name: str, overrides: Sequence[str] = (), after: Sequence[str] = ()) -> str:
        """Plan to prepare the corpus of NAME.toml and to train on it."""
        config = self.folder / f"{name}.toml"
        prepared = self.add(f"prepare-{name}", "prepare", config, *overrides, after=after)
        words = ["train", str(config), "--run", self.run_of(name), *overrides]
        return self.add(f"train-{name}", *words, after=[prepared], is_training=True)

    def run_of(self, name: str) -> str:
        """Where a model's run lies."""
        return str(self.folder / "runs" / name)

    def scores(self, name: str) -> dict[str, tuple[float, float, float]]:
        """BLEU with its interval, by set, of an evaluation; nothing if it is not there yet."""
        if name not in self._done():
            return {}
        found = SCORE.findall(self._log(name).read_text(encoding="utf-8", errors="replace"))
        return {
            named[0]: (float(bleu[1]), float(bleu[2]), float(bleu[3]))
            for named, bleu in zip(found[::2], found[1::2], strict=True)
        }

    def seconds(self, name: str) -> str:
        """What a stage took in all, with whatever ran beside it; nothing if it is not done."""
        took = sum(line["seconds"] for line in self._notes() if line["stage"] == name)
        return f"{took:.0f}" if name in self._done() else ""

    def run_all(self, minutes: float, table: Callable[[], str]) -> None:
        """Run what is missing, for so long at most, and print the table of what is there."""
        (self.folder / "logs").mkdir(parents=True, exist_ok=True)
        end, failed = time.monotonic() + 60 * minutes, set[str]()
        try:
            while time.monotonic() < end and (self._start_more(failed) or self._running):
                for one in [one for one in self._running if one.process.poll() is not None]:
                    self._running.remove(one)
                    self._note(one, "failed" if one.process.returncode else "done", table)
                    if one.process.returncode:
                        failed.add(one.stage.name)
                time.sleep(SECONDS_BETWEEN_LOOKS)
        finally:
            self._stop(table)
        print(table(), flush=True)
        left = [one.name for one in self._stages if one.name not in self._done()]
        if left:
            sys.exit(f"not done: {', '.join(left)}; the same command goes on")

    def _start_more(self, failed: set[str]) -> bool:
        """Start what nothing holds up; tell whether anything was started."""
        done, begun = self._done(), {one.stage.name for one in self._running}
        trainings = sum(one.stage.is_training for one in self._running)
        ready = [
            one
            for one in self._stages
            if one.name not in done | begun | failed and done.issuperset(one.after)
        ]
        started = False
        for stage in ready:
            if stage.is_training and trainings >= self.trainings_at_once:
                continue
            trainings += stage.is_training
            with open(self._log(stage.name), "wb") as log:
                process = subprocess.Popen(stage.command, stdout=log, stderr=log, cwd=self.folder)
            self._running.append(Running(stage, process))
            started = True
        return started

    def _stop(self, table: Callable[[], str]) -> None:
        """Let trainings save what they have, when the time is up."""
        for one in self._running:
            one.process.terminate()
        last = time.monotonic() + SECONDS_TO_STOP
        for one in self._running:
            try:
                one.process.wait(max(0.1, last - time.monotonic()))
            except subprocess.TimeoutExpired:
                one.process.kill()
            self._note(one, "stopped", table)
        self._running.clear()

    def _note(self, one: Running, how: str, table: Callable[[], str]) -> None:
        name, seconds = one.stage.name, round(one.seconds, 1)
        print(f"{name}: {how} after {seconds} s", flush=True)
        if how == "failed":
            said = self._log(name).read_text(encoding="utf-8", errors="replace")
            print(said[-2_000:], flush=True)
        with open(self.folder / "stages.jsonl", "a") as file:
            file.write(json.dumps({"stage": name, "ended": how, "seconds": seconds}) + "\n")
        (self.folder / "table.md").write_text(table())
        if self.home:
            with tarfile.open(self.home, "w:gz") as packed:
                for pattern in KEPT:
                    for path in sorted(self.folder.glob(pattern)):
                        packed.add(path, path.relative_to(self.folder))

    def _log(self, name: str) -> Path:
        return self.folder / "logs" / f"{name}.log"

    def _notes(self) -> list[dict[str, Any]]:
        path = self.folder / "stages.jsonl"
        return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []

    def _done(self) -> set[str]:
        return {str(line["stage"]) for line in self._notes() if line["ended"] == "done"}


def cell(score: tuple[float, float, float] | None) -> str:
    """A score in a table; empty while it is missing."""
    return "" if score is None else f"{score[0]:.2f} ({score[1]:.2f} to {score[2]:.2f})"
