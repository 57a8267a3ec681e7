"""Start a run folder, or go on with the one that is there."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path

from dragoman.config import SCHEDULES_WITH_END, Config, CorpusSettings, ParallelText
from dragoman.config_file import dump_config, flatten, load_saved_config, settings_of
from dragoman.corpus.rows import Position
from dragoman.corpus.store import PreparedCorpus
from dragoman.documents import parse
from dragoman.errors import UserError
from dragoman.files import write_whole
from dragoman.records import MachineHardware
from dragoman.runs.checkpoint import find_intact, mend_index, read_state
from dragoman.runs.folder import RunFolder
from dragoman.runs.provenance import describe_run, read_provenance, write_provenance
from dragoman.training.stopping import Best

# What a run folder may hold before it has a config.
OPENING = (
    *("checkpoints", "monitor", "source.model", "target.model", "provenance.json"),
    *(".lock", ".seen-*", ".source.model.*", ".target.model.*"),
    *(".provenance.json.*", ".config.toml.*"),
)


@dataclass
class Progress:
    """How far a run has come; saved with every checkpoint."""

    step: int = 0
    epoch: float = 0.0
    position: Position = field(default_factory=Position)
    best: Best = field(default_factory=Best)
    skipped_in_a_row: int = 0
    seconds: float = 0.0
    rows_per_device: int = 0
    device: str = ""  # The kind on which so many rows fit.
    owes_evaluation: bool = False  # At this step; a signal came before it.


def check_corpus_settings(config: Config, corpus: PreparedCorpus) -> None:
    """Refuse a corpus that was prepared with other settings than the config's."""
    made_with = corpus.manifest.settings
    before, now = made_with.corpus, config.corpus
    different = [
        f"corpus.{key} = {getattr(now, key)!r}, not {getattr(before, key)!r}"
        for key in ("source_language", "target_language", "seed")
        if getattr(now, key) != getattr(before, key)
    ]
    different += [
        f"{section}.{key} = {value!r}, not {getattr(getattr(made_with, section), key)!r}"
        for section in ("cleaning", "vocabulary")
        for key, value in vars(getattr(config, section)).items()
        if getattr(getattr(made_with, section), key) != value and not key.endswith("model")
    ]
    if different:
        raise UserError(
            f"{corpus.folder} was prepared with other settings; the config now says "
            f"{'; '.join(different)}; run `dragoman prepare` again"
        )
    texts_before = texts_of(before)
    for name, files in texts_of(now).items():
        if files != texts_before[name]:
            raise UserError(
                f"{corpus.folder} was prepared from other text: corpus.{name} was "
                f"{', '.join(texts_before[name]) or 'empty'}; the config now says "
                f"{', '.join(files) or 'nothing'}; run `dragoman prepare` again"
            )


def texts_of(corpus: CorpusSettings) -> dict[str, list[str]]:
    """Names of the files of each kind of text; where they lie may differ between machines."""

    def names(text: ParallelText) -> list[str]:
        return [Path(path).name for path in (text.source, text.target, text.tsv) if path]

    return {
        "train": [name for text in corpus.train for name in names(text)],
        **{
            kind: [
                f"{set_name}: {name}" for set_name, text in named.items() for name in names(text)
            ]
            for kind, named in (("validation", corpus.validation), ("test", corpus.test))
        },
    }


def refuse_other_things(run: RunFolder) -> None:
    """Refuse a folder that is neither a run nor what a kill left of the opening of one."""
    if run.exists() or not run.path.exists():
        return
    for path in run.path.iterdir():
        is_ours = any(path.match(pattern) for pattern in OPENING)
        if not is_ours or (path.is_dir() and any(path.iterdir())):
            raise UserError(f"{run.path} is not empty and holds no run; choose another --run")


def open_run(
    run: RunFolder, config: Config, corpus: PreparedCorpus, parameters: int, tensors: int
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
        write_provenance(run, describe_run(run, corpus.folder, manifest, parameters, tensors))
    # Last: a folder with a config is a run.
    write_whole(run.config, dump_config(config).encode())


def refuse_changes(run: RunFolder, config: Config, corpus: PreparedCorpus) -> None:
    """A resumed run must be the run it was, but for the settings that may change."""
    before, now = flatten(load_saved_config(run.config)), flatten(config)
    fixed = fixed_settings()
    if config.schedule.kind in SCHEDULES_WITH_END:
        fixed.append("training.steps")
    changed = [
        f"{name} was {before[name]!r}, is {now[name]!r}"
        for name in fixed
        if before[name] != now[name]
    ]
    identity = read_provenance(run).corpus.identity
    if identity != corpus.identity:
        changed.append(f"the prepared corpus was {identity[:12]}, is {corpus.identity[:12]}")
    if changed:
        raise UserError(
            f"{run.path} cannot be resumed with other settings: {'; '.join(changed)}. "
            "Change them back, or start a new run with --run"
        )


def fixed_settings() -> list[str]:
    """Settings that make a run what it is; the corpus is compared by its checksum instead."""
    return [
        f"{section.name}.{item.name}"
        for section, kind in settings_of(Config)
        if section.name not in ("corpus", "cleaning", "vocabulary")
        for item, _ in settings_of(kind)
        if not item.metadata["may_change"]
    ]


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
