"""Which tag goes before a sentence, in models for several languages or kinds of text."""

from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, TypeVar

from dragoman.config import CorpusSettings
from dragoman.errors import UserError
from dragoman.inference.translate import Translator

if TYPE_CHECKING:
    from dragoman.inference.ctranslate2_model import CTranslate2Translator

AnyTranslator = TypeVar("AnyTranslator", "Translator", "CTranslate2Translator")


def tags_of(corpus: CorpusSettings) -> tuple[str, ...]:
    """The tags of the training text, "" if some of it has none."""
    return tuple(dict.fromkeys(text.tag for text in corpus.train))


def choose_tag(asked: str | None, known: Sequence[str]) -> str:
    """The tag asked for; without one, the only one that the model has learnt."""
    tags = [tag for tag in known if tag]
    if asked is not None and asked not in known:
        learnt = f"knows {', '.join(tags)}" if tags else "was trained without tags"
        raise UserError(f"--tag {asked}: the model {learnt}")
    if asked is not None:
        return asked
    if "" in known or not known:
        return ""
    if len(tags) > 1:
        raise UserError(f"the model has several tags: choose with --tag {' or '.join(tags)}")
    return tags[0]


def with_tag(translator: AnyTranslator, tag: str) -> AnyTranslator:
    """The same translator, which puts a tag before every sentence."""
    return replace(translator, text=replace(translator.text, tag=tag))
