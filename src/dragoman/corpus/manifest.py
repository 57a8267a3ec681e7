"""What a prepared corpus is: the one definition of its manifest.json, and of a run's copy of it."""

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, fields
from hashlib import sha256 as hash_bytes
from pathlib import Path
from typing import Any, TypeVar

import numpy as np

from dragoman.config import SET_NAME, CleaningSettings, CorpusSettings, VocabularySettings
from dragoman.config_file import ConfigError, read_saved_section
from dragoman.corpus.clean import FILTERS
from dragoman.errors import UserError
from dragoman.files import FileDigest, find_file_damage, read_digests, write_whole
from dragoman.validation import HASH, Fields, load_json

FORMAT = 1
MANIFEST = "manifest.json"
SIDES = ("source", "target")
SET_KINDS = ("validation", "test")
STAGES = ("cleaning", "vocabulary", "encoding")
DTYPES = ("uint16", "uint32")  # Of token ids; any other would make numpy read what is no number.
FIX = "run `dragoman prepare` again"

Value = TypeVar("Value")


@dataclass(frozen=True)
class PreparedFrom:
    """The settings that a corpus was made with."""

    corpus: CorpusSettings
    cleaning: CleaningSettings
    vocabulary: VocabularySettings


@dataclass(frozen=True)
class PairCounts:
    """Pairs that were read, and those that are left."""

    raw: int
    prepared: int


@dataclass(frozen=True)
class TextBytes:
    """Sizes of one side of the training text."""

    raw: int
    cleaned: int
    prepared: int


@dataclass(frozen=True)
class LengthHistogram:
    """Lines of the training text by length."""

    tokens_per_bar: int
    source: Sequence[int]
    target: Sequence[int]


@dataclass(frozen=True)
class Vocabulary:
    """One joint vocabulary, or one of each side; and how token ids are written."""

    files: Sequence[str]
    sizes: Sequence[int]
    dtype: str


@dataclass(frozen=True)
class SetCounts:
    """Size of a validation or test set, in pairs and in tokens of each side."""

    pairs: int
    source: int
    target: int


@dataclass(frozen=True)
class Manifest:
    """Everything known about a prepared corpus; docs/corpus.md says what each field means."""

    dragoman: str
    identity: str
    languages: Mapping[str, str]  # Of each side.
    settings: PreparedFrom
    pairs: PairCounts
    filters: Mapping[str, int]
    bytes: Mapping[str, TextBytes]  # Of each side.
    seconds: Mapping[str, float]  # Of each stage.
    tokens: Mapping[str, int]  # Of each side.
    length_histogram: LengthHistogram
    vocabulary: Vocabulary
    sets: Mapping[str, Mapping[str, SetCounts]]  # "validation" and "test", each by name.
    files: Mapping[str, FileDigest]
    fingerprint: str
    data: str  # The folder that holds the files.

    def to_json(self) -> dict[str, Any]:
        """As it is written, here and in a run's provenance."""
        return {"format": FORMAT, **asdict(self)}

    def vocabulary_of(self, side: str) -> FileDigest:
        """What a side's vocabulary must be."""
        return self.files[self.vocabulary.files[0 if side == "source" else -1]]


def write_manifest(folder: Path, manifest: Manifest) -> None:
    """Put a corpus in force."""
    text = json.dumps(manifest.to_json(), indent=2, ensure_ascii=False)
    write_whole(folder / MANIFEST, text.encode())


def read_manifest(folder: Path) -> Manifest:
    """Read a prepared corpus's manifest."""
    try:
        return parse_manifest(load_json(folder / MANIFEST, FIX))
    except (FileNotFoundError, NotADirectoryError):
        raise UserError(
            f"{folder} holds no prepared corpus; run `dragoman prepare` first"
        ) from None


def parse_manifest(document: Fields) -> Manifest:
    """Check every value of a manifest, and that they agree with each other."""
    document.require_format(FORMAT)
    document.refuse_others(["format", *(field.name for field in fields(Manifest))])
    manifest = Manifest(
        dragoman=document.line("dragoman"),
        identity=document.text("identity", HASH, "a checksum"),
        languages=_each(document.fields("languages"), SIDES, Fields.line),
        settings=_settings(document.fields("settings")),
        pairs=PairCounts(**_each(document.fields("pairs"), ("raw", "prepared"), Fields.count)),
        filters=_each(document.fields("filters"), list(FILTERS), Fields.count),
        bytes=_each(document.fields("bytes"), SIDES, _text_bytes),
        seconds=_each(document.fields("seconds"), STAGES, Fields.number),
        tokens=_each(document.fields("tokens"), SIDES, Fields.count),
        length_histogram=_histogram(document.fields("length_histogram")),
        vocabulary=_vocabulary(document.fields("vocabulary")),
        sets=_each(document.fields("sets"), SET_KINDS, _sets),
        files=read_digests(document.fields("files")),
        fingerprint=document.text("fingerprint", HASH, "a checksum"),
        data=document.file_name("data"),
    )
    for problem in _disagreements(manifest):
        raise document.refusal(problem)
    return manifest


