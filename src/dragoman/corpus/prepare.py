"""The whole of `dragoman prepare`: raw text -> prepared corpus."""

import json
import os
import re
import shutil
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from hashlib import sha256 as hash_bytes
from pathlib import Path

import numpy as np

from dragoman import __version__
from dragoman.config import CleaningSettings, Config, VocabularySettings
from dragoman.console import say
from dragoman.corpus.clean import FILTERS
from dragoman.corpus.manifest import (
    FORMAT,
    MANIFEST,
    SIDES,
    STAGES,
    Dtype,
    LengthHistogram,
    Manifest,
    PairCounts,
    PreparedFrom,
    SetCounts,
    TextBytes,
    Vocabulary,
    find_damage,
    identity_of,
    read_manifest,
    write_manifest,
)
from dragoman.corpus.passes import (
    LINES_PER_CHUNK,
    CleanText,
    clean_pass,
    encode_pass,
    sample_pass,
)
from dragoman.corpus.store import PairTokens, PairWriter, Shuffler, pack_lines
from dragoman.corpus.subwords import Subwords, load_subwords, train_subwords
from dragoman.corpus.text import TextFiles, normalize, read_pairs, resolve_files
from dragoman.errors import UserError
from dragoman.files import (
    describe_file,
    exclusive,
    flush_folder,
    flush_to_disk,
    naming,
    sha256,
    write_whole,
)

HISTOGRAM_STEP = 8  # Tokens per bar of the length histogram.
BUILDING = ".building"
DATA_FOLDER = re.compile(r"corpus-[0-9a-f]{12}(-repaired)?")  # Nobody else's folders.


@dataclass(frozen=True)
class Inputs:
    """Every file that goes into the corpus."""

    train: list[TextFiles]
    sets: dict[str, dict[str, list[TextFiles]]]  # "validation" and "test", each by name.
    models: list[Path]

    def paths(self) -> list[Path]:
        """All files, in a fixed order."""
        sets = (text for named in self.sets.values() for texts in named.values() for text in texts)
        texts = [path for text in (*self.train, *sets) for path in text.paths]
        return [*texts, *self.models]


def prepare(config: Config, processes: int | None = None) -> Manifest:
    """Build the prepared corpus unless it is already there; return its manifest."""
    inputs = _find_inputs(config)
    folder = Path(config.corpus.folder)
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except (FileExistsError, NotADirectoryError):
        raise UserError(f"corpus.folder: {folder} is a file, not a folder") from None
    fingerprint = _fingerprint(config, inputs)
    manifest = _up_to_date(folder, fingerprint)
    settings = PreparedFrom(config.corpus, config.cleaning, config.vocabulary)
    if manifest and manifest.settings == settings:
        say(f"{folder} is up to date: same text, same settings, nothing to do")
        return manifest
    _refuse_other_things(folder)
    with exclusive(folder, "preparing it"), naming(folder):
        if manifest:
            # Files may have other names, with the same text.
            manifest = replace(manifest, settings=settings)
            write_manifest(folder, manifest)
            say(f"{folder} is up to date: same text, nothing to do")
            return manifest
        _check_sets(inputs)
        _remove_leftovers(folder)
        building = folder / BUILDING
        building.mkdir()
        try:
            cores = processes or len(os.sched_getaffinity(0))
            manifest = _build(config, inputs, building, cores, fingerprint)
            return _publish(folder, building, manifest)
        finally:
            shutil.rmtree(building, ignore_errors=True)


def _find_inputs(config: Config) -> Inputs:
    corpus, vocabulary = config.corpus, config.vocabulary
    train = [
        files
        for index, text in enumerate(corpus.train)
        for files in resolve_files(text, f"corpus.train[{index}]")
    ]
    sets = {
        kind: {name: resolve_files(text, f"corpus.{kind}.{name}") for name, text in named.items()}
        for kind, named in (("validation", corpus.validation), ("test", corpus.test))
    }
    models = {
        name: Path(path)
        for name in ("model", "source_model", "target_model")
        if (path := getattr(vocabulary, name))
    }
    for name, path in models.items():
        load_subwords(path, f"vocabulary.{name}")
    return Inputs(train, sets, list(models.values()))


