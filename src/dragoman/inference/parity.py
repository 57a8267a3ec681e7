"""Whether an exported model translates as the trained one does."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from dragoman.config import TranslationSettings
from dragoman.console import Progress
from dragoman.corpus.store import PreparedCorpus
from dragoman.errors import UserError
from dragoman.inference.evaluate import BOOTSTRAP_SAMPLES, TextScores, score_text
from dragoman.inference.load import TrainedModel
from dragoman.inference.tags import with_tag
from dragoman.inference.translate import Translation

Translate = Callable[..., list[list[Translation]]]


@dataclass(frozen=True)
class CheckSet:
    """Part of a validation set."""

    name: str
    source: tuple[str, ...]
    target: tuple[str, ...]
    tag: str = ""


@dataclass(frozen=True)
class Parity:
    """Two decoders side by side: ours, and that of the exported model."""

    set: str
    pairs: int
    beam: int
    length_penalty: float
    identical: int  # Pairs with the same best translation.
    largest_score_difference: float
    own: TextScores
    exported: TextScores
    differing: tuple[tuple[str, str, str], ...]  # Source, own and exported translation; a few.

    @property
    def share(self) -> float:
        """Share of pairs with the same best translation."""
        return self.identical / self.pairs


def choose_check_set(trained: TrainedModel, pairs: int) -> CheckSet:
    """Take pairs evenly from the first validation set of the run's corpus."""
    try:
        sets = PreparedCorpus(Path(trained.config.corpus.folder)).evaluation_sets("validation")
    except UserError as error:
        raise UserError(f"{error}; or export with --no-check") from None
    if not sets:
        raise UserError("the corpus has no validation set to check with; export with --no-check")
    first = sets[0]
    count = min(pairs, len(first.source))
    places = [place * len(first.source) // count for place in range(count)]
    return CheckSet(
        first.name,
        tuple(first.source[place] for place in places),
        tuple(first.target[place] for place in places),
        first.tag,
    )


def compare(trained: TrainedModel, exported: Translate, chosen: CheckSet) -> Parity:
    """Translate with both decoders, in the same way, and compare."""
    settings = trained.config.translation
    ours = with_tag(trained.translator, chosen.tag)
    own = _translate(ours.translate, chosen, settings, "here")
    other = _translate(exported, chosen, settings, "exported")
    pairs = list(zip(chosen.source, own, other, strict=True))
    differing = [(source, one.text, two.text) for source, one, two in pairs if one.text != two.text]
    tokenize = trained.config.evaluation.bleu_tokenize
    return Parity(
        chosen.name,
        len(pairs),
        settings.beam,
        settings.length_penalty,
        len(pairs) - len(differing),
        max(abs(one.score - two.score) for _, one, two in pairs),
        score_text([one.text for one in own], chosen.target, tokenize),
        score_text([two.text for two in other], chosen.target, tokenize, BOOTSTRAP_SAMPLES),
        tuple(differing[:3]),
    )


def _translate(
    translate: Translate, chosen: CheckSet, settings: TranslationSettings, where: str
) -> Sequence[Translation]:
    title = f"translating {chosen.name}, {where}"
    with Progress(title, len(chosen.source), "sentences") as progress:
        ranked = translate(chosen.source, settings, on_progress=progress.advance)
    return [best[0] for best in ranked]
