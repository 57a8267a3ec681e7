"""Faults, and what came of them: the table "Faults" in docs/results.md.

    python benchmarks/faults.py --seed 1 --count 1000

Kills, stops, disks and strangers disturb small runs of two workers at random moments; the same
command is then given until the run is complete, and weights and losses are compared with those of a
run that nothing disturbed. Files of a run, a corpus and an export are damaged, and every command
that reads them is run. Every fault has a number: a seed and a kind make the same faults again, but
for the moment at which a signal meets a process. With --record, the same command goes on after an
interruption. Needs root, iproute2 and openssh-server for disks and machines; --kinds leaves them
out.
"""

import argparse
import os

# Before torch is imported: sums depend on the number of threads, and bits are compared.
os.environ["OMP_NUM_THREADS"] = "1"
os.environ["TORCH_CPP_LOG_LEVEL"] = "ERROR"

import json
import random
import struct
import sys
import tempfile
import time
import traceback
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))

import file_faults
import process_faults
from fault_outcomes import Finding, Outcome
from forked import Template, forking
from machine_faults import HOST_FAULTS, host_stage
from process_faults import disturb

PRIVATE = "DRAGOMAN_FAULTS_MOUNTS"
# How many of each kind there are among a thousand faults.
SHARES: dict[str, dict[str, int]] = {
    "hosts": dict.fromkeys(HOST_FAULTS, 4),
    "stops": {
        "SIGSTOP of an agent": 4,
        "SIGSTOP of a worker": 8,
        "SIGSTOP and SIGCONT of the launcher": 8,
    },
    "kills": {
        "kill -9 of the launcher": 20,
        "kill -9 of an agent": 20,
        "kill -9 of a worker": 20,
    },
    "disks": {"full disk": 8, "read-only disk": 6},
    "strangers": {"strangers at the ports": 6},
    "files": {
        "config.toml": 80,
        "provenance.json": 90,
        "metrics.jsonl": 100,
        "samples.jsonl": 40,
        "monitor": 50,
        "checkpoints.json": 90,
        "state.json": 80,
        "weights": 60,
        "optimizer": 50,
        "vocabularies": 50,
        "corpus": 110,
        "export": 80,
    },
}
COLUMNS = {
    "identical": Outcome.IDENTICAL,
    "as edited": Outcome.AS_EDITED,
    "refused with one line": Outcome.REFUSED,
    "traceback": Outcome.TRACEBACK,
    "lost": Outcome.LOST,
    "orphan": Outcome.ORPHAN,
    "hang": Outcome.HANG,
}


@dataclass(frozen=True)
class Task:
    """One fault to try."""

    group: str
    kind: str
    number: int  # Among those of its kind.

    def chance(self, seed: int) -> random.Random:
        """Where its randomness comes from."""
        return random.Random(f"{seed}/{self.kind}/{self.number}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--count", type=int, default=1000)
    parser.add_argument("--kinds", nargs="+", choices=list(SHARES), default=list(SHARES))
    parser.add_argument("--record", type=Path, help="a file of what came of each fault")
    parser.add_argument("--lanes", type=int, default=2, help="faults tried at a time")
    arguments = parser.parse_args()
    if {"disks", "hosts"} & set(arguments.kinds) and PRIVATE not in os.environ:
        if os.getuid():
            parser.error("disks and hosts need root; try --kinds kills stops strangers files")
        # What is mounted here is seen by nobody else, and vanishes with this process.
        os.environ[PRIVATE] = "yes"
        os.execvp("unshare", ["unshare", "--mount", sys.executable, *sys.argv])
    start = time.monotonic()
    tasks = list(plan(arguments.kinds, arguments.count))
    done = read_record(arguments.record, tasks)
    tally = Counter((task.kind, outcome) for task, outcome in done.items())
    left = [task for task in tasks if task not in done]
    for task, finding in in_lanes(left, arguments.seed, arguments.lanes):
        tally[task.kind, finding.outcome] += 1
        record(arguments.record, task, finding)
        if finding.outcome > Outcome.REFUSED:
            detail = f"{task.kind} {task.number}: {finding.outcome.name}: {finding.detail}"
            print(detail, file=sys.stderr, flush=True)
        if not tally.total() % 20:
            minutes = (time.monotonic() - start) / 60
            told = f"{tally.total():,} of {len(tasks):,} in {minutes:.0f} min"
            print(told, file=sys.stderr, flush=True)
    print(table(tally))
    sys.exit(any(outcome > Outcome.REFUSED for _, outcome in tally))