def identity_of(files: Mapping[str, FileDigest]) -> str:
    """Checksum of all files of a corpus, from their sizes and checksums."""
    plain = {name: asdict(file) for name, file in files.items()}
    return hash_bytes(json.dumps(plain, sort_keys=True).encode()).hexdigest()


def find_damage(folder: Path, manifest: Manifest, *, contents: bool) -> str | None:
    """Say which file is not as it was prepared, if any; a look at sizes alone is much faster."""
    for name, file in manifest.files.items():
        path = folder / manifest.data / name
        if damage := find_file_damage(path, file.bytes, file.sha256 if contents else None):
            return damage
    return None


def _each(
    inner: Fields, keys: Sequence[str], read: Callable[[Fields, str], Value]
) -> dict[str, Value]:
    """Read an object that has these keys and no others."""
    inner.refuse_others(keys)
    return {key: read(inner, key) for key in keys}


def _settings(inner: Fields) -> PreparedFrom:
    inner.refuse_others([field.name for field in fields(PreparedFrom)])
    corpus, cleaning, vocabulary = (
        inner.fields(name).raw() for name in ("corpus", "cleaning", "vocabulary")
    )
    try:
        return PreparedFrom(
            read_saved_section(CorpusSettings, corpus, "settings.corpus"),
            read_saved_section(CleaningSettings, cleaning, "settings.cleaning"),
            read_saved_section(VocabularySettings, vocabulary, "settings.vocabulary"),
        )
    except ConfigError as error:
        raise inner.refusal(error.problems[0]) from None


def _text_bytes(inner: Fields, side: str) -> TextBytes:
    stages = [field.name for field in fields(TextBytes)]
    return TextBytes(**_each(inner.fields(side), stages, Fields.count))


def _histogram(inner: Fields) -> LengthHistogram:
    inner.refuse_others(["tokens_per_bar", *SIDES])
    bars = (inner.list(side) for side in SIDES)
    source, target = ([counts.count(place) for place in counts] for counts in bars)
    return LengthHistogram(inner.count("tokens_per_bar", minimum=1), source, target)


def _vocabulary(inner: Fields) -> Vocabulary:
    inner.refuse_others([field.name for field in fields(Vocabulary)])
    files, sizes = inner.list("files"), inner.list("sizes")
    if len(files) not in (1, 2):
        raise inner.wrong("files", "one file or two")
    if len(sizes) != len(files):
        raise inner.wrong("sizes", "one for each file")
    return Vocabulary(
        [files.file_name(place) for place in files],
        [sizes.count(place, minimum=1, maximum=1 << 31) for place in sizes],
        inner.one_of("dtype", DTYPES),
    )


def _sets(inner: Fields, kind: str) -> dict[str, SetCounts]:
    named = inner.fields(kind)
    counted = [field.name for field in fields(SetCounts)]
    return {
        name: SetCounts(**_each(named.fields(name), counted, Fields.count))
        for name in named.keys(SET_NAME, "name of a set")
    }


def _disagreements(manifest: Manifest) -> Iterator[str]:
    """Values that are well formed but cannot all be true."""
    if identity_of(manifest.files) != manifest.identity:
        yield "identity is not that of files"
    if manifest.pairs.raw - sum(manifest.filters.values()) != manifest.pairs.prepared:
        yield "pairs.raw less all filters is not pairs.prepared"
    for name in manifest.vocabulary.files:
        if name not in manifest.files:
            yield f"files.{name} is missing"
    train = SetCounts(manifest.pairs.prepared, **manifest.tokens)
    sets = {
        f"{kind}.{name}": counts
        for kind, named in manifest.sets.items()
        for name, counts in named.items()
    }
    for stem, counts in {"train": train, **sets}.items():
        for name, size in _array_sizes(stem, counts, manifest.vocabulary.dtype):
            if name not in manifest.files:
                yield f"files.{name} is missing"
            elif manifest.files[name].bytes != size:
                yield f"files.{name}.bytes is {manifest.files[name].bytes:,}, not {size:,}"
        for side in SIDES:
            if stem in sets and f"{stem}.{side}.txt" not in manifest.files:
                yield f"files.{stem}.{side}.txt is missing"


def _array_sizes(stem: str, counts: SetCounts, dtype: str) -> Iterator[tuple[str, int]]:
    """Bytes that the arrays of a text must have."""
    for side in SIDES:
        yield f"{stem}.{side}.tokens", np.dtype(dtype).itemsize * getattr(counts, side)
        yield f"{stem}.{side}.offsets", np.dtype(np.int64).itemsize * (counts.pairs + 1)
