"""What a prepared corpus is: the one definition of its manifest.json, and of a run's copy of it."""

import json
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from hashlib import sha256 as hash_bytes
from pathlib import Path
from typing import Any, Literal

import numpy as np

from dragoman.config import SET_NAME, CleaningSettings, CorpusSettings, VocabularySettings
from dragoman.corpus.clean import filters_of
from dragoman.documents import FILE_NAME, HASH, LINE, Mismatch, decode, item, parse
from dragoman.errors import UserError
from dragoman.files import find_file_damage, write_whole
from dragoman.records import SavedFile, Versioned

FORMAT = 1
MANIFEST = "manifest.json"
SIDES = ("source", "target")
SET_KINDS = ("validation", "test")
STAGES = ("cleaning", "vocabulary", "encoding")
FIX = "run `dragoman prepare` again"

Dtype = Literal["uint16", "uint32"]  # Of token ids; with others numpy would follow pointers.


@dataclass(frozen=True)
class PreparedFrom:
    """The settings that a corpus was made with."""

    corpus: CorpusSettings = item("[corpus]")
    cleaning: CleaningSettings = item("[cleaning]")
    vocabulary: VocabularySettings = item("[vocabulary]")


@dataclass(frozen=True)
class PairCounts:
    """Pairs that were read, and those that are left."""

    raw: int = item("read", minimum=0)
    prepared: int = item("left", minimum=0)


@dataclass(frozen=True)
class TextBytes:
    """Sizes of one side of the training text."""

    raw: int = item("before any filter", minimum=0)
    cleaned: int = item("after the filters", minimum=0)
    prepared: int = item("of tokens and offsets", minimum=0)


@dataclass(frozen=True)
class LengthHistogram:
    """Lines of the training text by length."""

    tokens_per_bar: int = item("from one bar to the next", minimum=1)
    source: tuple[int, ...] = item("lines in each bar", minimum=0)
    target: tuple[int, ...] = item("likewise", minimum=0)


@dataclass(frozen=True)
class Vocabulary:
    """One joint vocabulary, or one of each side; and how token ids are written."""

    files: tuple[str, ...] = item("sentencepiece models", pattern=FILE_NAME)
    sizes: tuple[int, ...] = item("subwords of each", minimum=1)
    dtype: Dtype = item("of token ids")


@dataclass(frozen=True)
class SetCounts:
    """Size of a validation or test set."""

    pairs: int = item("in the set", minimum=0)
    source: int = item("tokens", minimum=0)
    target: int = item("tokens", minimum=0)


@dataclass(frozen=True)
class OldSets:
    """Validation sets of the run whose vocabulary a corpus has."""

    run: str = item("its name", pattern=LINE)
    sets: Mapping[str, SetCounts] = item("by name", keys=SET_NAME)
    tags: Mapping[str, str] = item("of each set", keys=SET_NAME)


@dataclass(frozen=True)
class Manifest:
    """Everything known about a prepared corpus; docs/corpus.md says what each field means."""

    dragoman: str = item("version that prepared it", pattern=LINE)
    identity: str = item("checksum of all files", pattern=HASH)
    languages: Mapping[str, str] = item("of each side", pattern=LINE)
    settings: PreparedFrom = item("as they were")
    pairs: PairCounts = item("of the training text")
    filters: Mapping[str, int] = item("how many pairs each took", keys=r"\w+", minimum=0)
    bytes: Mapping[str, TextBytes] = item("of each side")
    seconds: Mapping[str, float] = item("of each stage")
    tokens: Mapping[str, int] = item("of each side", minimum=0)
    length_histogram: LengthHistogram = item("of the training text")
    vocabulary: Vocabulary = item("joint, or of each side")
    sets: Mapping[str, Mapping[str, SetCounts]] = item("by kind and name", keys=SET_NAME)
    files: Mapping[str, SavedFile] = item("all files, by name", keys=FILE_NAME)
    fingerprint: str = item("checksum of settings and input", pattern=HASH)
    data: str = item("the folder that holds the files", pattern=FILE_NAME)
    corpora: Mapping[str, SetCounts] | None = item(
        "of a mix, by name, in the order in which they are stored", keys=SET_NAME, default=None
    )
    old: OldSets | None = item("of `vocabulary.from_run`", default=None)

    def to_json(self) -> dict[str, Any]:
        """As it is written, here and in a run's provenance."""
        optional = {name for name in ("corpora", "old") if getattr(self, name) is None}
        values = {"format": FORMAT, **asdict(self)}
        return {name: value for name, value in values.items() if name not in optional}

    def vocabulary_of(self, side: str) -> SavedFile:
        """What a side's vocabulary must be."""
        return self.files[self.vocabulary.files[0 if side == "source" else -1]]


