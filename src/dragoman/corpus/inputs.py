"""Every file that goes into a prepared corpus, and the checksum of all that decides the outcome."""

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from hashlib import sha256 as hash_bytes
from pathlib import Path

from dragoman.config import Config, corpus_names, is_mix
from dragoman.corpus.clean import FILTERS, language_filters_of
from dragoman.corpus.manifest import FORMAT
from dragoman.corpus.subwords import Subwords, load_subwords
from dragoman.corpus.suspects import telling_key
from dragoman.corpus.text import TextFiles, read_pairs, resolve_files
from dragoman.errors import UserError
from dragoman.files import sha256

LINES_AT_ONCE = 5_000


@dataclass(frozen=True)
class OldSet:
    """A validation set of an earlier run, as text."""

    source: tuple[str, ...]
    target: tuple[str, ...]
    tag: str


@dataclass(frozen=True)
class OldRun:
    """What a corpus takes over from the run that `vocabulary.from_run` names."""

    name: str
    models: tuple[Path, ...]  # One if its vocabulary is joint, or two.
    sets: Mapping[str, OldSet]


@dataclass(frozen=True)
class Inputs:
    """Every file that goes into the corpus."""

    train: list[TextFiles]
    sets: dict[str, dict[str, list[TextFiles]]]  # "validation" and "test", each by name.
    models: list[Path]
    tags: list[str]  # Of all texts.
    old: OldRun | None

    @property
    def train_tags(self) -> list[str]:
        """Tags of the training texts whose languages are therefore not known."""
        return sorted({text.tag for text in self.train if not text.languages_are_known})

    def texts(self) -> list[TextFiles]:
        """All texts, in a fixed order."""
        sets = (text for named in self.sets.values() for texts in named.values() for text in texts)
        return [*self.train, *sets]

    def paths(self) -> list[Path]:
        """All files, in a fixed order."""
        return [*(path for text in self.texts() for path in text.paths), *self.models]


def find_inputs(config: Config, old: OldRun | None = None) -> Inputs:
    """Find every file that the config names."""
    corpus, vocabulary = config.corpus, config.vocabulary
    is_apart = is_mix(config)
    train = [
        replace(files, part=index if is_apart else 0, tag=text.tag)
        for index, text in enumerate(corpus.train)
        for files in resolve_files(text, f"corpus.train[{index}]")
    ]
    sets = {
        kind: {
            name: [
                replace(files, tag=text.tag)
                for files in resolve_files(text, f"corpus.{kind}.{name}")
            ]
            for name, text in named.items()
        }
        for kind, named in (("validation", corpus.validation), ("test", corpus.test))
    }
    texts = (*corpus.train, *corpus.validation.values(), *corpus.test.values())
    tags = sorted({text.tag for text in texts if text.tag})
    models = {
        name: Path(path)
        for name in ("model", "source_model", "target_model")
        if (path := getattr(vocabulary, name))
    }
    if old:
        models = dict(zip(("from_run", "target_model"), old.models, strict=False))
    for name, path in models.items():
        subwords = Subwords(load_subwords(path, f"vocabulary.{name}"))
        missing = [tag for tag in tags if subwords.tag(tag) is None]
        if missing and name != "target_model":
            remedy = (
                "remove the tag from the text (dragoman augment --mark '' makes pairs without one)"
                if old
                else "train it with control_symbols, or let prepare train the vocabulary"
            )
            raise UserError(
                f"vocabulary.{name}: {path} lacks the control symbol {missing[0]}, a tag of the "
                f"corpus; {remedy}"
            )
    return Inputs(train, sets, list(models.values()), tags, old)


SetSentences = dict[int, set[str]]  # Keys of sentences, each with the sets that have it.


def set_sentences(inputs: Inputs) -> tuple[SetSentences, SetSentences]:
    """The sentences of all sets that a run is evaluated on, by side."""
    sides: tuple[SetSentences, SetSentences] = ({}, {})
    for set_name, lines_of_sides in _set_lines(inputs):
        for known, lines in zip(sides, lines_of_sides, strict=True):
            for key in map(telling_key, lines):
                if key is not None:
                    known.setdefault(key, set()).add(set_name)
    return sides


def _set_lines(inputs: Inputs) -> Iterator[tuple[str, tuple[Sequence[str], Sequence[str]]]]:
    """Both sides of every set in pieces, the old run's included, each with the set's name."""
    for kind, named in inputs.sets.items():
        for name, texts in named.items():
            for chunk in (one for text in texts for one in read_pairs(text, LINES_AT_ONCE)):
                yield f"{kind}.{name}", chunk
    if inputs.old:
        for name, one in inputs.old.sets.items():
            yield f"old.{name}", (one.source, one.target)


def fingerprint_of(config: Config, inputs: Inputs) -> str:
    """Checksum of all that decides the outcome: settings and the bytes of the inputs."""
    # Where files lie does not matter, only what is in them.
    elsewhere = {"folder", "train", "validation", "test", "model", "source_model", "target_model"}
    elsewhere |= {"from_run", "temperature"}  # Weights are for training.
    # Corpora that were prepared before these filters came stay up to date without them.
    later = {one.setting for one in FILTERS.values()}
    identity = {
        "format": FORMAT,
        "settings": {
            name: value
            for section in (config.corpus, config.cleaning, config.vocabulary)
            for name, value in asdict(section).items()
            if name not in elsewhere and (value or name not in later)
        },
        "sets": {
            kind: {name: len(texts) for name, texts in named.items()}
            for kind, named in inputs.sets.items()
        },
        "files": [(path.suffix, sha256(path)) for path in inputs.paths()],
    }
    if is_mix(config):
        identity["corpora"] = corpus_names(config.corpus)
        identity["parts"] = [files.part for files in inputs.train]
    if inputs.tags:
        identity["tags"] = [files.tag for files in inputs.texts()]
    if inputs.old:
        identity["old"] = {name: asdict(one) for name, one in inputs.old.sets.items()}
    if changed := _changed_filters(config, inputs):
        identity["changed_filters"] = changed
    return hash_bytes(json.dumps(identity, sort_keys=True).encode()).hexdigest()


def _changed_filters(config: Config, inputs: Inputs) -> list[str]:
    """Filters that took other pairs before: a corpus prepared with them then is not up to date."""
    cleaning = config.cleaning
    changed = {
        "identical_sides": cleaning.drop_identical,
        "leaked": cleaning.drop_leaked and inputs.old,
        "languages": language_filters_of(cleaning) and inputs.train_tags,
    }
    return [name for name, is_changed in changed.items() if is_changed]