def _fingerprint(config: Config, inputs: Inputs) -> str:
    """Checksum of all that decides the outcome: settings and the bytes of the inputs."""
    # Where files lie does not matter, only what is in them.
    elsewhere = {"folder", "train", "validation", "test", "model", "source_model", "target_model"}
    identity = {
        "format": FORMAT,
        "settings": {
            name: value
            for section in (config.corpus, config.cleaning, config.vocabulary)
            for name, value in asdict(section).items()
            if name not in elsewhere
        },
        "sets": {
            kind: {name: len(texts) for name, texts in named.items()}
            for kind, named in inputs.sets.items()
        },
        "files": [(path.suffix, sha256(path)) for path in inputs.paths()],
    }
    return hash_bytes(json.dumps(identity, sort_keys=True).encode()).hexdigest()


def _up_to_date(folder: Path, fingerprint: str) -> Manifest | None:
    try:
        manifest = read_manifest(folder)
    except UserError:
        return None
    whole = find_damage(folder, manifest, contents=True) is None
    return manifest if whole and manifest.fingerprint == fingerprint else None


def _refuse_other_things(folder: Path) -> None:
    """Refuse a folder that holds something else than a prepared corpus or what a kill left of one.

    Once a corpus is there, what others put beside it is left alone.
    """
    names = {path.name for path in folder.iterdir()}
    if not any(DATA_FOLDER.fullmatch(name) for name in names) and names - {".lock", BUILDING}:
        raise UserError(
            f"corpus.folder: {folder} is not empty and holds no prepared corpus; choose another"
        )


def _check_sets(inputs: Inputs) -> None:
    """Find mistakes in the small texts before the large one is worked on."""
    for kind, named in inputs.sets.items():
        for name, texts in named.items():
            chunks = (chunk for text in texts for chunk in read_pairs(text, LINES_PER_CHUNK))
            if not sum(len(source) for source, _ in chunks):
                raise UserError(
                    f"corpus.{kind}.{name}: {texts[0].source} is empty: nothing to evaluate on"
                )


def _remove_leftovers(folder: Path) -> None:
    """Delete what an earlier or killed preparation left behind, but never the corpus in force."""
    try:
        in_force = read_manifest(folder).data
    except UserError:
        in_force = None
    shutil.rmtree(folder / BUILDING, ignore_errors=True)
    for path in folder.iterdir():
        if DATA_FOLDER.fullmatch(path.name) and path.name != in_force:
            shutil.rmtree(path)
    for path in folder.glob(f".{MANIFEST}.*"):
        path.unlink()


def _publish(folder: Path, building: Path, manifest: Manifest) -> Manifest:
    """Put the new corpus in place; until the manifest's one move, the old one is in force."""
    data = folder / manifest.data
    if data.exists():  # The corpus in force has the same fingerprint but is damaged.
        data = data.with_name(f"{data.name}-repaired")
        shutil.rmtree(data, ignore_errors=True)
    flush_folder(building)
    building.rename(data)
    flush_folder(folder)  # Before the manifest that names it.
    manifest = replace(manifest, data=data.name)
    write_manifest(folder, manifest)
    _remove_leftovers(folder)
    return manifest


