"""The run folder on every machine: made, or found again, and all workers brought to its state.

All workers know the same weights and the same history, so that the first worker of every machine
can write them down without any traffic, and any machine can be lost. Machines that share a file
system write once.
"""

import hashlib
import time
import uuid
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from dataclasses import asdict, dataclass, replace

from dragoman.cluster.agreement import Facts, agree
from dragoman.cluster.control_store import PART_OF_TIMEOUT, Attempt
from dragoman.cluster.processes import Workers, host_name
from dragoman.config import SCHEDULE_TRAITS, Config
from dragoman.config_file import dump_config, flatten, load_saved_config, sections
from dragoman.corpus.store import PreparedCorpus
from dragoman.documents import encode, items_of, parse
from dragoman.errors import UserError
from dragoman.files import LOCK, exclusive, write_whole
from dragoman.model.transformer import count_parameters, load_weights
from dragoman.records import MachineHardware, ParentRun
from dragoman.runs.checkpoint import find_intact, has_intact, mend_index, read_index, read_state
from dragoman.runs.checkpoint_index import OPTIMIZER, WEIGHTS
from dragoman.runs.folder import RunFolder, lacking
from dragoman.runs.provenance import (
    describe_machine,
    describe_run,
    read_provenance,
    write_provenance,
)
from dragoman.runs.tensors import read_tensors
from dragoman.training.parent import parent_everywhere, share_parent
from dragoman.training.parts import Parts
from dragoman.training.progress import Progress
from dragoman.training.recorder import Recorder

# What a run folder may hold before it has a config.
OPENING = (
    *("checkpoints", "monitor", "source.model", "target.model", "provenance.json"),
    *(LOCK, ".seen-*", ".source.model.*", ".target.model.*"),
    *(".provenance.json.*", ".config.toml.*"),
)


@dataclass(frozen=True)
class Opened:
    """A run that all workers have open."""

    recorder: Recorder
    progress: Progress
    attempt: Attempt | None  # None without a launcher.
    checkpoint: str | None  # The name of the one to go on from.
    writers: list[int]  # Who writes the run folder that each worker sees, by rank.
    clock_leads: list[float]  # Seconds that each worker's clock is ahead of worker 0's.


def open_everywhere(
    config: Config,
    run: RunFolder,
    parts: Parts,
    workers: Workers,
    attempt: Attempt | None,
    at_end: ExitStack,
) -> Opened:
    """Open the run folder on every machine and load the latest checkpoint into everyone."""
    writers = choose_writers(run, workers)
    writes = writers[workers.rank] == workers.rank
    warnings: list[str] = []
    if writes:
        refuse_other_things(run)
        is_restart = attempt is not None and attempt.number > 0
        patience = PART_OF_TIMEOUT * config.distributed.timeout_seconds
        hold(run, at_end, patience if is_restart else 0.0)
    # Before anything is written: a start that is refused leaves no run behind. Checkpoints are
    # sent to all, so that weights which are alike now stay so.
    facts = Facts.collect(config, parts.corpus.identity, parts.model.parameters())
    clock_leads = agree(facts, workers)
    parent = parent_everywhere(config, run, parts, workers)
    identity = agree_on_identity(run, workers, writes)
    found = None
    if writes:
        tensors = len(list(parts.model.parameters()))
        described = parent.described if parent else None
        parameters = count_parameters(parts.model)
        open_run(run, config, parts.corpus, parameters, tensors, described, identity)
        found = find_progress(run, warnings.append)
    source = newest(run, found, workers)
    progress, checkpoint = Progress(), None
    if source is not None:
        progress, checkpoint = load_everywhere(config, run, parts, workers, found, source)
    elif parent:
        share_parent(parent, parts, workers)
        # What the first weights are worth is what all later ones are compared with.
        progress.owes_evaluation = True
    share_history(run, workers, source, writes)
    told = workers.gather_json([host_name(), encode(describe_machine())])
    if writes:
        note_machines(run, {host: parse(MachineHardware, machine) for host, machine in told})
    recorder = Recorder(run, config, workers, writes, progress.step)
    at_end.callback(recorder.close)
    for warning in warnings:
        recorder.say(warning)
    return Opened(recorder, progress, attempt, checkpoint, writers, clock_leads)


