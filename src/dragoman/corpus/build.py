"""Makes all files of a prepared corpus: clean, learn subwords, encode, shuffle."""

import json
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from dragoman import __version__
from dragoman.config import Config, VocabularySettings, corpus_names, is_mix
from dragoman.console import say
from dragoman.corpus.clean import Cleaning, Dropped, filters_of, language_filters_of
from dragoman.corpus.inputs import Inputs, OldRun, set_sentences
from dragoman.corpus.manifest import (
    SIDES,
    STAGES,
    Dtype,
    LengthHistogram,
    Manifest,
    OldSets,
    PairCounts,
    PreparedFrom,
    SetCounts,
    TextBytes,
    Vocabulary,
    identity_of,
)
from dragoman.corpus.passes import (
    LINES_PER_CHUNK,
    CleanText,
    Part,
    clean_pass,
    encode_pass,
    sample_pass,
)
from dragoman.corpus.store import PairWriter, Shuffler, encode_pairs
from dragoman.corpus.subwords import Subwords, train_subwords
from dragoman.corpus.text import TextFiles, read_pairs
from dragoman.errors import UserError
from dragoman.files import describe_file, flush_to_disk, write_whole

HISTOGRAM_STEP = 8  # Tokens per bar of the length histogram.


@dataclass(frozen=True)
class Built:
    """The description of a new corpus, and samples of what each filter took, as JSON."""

    manifest: Manifest
    dropped: bytes


def build(config: Config, inputs: Inputs, folder: Path, processes: int, fingerprint: str) -> Built:
    """Make all files of the corpus in a folder and describe them."""
    times = [time.monotonic()]
    names = corpus_names(config.corpus) if is_mix(config) else ["train"]
    cleaning = _cleaning(config, inputs)
    text = clean_pass(inputs.train, cleaning, folder, processes, len(names))
    removed = text.removed
    if not text.keep.any():
        _raise_empty(removed, text.raw_pairs)
    times.append(time.monotonic())
    models = _make_vocabulary(config.vocabulary, inputs, folder, text)
    times.append(time.monotonic())
    subwords = [Subwords(path.read_bytes()) for path in models]
    dtype: Dtype = "uint16" if max(model.size for model in subwords) <= 1 << 16 else "uint32"
    parts = [
        Part(one.tag, Shuffler(folder, lines, dtype, config.corpus.seed, place, len(names)))
        # All texts have the same tag where they are shuffled together.
        for place, (lines, one) in enumerate(zip(text.lines, config.corpus.train, strict=False))
    ]
    removed["too_many_tokens"], clean_bytes = encode_pass(
        text, models, config.cleaning.max_tokens, dtype, parts, processes
    )
    train, corpora = _write_train(folder, text, dict(zip(names, parts, strict=True)))
    writer = _SetWriter(folder, subwords, config.cleaning.normalize_punctuation, dtype)
    sets = {
        kind: {
            name: writer.write(f"{kind}.{name}", _pairs_of(texts), texts[0].tag)
            for name, texts in named.items()
        }
        for kind, named in inputs.sets.items()
    }
    old = _write_old_sets(inputs.old, writer) if inputs.old else None
    files = {path.name: describe_file(path) for path in sorted(folder.iterdir())}
    prepared_bytes = [
        sum(files[f"train.{side}.{part}"].bytes for part in ("tokens", "offsets")) for side in SIDES
    ]
    sizes = zip(text.raw_bytes, clean_bytes, prepared_bytes, strict=True)
    seconds = np.diff([*times, time.monotonic()]).round(3).tolist()
    histograms = (_histogram(folder / f"train.{side}.offsets") for side in SIDES)
    manifest = Manifest(
        dragoman=__version__,
        identity=identity_of(files),
        languages={side: getattr(config.corpus, f"{side}_language") for side in SIDES},
        settings=PreparedFrom(config.corpus, config.cleaning, config.vocabulary),
        pairs=PairCounts(text.raw_pairs, train.pairs),
        filters={name: removed[name] for name in filters_of(config.cleaning)},
        bytes={side: TextBytes(*stages) for side, stages in zip(SIDES, sizes, strict=True)},
        seconds=dict(zip(STAGES, seconds, strict=True)),
        tokens={side: getattr(train, side) for side in SIDES},
        length_histogram=LengthHistogram(HISTOGRAM_STEP, *histograms),
        vocabulary=Vocabulary(
            tuple(path.name for path in models), tuple(model.size for model in subwords), dtype
        ),
        sets=sets,
        files=files,
        fingerprint=fingerprint,
        data=f"corpus-{fingerprint[:12]}",
        corpora=corpora if is_mix(config) else None,
        old=old,
    )
    return Built(manifest, _as_json(text.dropped))