def _build(
    config: Config, inputs: Inputs, folder: Path, processes: int, fingerprint: str
) -> Manifest:
    """Make all files of the corpus in a folder and describe them."""
    times = [time.monotonic()]
    text = clean_pass(inputs.train, config.cleaning, folder, processes)
    removed = text.removed
    if not text.keep.any():
        _raise_empty(removed, text.raw_pairs)
    times.append(time.monotonic())
    models = _make_vocabulary(config.vocabulary, inputs.models, folder, text)
    times.append(time.monotonic())
    subwords = [Subwords(path.read_bytes()) for path in models]
    dtype: Dtype = "uint16" if max(model.size for model in subwords) <= 1 << 16 else "uint32"
    shuffler = Shuffler(folder, len(text.keep), dtype, config.corpus.seed)
    removed["too_many_tokens"], clean_bytes = encode_pass(
        text, models, config.cleaning.max_tokens, dtype, shuffler, processes
    )
    with PairWriter(folder, "train") as writer:
        shuffler.write(writer)
    if not writer.pairs:
        _raise_empty(removed, text.raw_pairs)
    text.source.unlink()
    text.target.unlink()
    sets = {
        kind: {
            name: _write_set(texts, folder, f"{kind}.{name}", subwords, config.cleaning, dtype)
            for name, texts in named.items()
        }
        for kind, named in inputs.sets.items()
    }
    files = {path.name: describe_file(path) for path in sorted(folder.iterdir())}
    prepared_bytes = [
        sum(files[f"train.{side}.{part}"].bytes for part in ("tokens", "offsets")) for side in SIDES
    ]
    sizes = zip(text.raw_bytes, clean_bytes, prepared_bytes, strict=True)
    seconds = np.diff([*times, time.monotonic()]).round(3).tolist()
    histograms = (_histogram(folder / f"train.{side}.offsets") for side in SIDES)
    return Manifest(
        dragoman=__version__,
        identity=identity_of(files),
        languages={side: getattr(config.corpus, f"{side}_language") for side in SIDES},
        settings=PreparedFrom(config.corpus, config.cleaning, config.vocabulary),
        pairs=PairCounts(text.raw_pairs, writer.pairs),
        filters={name: removed[name] for name in FILTERS},
        bytes={side: TextBytes(*stages) for side, stages in zip(SIDES, sizes, strict=True)},
        seconds=dict(zip(STAGES, seconds, strict=True)),
        tokens=dict(zip(SIDES, writer.tokens, strict=True)),
        length_histogram=LengthHistogram(HISTOGRAM_STEP, *histograms),
        vocabulary=Vocabulary(
            tuple(path.name for path in models), tuple(model.size for model in subwords), dtype
        ),
        sets=sets,
        files=files,
        fingerprint=fingerprint,
        data=f"corpus-{fingerprint[:12]}",
    )


def _make_vocabulary(
    settings: VocabularySettings,
    given: Sequence[Path],
    folder: Path,
    text: CleanText,
) -> list[Path]:
    """Put one joint or two single sentencepiece models into the folder."""
    names = ["subwords.model"] if settings.joint else [f"subwords.{side}.model" for side in SIDES]
    paths = [folder / name for name in names]
    if given:
        for origin, path in zip(given, paths, strict=True):
            write_whole(path, origin.read_bytes())
        return paths
    sides = [[text.source, text.target]] if settings.joint else [[text.source], [text.target]]
    for path, files in zip(paths, sides, strict=True):
        say(f"training {settings.size:,} subwords")
        sample = sample_pass(text, files, settings.sample_pairs)
        write_whole(path, train_subwords(sample, settings))
    return paths


def _write_set(
    texts: Sequence[TextFiles],
    folder: Path,
    stem: str,
    subwords: Sequence[Subwords],
    settings: CleaningSettings,
    dtype: str,
) -> SetCounts:
    """Write an evaluation set: raw text for BLEU, tokens for the loss; nothing is filtered."""
    with (
        PairWriter(folder, stem) as writer,
        open(folder / f"{stem}.source.txt", "w", encoding="utf-8", newline="\n") as source_file,
        open(folder / f"{stem}.target.txt", "w", encoding="utf-8", newline="\n") as target_file,
    ):
        for source, target in (
            chunk for files in texts for chunk in read_pairs(files, LINES_PER_CHUNK)
        ):
            encoded = []
            for text, model, file in (
                (source, subwords[0], source_file),
                (target, subwords[-1], target_file),
            ):
                file.writelines(line + "\n" for line in text)
                normal = [normalize(line, settings.normalize_punctuation).strip() for line in text]
                encoded.append(pack_lines(model.encode(normal), dtype))
            writer.append(PairTokens(*encoded))
        for file in (source_file, target_file):
            flush_to_disk(file)
    return SetCounts(writer.pairs, *writer.tokens)


def _histogram(offsets: Path) -> tuple[int, ...]:
    """Count lines by length, HISTOGRAM_STEP tokens to a bar."""
    lengths = np.diff(np.memmap(offsets, np.int64, mode="r"))
    return tuple(np.bincount(lengths // HISTOGRAM_STEP).tolist())


def _raise_empty(removed: dict[str, int], raw_pairs: int) -> None:
    reasons = ", ".join(f"{name} {count:,}" for name, count in removed.items() if count)
    detail = f"the filters removed all {raw_pairs:,} pairs ({reasons})" if raw_pairs else "no lines"
    raise UserError(f"corpus.train is empty: {detail}")