def write_manifest(folder: Path, manifest: Manifest) -> None:
    """Put a corpus in force."""
    text = json.dumps(manifest.to_json(), indent=2, ensure_ascii=False)
    write_whole(folder / MANIFEST, text.encode())


def read_manifest(folder: Path) -> Manifest:
    """Read a prepared corpus's manifest."""
    path = folder / MANIFEST
    try:
        value = decode(path.read_bytes())
    except (FileNotFoundError, NotADirectoryError):
        raise UserError(
            f"{folder} holds no prepared corpus; run `dragoman prepare` first"
        ) from None
    except ValueError:
        raise UserError(f"{path} is damaged: not JSON; {FIX}") from None
    return parse_manifest(value, str(path), FIX)


def parse_manifest(value: Any, origin: str, fix: str, where: str = "") -> Manifest:
    """Check every value of a manifest, and that they agree with each other."""
    try:
        written = parse(Versioned, value, where).format
        if written != FORMAT:
            raise UserError(f"{origin} has format {written}, this Dragoman reads {FORMAT}; {fix}")
        manifest = parse(Manifest, value, where)
        for problem in _disagreements(manifest):
            raise Mismatch(f"{where}.{problem}".lstrip("."))
    except Mismatch as error:
        raise UserError(f"{origin} is damaged: {error}; {fix}") from None
    return manifest


def identity_of(files: Mapping[str, SavedFile]) -> str:
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


def _disagreements(manifest: Manifest) -> Iterator[str]:
    """Values that are well formed but cannot all be true."""
    vocabulary = manifest.vocabulary
    for name, keys in (
        *((name, SIDES) for name in ("languages", "bytes", "tokens")),
        ("filters", tuple(filters_of(manifest.settings.cleaning))),
        *(("seconds", STAGES), ("sets", SET_KINDS)),
    ):
        for key in set(keys) ^ set(getattr(manifest, name)):
            yield f"{name}.{key} is {'missing' if key in keys else 'unknown'}"
    if identity_of(manifest.files) != manifest.identity:
        yield "identity does not match files"
    if manifest.pairs.raw - sum(manifest.filters.values()) != manifest.pairs.prepared:
        yield "pairs.raw minus all filters is not pairs.prepared"
    if manifest.corpora is not None:
        parts = manifest.corpora.values()
        if sum(one.pairs for one in parts) != manifest.pairs.prepared:
            yield "corpora do not add up to pairs.prepared"
        for side in SIDES:
            if sum(getattr(one, side) for one in parts) != manifest.tokens.get(side):
                yield f"corpora do not add up to tokens.{side}"
    if manifest.old and manifest.old.sets.keys() != manifest.old.tags.keys():
        yield "old.tags do not match old.sets"
    for kind in SET_KINDS:
        for name in manifest.sets.get(kind, {}):
            if name not in getattr(manifest.settings.corpus, kind):
                yield f"sets.{kind}.{name} is not in settings"
    if not 1 <= len(vocabulary.files) == len(vocabulary.sizes) <= 2:
        yield "vocabulary must have one or two files and as many sizes"
    sizes = _sizes_of(manifest)
    for name in (*vocabulary.files, *sizes):
        if name not in manifest.files:
            yield f"files.{name} is missing"
    for name, size in sizes.items():
        if size is not None and manifest.files[name].bytes != size:
            yield f"files.{name}.bytes is {manifest.files[name].bytes:,}, not {size:,}"


def _sizes_of(manifest: Manifest) -> dict[str, int | None]:
    """Bytes that the files of all texts must have; None where nothing else tells."""
    train = SetCounts(manifest.pairs.prepared, **manifest.tokens)
    sets = {
        f"{kind}.{name}": counts
        for kind, named in manifest.sets.items()
        for name, counts in named.items()
    }
    if manifest.old:
        sets |= {f"old.{name}": counts for name, counts in manifest.old.sets.items()}
    token, offset = np.dtype(manifest.vocabulary.dtype).itemsize, np.dtype(np.int64).itemsize
    sizes: dict[str, int | None] = {}
    for stem, counts in {"train": train, **sets}.items():
        for side in SIDES:
            sizes[f"{stem}.{side}.tokens"] = token * getattr(counts, side)
            sizes[f"{stem}.{side}.offsets"] = offset * (counts.pairs + 1)
            if stem in sets:
                sizes[f"{stem}.{side}.txt"] = None
    return sizes
