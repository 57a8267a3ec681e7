"""Every setting on one page: one frozen dataclass per TOML table."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal


def setting(
    default: Any,
    help: str,
    *,
    minimum: float | None = None,
    maximum: float | None = None,
    is_path: bool = False,
    may_change: bool = False,
) -> Any:
    """Declare one setting; `may_change` marks those that a resumed run may alter."""
    metadata = {
        "help": help,
        "minimum": minimum,
        "maximum": maximum,
        "is_path": is_path,
        "may_change": may_change,
    }
    if isinstance(default, (dict, list)):
        return field(default_factory=type(default), metadata=metadata)
    return field(default=default, metadata=metadata)


@dataclass(frozen=True)
class ParallelText:
    """Two files that match line by line, or one file with tab-separated source and target."""

    source: str = setting("", "Source side; globs are allowed.", is_path=True)
    target: str = setting("", "Target side, as many files as `source`.", is_path=True)
    tsv: str = setting("", "Instead of both: source, tab, target on each line.", is_path=True)


@dataclass(frozen=True)
class CorpusSettings:
    """Which text to read and where the prepared corpus lies."""

    folder: str = setting("", "Where the prepared corpus is written and read.", is_path=True)
    source_language: str = setting("en", "Language code of the source side.")
    target_language: str = setting("de", "Language code of the target side.")
    train: tuple[ParallelText, ...] = setting(
        (), "Training text: plain, .gz, .xz or .zst, any number of files or globs."
    )
    validation: Mapping[str, ParallelText] = setting(
        {}, "Named sets watched during training; the first one decides what is best."
    )
    test: Mapping[str, ParallelText] = setting({}, "Named sets for the final score.")
    seed: int = setting(1, "Seed of the shuffle.", minimum=0)


@dataclass(frozen=True)
class CleaningSettings:
    """Which training pairs are kept; validation and test sets are never filtered."""

    invalid_utf8: Literal["error", "skip"] = setting(
        "error", "A line that is not UTF-8 stops the preparation, or is dropped and counted."
    )
    drop_control_characters: bool = setting(
        True, "Drop pairs with control characters or Unicode noncharacters."
    )
    max_words: int = setting(80, "Drop pairs with more words than this on a side.", minimum=1)
    max_length_ratio: float = setting(
        9.0, "Drop pairs where one side has this many times the words of the other.", minimum=1
    )
    drop_duplicates: bool = setting(True, "Keep only the first of identical pairs.")
    drop_identical: bool = setting(False, "Drop pairs whose source equals their target.")
    max_tokens: int = setting(
        128,
        "Drop pairs with more subwords than this on a side, the end mark included; never cut.",
        minimum=2,
    )
    normalize_punctuation: bool = setting(
        False, "Replace curly quotes, exotic dashes and spaces by plain ones, here and in input."
    )


@dataclass(frozen=True)
class VocabularySettings:
    """Subwords by sentencepiece, with byte fallback: any text survives a round trip."""

    kind: Literal["bpe", "unigram"] = setting("bpe", "How subwords are found.")
    size: int = setting(32_768, "Subwords, 256 bytes and 3 marks included.", minimum=270)
    joint: bool = setting(True, "One vocabulary for both languages, with tied embeddings.")
    sample_pairs: int = setting(
        500_000, "The vocabulary is trained on at most this many pairs.", minimum=1
    )
    character_coverage: float = setting(
        0.9995, "Share of characters with a subword of their own.", minimum=0.9, maximum=1
    )
    model: str = setting("", "An existing joint sentencepiece model.", is_path=True)
    source_model: str = setting("", "An existing source model, if not joint.", is_path=True)
    target_model: str = setting("", "An existing target model, if not joint.", is_path=True)


@dataclass(frozen=True)
class Config:
    """A whole config file."""

    corpus: CorpusSettings
    cleaning: CleaningSettings
    vocabulary: VocabularySettings


def contradictions(config: Config) -> list[str]:
    """Problems that no single setting shows."""
    return [
        *_corpus_contradictions(config.corpus),
        *_vocabulary_contradictions(config.vocabulary),
    ]


def _corpus_contradictions(corpus: CorpusSettings) -> list[str]:
    problems = []
    if not corpus.folder:
        problems.append('corpus.folder is missing: name a folder, as in folder = "prepared/mine"')
    if not corpus.train:
        problems.append(
            "corpus.train is missing: name at least one text, as in "
            'train = [{ source = "train.en", target = "train.de" }]'
        )
    texts = [(f"corpus.train[{index}]", text) for index, text in enumerate(corpus.train)]
    for kind, named in (("validation", corpus.validation), ("test", corpus.test)):
        texts += [(f"corpus.{kind}.{name}", text) for name, text in named.items()]
        problems += [
            f"corpus.{kind}.{name}: a name may hold letters, digits, '-', '_' and '.' only"
            for name in named
            if not name.replace("-", "").replace("_", "").replace(".", "").isalnum()
        ]
    for name, text in texts:
        if bool(text.source) != bool(text.target):
            missing = "target" if text.source else "source"
            problems.append(f"{name}.{missing} is missing: a parallel text has two sides")
        elif bool(text.source) == bool(text.tsv):
            problems.append(f"{name} needs either source and target, or tsv")
    return problems


def _vocabulary_contradictions(vocabulary: VocabularySettings) -> list[str]:
    problems = []
    per_side = [name for name in ("source_model", "target_model") if getattr(vocabulary, name)]
    if vocabulary.joint and per_side:
        problems.append(
            f"vocabulary.{per_side[0]} needs joint = false; a joint vocabulary is given as model"
        )
    if not vocabulary.joint and vocabulary.model:
        problems.append(
            "vocabulary.model is for joint = true; give source_model and target_model instead"
        )
    if len(per_side) == 1:
        problems.append(f"vocabulary.{per_side[0]} is given without its other side")
    return problems