@dataclass(frozen=True)
class _SetWriter:
    """Writes evaluation sets: raw text for BLEU, tokens for the loss; nothing is filtered."""

    folder: Path
    subwords: Sequence[Subwords]  # One if joint, or two.
    normalize_punctuation: bool
    dtype: str

    def write(
        self, stem: str, chunks: Iterable[tuple[Sequence[str], Sequence[str]]], tag: str
    ) -> SetCounts:
        models = self.subwords[0], self.subwords[-1]
        paths = [self.folder / f"{stem}.{side}.txt" for side in SIDES]
        with ExitStack() as stack:
            writer = stack.enter_context(PairWriter(self.folder, stem))
            files = [
                stack.enter_context(open(path, "w", encoding="utf-8", newline="\n"))
                for path in paths
            ]
            for sides in chunks:
                for file, lines in zip(files, sides, strict=True):
                    file.writelines(f"{line}\n" for line in lines)
                writer.append(
                    encode_pairs(models, sides, self.normalize_punctuation, tag, self.dtype)
                )
            for file in files:
                flush_to_disk(file)
        return SetCounts(writer.pairs, *writer.tokens)


def _pairs_of(texts: Sequence[TextFiles]) -> Iterator[tuple[list[str], list[str]]]:
    return (chunk for files in texts for chunk in read_pairs(files, LINES_PER_CHUNK))


def _write_old_sets(old: OldRun, writer: _SetWriter) -> OldSets:
    """Keep the validation sets of an earlier run, to see what is forgotten."""
    counts = {
        name: writer.write(f"old.{name}", [(one.source, one.target)], one.tag)
        for name, one in old.sets.items()
    }
    return OldSets(old.name, counts, {name: one.tag for name, one in old.sets.items()})


def _cleaning(config: Config, inputs: Inputs) -> Cleaning:
    """What the filters need to know beside their settings."""
    keys: set[int] = set()
    if config.cleaning.drop_leaked:
        keys = {key for side in set_sentences(inputs) for key in side}
    languages = config.corpus.source_language, config.corpus.target_language
    if (by_language := language_filters_of(config.cleaning)) and inputs.train_tags:
        say(
            f"{' and '.join(by_language)}: texts with a tag ({', '.join(inputs.train_tags)}) are "
            "left as they are, because a tag does not say which languages they are in"
        )
    return Cleaning(config.cleaning, languages, frozenset(keys))


def _as_json(dropped: Mapping[str, Sequence[Dropped]]) -> bytes:
    """Samples of what each filter took; line 0 where only the pair is known."""
    names = ("file", "line", "source", "target")
    plain = {
        name: [{key: getattr(one, key) for key in names} for one in samples]
        for name, samples in dropped.items()
        if samples
    }
    return json.dumps(plain, indent=1, ensure_ascii=False).encode()


def _write_train(
    folder: Path, text: CleanText, parts: Mapping[str, Part]
) -> tuple[SetCounts, dict[str, SetCounts]]:
    """Write all training pairs, in random order inside each part; count all, and each part's."""
    with PairWriter(folder, "train") as writer:
        corpora = {name: _write_part(part, writer) for name, part in parts.items()}
    if not writer.pairs:
        _raise_empty(text.removed, text.raw_pairs)
    for name, counts in corpora.items():
        if not counts.pairs:
            raise UserError(f"corpus.train: the filters removed every pair of the text {name}")
    text.source.unlink()
    text.target.unlink()
    return SetCounts(writer.pairs, *writer.tokens), corpora


def _write_part(part: Part, writer: PairWriter) -> SetCounts:
    before = SetCounts(writer.pairs, *writer.tokens)
    part.shuffler.write(writer)
    source, target = writer.tokens
    return SetCounts(writer.pairs - before.pairs, source - before.source, target - before.target)


def _make_vocabulary(
    settings: VocabularySettings, inputs: Inputs, folder: Path, text: CleanText
) -> list[Path]:
    """Put one joint or two single sentencepiece models into the folder."""
    names = ["subwords.model"] if settings.joint else [f"subwords.{side}.model" for side in SIDES]
    paths = [folder / name for name in names]
    if inputs.models:
        for origin, path in zip(inputs.models, paths, strict=True):
            write_whole(path, origin.read_bytes())
        return paths
    sides = [[text.source, text.target]] if settings.joint else [[text.source], [text.target]]
    for path, files in zip(paths, sides, strict=True):
        say(f"training {settings.size:,} subwords")
        sample = sample_pass(text, files, settings.sample_pairs)
        # Tags stand on the source side; in a joint vocabulary that is the only one.
        tags = inputs.tags if path == paths[0] else []
        write_whole(path, train_subwords(sample, settings, tags))
    return paths


def _histogram(offsets: Path) -> tuple[int, ...]:
    """Count lines by length, HISTOGRAM_STEP tokens to a bar."""
    lengths = np.diff(np.memmap(offsets, np.int64, mode="r"))
    return tuple(np.bincount(lengths // HISTOGRAM_STEP).tolist())


def _raise_empty(removed: dict[str, int], raw_pairs: int) -> None:
    reasons = ", ".join(f"{name} {count:,}" for name, count in removed.items() if count)
    pairs = f"all {raw_pairs:,} pairs" if raw_pairs > 1 else "the only pair"
    detail = f"the filters removed {pairs} ({reasons})" if raw_pairs else "no lines"
    raise UserError(f"corpus.train is empty: {detail}")