def load_everywhere(
    config: Config,
    run: RunFolder,
    parts: Parts,
    workers: Workers,
    found: "Found | None",
    source: int,
) -> tuple[Progress, str]:
    """Give every worker the checkpoint that the source's machine has."""
    model, step = parts.model, parts.step
    mine = [found.name, asdict(found.progress), found.optimizer] if found else None
    name, progress, numbers = workers.broadcast(mine, source)
    saved = run.checkpoints / name
    has_own = has_intact(run.checkpoints, name)
    weights, moments = dict(model.named_parameters()), step.tensors()
    if has_own:
        load_weights(model, read_tensors(saved / WEIGHTS, weights))
        moments = read_tensors(saved / OPTIMIZER, moments)
    checksums = workers.gather_json(_weights_checksum(run, name) if has_own else None)
    all_have_it = has_own and len(set(checksums)) == 1
    if not all_have_it:
        # Someone lacks it, or has another one: the source's is sent to all.
        workers.broadcast_tensors((value.data for value in model.parameters()), source)
    step.weights_changed()
    if not all_have_it:
        step.load(moments if workers.rank == source else step.tensors(), numbers)
        workers.broadcast_tensors(step.tensors().values(), source)
    # With local steps workers have moments of their own, which their folder remembers.
    if has_own and (all_have_it or config.distributed.sync == "local"):
        step.load(moments, read_state(run.checkpoints, name).optimizer)
    return parse(Progress, progress), name


def _weights_checksum(run: RunFolder, name: str) -> str:
    entry = read_index(run.checkpoints).named(name)
    assert entry is not None, "it was found intact"
    return entry.files[WEIGHTS].sha256


def refuse_other_things(run: RunFolder) -> None:
    """Refuse a folder that is neither a run nor what a kill left of the opening of one."""
    if run.exists() or not run.path.exists():
        return
    for path in run.path.iterdir():
        is_ours = any(path.match(pattern) for pattern in OPENING)
        if not is_ours or (path.is_dir() and any(path.iterdir())):
            if run.metrics.is_file():
                raise UserError(f"{run.path} {lacking(run)}, or choose another --run")
            raise UserError(f"{run.path} is not empty and is not a run; choose another --run")


def open_run(
    run: RunFolder,
    config: Config,
    corpus: PreparedCorpus,
    parameters: int,
    tensors: int,
    parent: ParentRun | None = None,
    identity: str = "",
) -> None:
    """Create the run folder, or check that the one there is the same run."""
    is_new = not run.exists()
    if not is_new:
        refuse_changes(run, config, corpus)
    for folder in (run.path, run.checkpoints, run.monitor):
        folder.mkdir(parents=True, exist_ok=True)
    names = corpus.manifest.vocabulary.files
    for name, path in zip((names[0], names[-1]), run.subwords, strict=True):
        if is_new or not path.exists():
            write_whole(path, corpus.read(name))
    if is_new:
        manifest = corpus.manifest.to_json()
        described = describe_run(
            run, corpus.folder, manifest, parameters, tensors, parent, identity
        )
        write_provenance(run, described)
    # Last: a folder with a config is a run.
    write_whole(run.config, dump_config(config).encode())


def agree_on_identity(run: RunFolder, workers: Workers, writes: bool) -> str:
    """What tells this run from others, if it is not new on all machines; refuse two in one."""
    own = read_provenance(run).identity if writes and run.exists() else None
    new = workers.broadcast(uuid.uuid4().hex)
    known = dict[str, str]()  # Hosts that have begun it, by identity.
    for host, identity in zip(workers.hosts, workers.gather_json(own), strict=True):
        if identity is not None:
            known.setdefault(identity, host)
    several = [identity for identity in known if identity]
    if len(several) > 1:
        first, second = (known[identity] for identity in several[:2])
        raise UserError(
            f"{run.path} on {first} and on {second} are different runs of one name: choose another "
            "--run, or move one of them away"
        )
    return next(iter(several or known), new)


def refuse_changes(run: RunFolder, config: Config, corpus: PreparedCorpus) -> None:
    """A resumed run must be the run it was, but for the settings that may change."""
    before, now = flatten(load_saved_config(run.config)), flatten(config)
    fixed = fixed_settings()
    if SCHEDULE_TRAITS[config.schedule.kind].ends_with_run:
        fixed.append("training.steps")
    changed = [
        f"{name} was {before[name]!r}, is now {now[name]!r}"
        for name in fixed
        if before[name] != now[name]
    ]
    weights = [[text["weight"] for text in one["corpus.train"]] for one in (before, now)]
    if weights[0] != weights[1]:
        changed.append(f"the weights of corpus.train were {weights[0]}, are now {weights[1]}")
    identity = read_provenance(run).corpus.identity
    if identity != corpus.identity:
        changed.append(f"the prepared corpus was {identity[:12]}, is now {corpus.identity[:12]}")
    if changed:
        raise UserError(
            f"{run.path} cannot be resumed with different settings: {'; '.join(changed)}. Change "
            "them back, or start a new run with --run"
        )