def plan(groups: Sequence[str], count: int) -> Iterator[Task]:
    """So many faults, each kind with its share; those that take longest come first."""
    shares = [(group, kind, share) for group in groups for kind, share in SHARES[group].items()]
    whole, before = sum(share for _, _, share in shares), 0
    for group, kind, share in shares:
        first, before = before * count // whole, before + share
        for number in range(before * count // whole - first):
            yield Task(group, kind, number)


def read_record(path: Path | None, tasks: Sequence[Task]) -> dict[Task, Outcome]:
    """What an earlier start of the same command has tried."""
    lines = path.read_text().splitlines() if path and path.exists() else []
    found = {
        (one["kind"], one["number"]): Outcome[one["outcome"]] for one in map(json.loads, lines)
    }
    return {
        task: found[task.kind, task.number] for task in tasks if (task.kind, task.number) in found
    }


def record(path: Path | None, task: Task, finding: Finding) -> None:
    """Keep what came of a fault."""
    if path:
        told = {"outcome": finding.outcome.name, "detail": finding.detail}
        with open(path, "a") as file:
            file.write(json.dumps({"kind": task.kind, "number": task.number, **told}) + "\n")


def in_lanes(tasks: Sequence[Task], seed: int, lanes: int) -> Iterator[tuple[Task, Finding]]:
    """Try all, some at a time: whoever is free takes the next."""
    waiting, more = os.pipe()
    found, tell = os.pipe()
    for lane in range(lanes):
        if not os.fork():
            os.close(more)
            code = 1
            try:
                with tempfile.TemporaryDirectory(prefix=f"faults-{lane}-") as place:
                    work(Path(place), tasks, seed, waiting, tell)
                code = 0
            except BaseException:
                traceback.print_exc()
            finally:
                os._exit(code)
    os.write(more, b"".join(struct.pack("I", number) for number in range(len(tasks))))
    for end in (more, waiting, tell):
        os.close(end)
    with open(found, "rb") as lines:
        while head := lines.read(12):
            number, outcome, length = struct.unpack("III", head)
            detail = lines.read(length).decode()
            yield tasks[number], Finding(Outcome(outcome), detail)
    codes = [os.waitstatus_to_exitcode(os.wait()[1]) for _ in range(lanes)]
    assert not any(codes), "a lane broke down"


def work(place: Path, tasks: Sequence[Task], seed: int, waiting: int, tell: int) -> None:
    """Take tasks until there are none left."""
    with forking() as template, ExitStack() as at_end:
        stages = Stages(place, template, at_end)
        while taken := os.read(waiting, 4):
            (number,) = struct.unpack("I", taken)
            task = tasks[number]
            try:
                finding = stages.trial(task.group)(task.kind, task.chance(seed))
            except AssertionError as error:
                finding = Finding(Outcome.LOST, f"{error}")
            detail = finding.detail.encode()[:3_000]
            os.write(tell, struct.pack("III", number, finding.outcome, len(detail)) + detail)


class Stages:
    """What faults of each group need; made when the first of them comes."""

    def __init__(self, place: Path, template: Template, at_end: ExitStack) -> None:
        self._place, self._template, self._at_end = place, template, at_end
        self._trials: dict[str, Callable[[str, random.Random], Finding]] = {}

    def trial(self, group: str) -> Callable[[str, random.Random], Finding]:
        """Something that tries a kind of this group."""
        stage = group if group in ("files", "hosts") else "processes"
        if stage not in self._trials:
            self._trials[stage] = self._prepare(stage)
        return self._trials[stage]

    def _prepare(self, name: str) -> Callable[[str, random.Random], Finding]:
        place = self._place / name
        if name == "files":
            world = file_faults.build_world(place)
            return lambda kind, chance: file_faults.try_damage(world, kind, chance)
        if name == "hosts":
            hosts = self._at_end.enter_context(host_stage(place, self._template))
            return lambda kind, chance: disturb(hosts, [HOST_FAULTS[kind]], chance)
        stage = process_faults.build_stage(place)
        return lambda kind, chance: process_faults.try_fault(stage, kind, chance)


def table(tally: Counter[tuple[str, Outcome]]) -> str:
    """One row for each kind of fault."""
    kinds = [kind for shares in SHARES.values() for kind in shares]
    rows = [["fault", "tried", *COLUMNS]]
    for kind in [kind for kind in kinds if any(key[0] == kind for key in tally)]:
        counts = [tally[kind, outcome] for outcome in COLUMNS.values()]
        rows.append([kind, str(sum(counts)), *map(str, counts)])
    sums = [sum(int(row[column]) for row in rows[1:]) for column in range(1, len(rows[0]))]
    rows.append(["all", *map(str, sums)])
    lines = [f"| {' | '.join(row)} |" for row in rows]
    return "\n".join([lines[0], "|---" + "|---:" * (len(rows[0]) - 1) + "|", *lines[1:]])


if __name__ == "__main__":
    main()