def fixed_settings() -> list[str]:
    """Settings that make a run what it is; the corpus is compared by its checksum instead."""
    fixed = [
        f"{section.name}.{item.name}"
        for section, kind in sections()
        if section.name not in ("corpus", "cleaning", "vocabulary")
        for item, _ in items_of(kind)
        if not item.metadata["may_change"]
    ]
    return [*fixed, "corpus.temperature", "stages"]


@dataclass(frozen=True)
class Found:
    """The latest intact checkpoint of a run folder."""

    name: str
    progress: Progress
    optimizer: Mapping[str, float]  # The few numbers beside its moments.


def find_progress(run: RunFolder, warn: Callable[[str], None]) -> Found | None:
    """Find the latest checkpoint that is intact; damaged ones are named and passed over."""
    mend_index(run.checkpoints, warn)
    entry = find_intact(run.checkpoints, warn)
    if entry is None:
        return None
    state = read_state(run.checkpoints, entry.name)
    return Found(entry.name, parse(Progress, state.progress, "progress"), state.optimizer)


def note_machines(run: RunFolder, machines: Mapping[str, MachineHardware]) -> None:
    """Add the machines that take part to the run's provenance."""
    provenance = read_provenance(run)
    machines = {**provenance.machines, **machines}
    write_provenance(run, replace(provenance, machines=machines))


def choose_writers(run: RunFolder, workers: Workers) -> list[int]:
    """Who writes the run folder that each worker sees, by rank."""
    if workers.count == 1:
        return [0]
    token = workers.broadcast(uuid.uuid4().hex)
    prefix = f".seen-{token}-"
    mark = run.path / f"{prefix}{workers.rank}"
    if workers.is_first_on_host:
        run.path.mkdir(parents=True, exist_ok=True)
        try:
            mark.touch()
        except OSError as error:
            error.filename = str(run.path)  # The mark has another name every time.
            raise
    try:
        workers.barrier()  # All marks are there before anyone looks,
        ranks = [int(path.name.removeprefix(prefix)) for path in run.path.glob(f"{prefix}*")]
        workers.barrier()  # and everyone has looked before any is removed.
    finally:
        if workers.is_first_on_host:
            mark.unlink(missing_ok=True)
    return [int(writer) for writer in workers.gather_number(min(ranks))]


def hold(run: RunFolder, at_end: ExitStack, patience_seconds: float) -> None:
    """Keep every other process from writing the run folder, for as long as this one does.

    Patience is for the lock of a machine that was lost, which a file server keeps for a while.
    """
    run.path.mkdir(parents=True, exist_ok=True)
    deadline = time.monotonic() + patience_seconds
    while True:
        try:
            at_end.enter_context(exclusive(run.path, "training it"))
            return
        except UserError:
            if time.monotonic() >= deadline:
                raise
            time.sleep(1.0)


def newest(run: RunFolder, found: Found | None, workers: Workers) -> int | None:
    """Rank of the worker whose machine has the latest checkpoint; None if nobody has one.

    Starting again would delete those that are damaged, which someone may be able to restore.
    """
    steps = workers.gather_number(found.progress.step if found else -1)
    if max(steps) >= 0:
        return steps.index(max(steps))
    is_damaged = any(run.checkpoints.glob("step-*/"))
    if any(workers.gather_number(is_damaged)):
        raise UserError(
            f"no checkpoint in {run.checkpoints} is intact; restore one of them, "
            "or start a new run with --run"
        )
    return None


def share_history(run: RunFolder, workers: Workers, source: int | None, writes: bool) -> None:
    """Bring the histories of all machines up to the source's; if there is none, to the longest."""
    if workers.count == 1:
        return
    if source is None:
        size = run.metrics.stat().st_size if writes and run.metrics.exists() else -1
        sizes = workers.gather_number(size)
        source = sizes.index(max(sizes))
    for path in (run.metrics, run.samples, run.before):
        mine = path.read_bytes() if (writes or workers.rank == source) and path.exists() else b""
        digests = workers.gather_json([writes, hashlib.sha256(mine).hexdigest()])
        if all(digest == digests[source][1] for is_writer, digest in digests if is_writer):
            continue
        content = workers.broadcast_bytes(mine, source)
        if writes and workers.rank != source:
            write_whole(path, content)
