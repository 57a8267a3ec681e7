"""What is measured at every evaluation during training."""

import time
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace

from dragoman.cluster.processes import Workers
from dragoman.config import Config
from dragoman.corpus.rows import Rows
from dragoman.corpus.store import EvaluationSet, PreparedCorpus
from dragoman.inference.evaluate import (
    Interrupted,
    MeanLoss,
    evaluation_rows,
    mean_loss,
    share_translation,
)
from dragoman.inference.paired import Gain, bleu_gain
from dragoman.inference.scorer import TextScorer, processes_for
from dragoman.inference.translate import TextSides, Translator
from dragoman.model.transformer import Transformer
from dragoman.records import Before, Evaluation

LONGEST_SAMPLE = 120  # Characters.


@dataclass(frozen=True)
class Sample:
    """A fixed sentence and what the model makes of it now."""

    source: str
    reference: str
    translation: str


@dataclass(frozen=True)
class Evaluated:
    """One validation set at one step: its scores, and sentences to show."""

    scores: Evaluation
    samples: tuple[Sample, ...]
    translations: tuple[str, ...]


class Evaluator:
    """Holds the sets, packed once, and scores a model on them."""

    def __init__(
        self,
        config: Config,
        corpus: PreparedCorpus,
        workers: Workers,
        arithmetic: Callable[[], AbstractContextManager[object]],
        is_asked_to_stop: Callable[[], bool] = lambda: False,
        before: Before | None = None,
    ) -> None:
        self._config = config
        self._workers = workers
        self._arithmetic = arithmetic
        self._is_asked_to_stop = is_asked_to_stop
        self._before = before or Before({})
        source, target = corpus.subwords()
        cleaning = config.cleaning
        self._text = TextSides(source, target, cleaning.normalize_punctuation, cleaning.max_tokens)
        self._translators: dict[str, Translator] = {}  # By tag; kept for what they record on a GPU.
        width, begin = config.batches.row_tokens, target.begin
        self._sets = [
            (one, evaluation_rows(one.name, one.tokens, width, begin), self._make_scorer(one))
            for one in (*corpus.evaluation_sets("validation"), *corpus.old_sets())
        ]
        self._old = {one.name for one in corpus.old_sets()}
        sample = corpus.train_sample(config.evaluation.train_sample_pairs)
        self._train_sample = evaluation_rows("the training sample", sample, width, begin)
        self._search = replace(config.translation, beam=config.evaluation.beam)

    def close(self) -> None:
        """End what scores beside this process."""
        for _, _, scorer in self._sets:
            scorer.close()

    def _scored_pairs(self, one: EvaluationSet) -> int:
        return min(self._config.evaluation.bleu_pairs or len(one.source), len(one.source))

    def _make_scorer(self, one: EvaluationSet) -> TextScorer:
        """On a GPU all else is so fast that scoring the text would take longest."""
        workers, count, processes = self._workers, self._scored_pairs(one), 0
        if workers.device.type == "cuda":
            processes = processes_for(count, workers.hosts.count(workers.hosts[workers.rank]))
        return TextScorer(one.target[:count], self._config.evaluation.bleu_tokenize, processes)

    def evaluate(self, model: Transformer) -> list[Evaluated]:
        """Score the model on every validation set, shared among all workers.

        Raises Interrupted, in all of them, once one is asked to stop.
        """
        if not self._sets:
            return []
        start = time.perf_counter()  # The training sample's seconds count with the first set's.
        model.eval()
        try:
            train_sample = self._mean_loss(model, self._train_sample)
            evaluations = []
            for one, rows, scorer in self._sets:
                evaluations.append(self._evaluate(model, one, rows, scorer, train_sample, start))
                start = time.perf_counter()
        finally:
            model.train()
        return evaluations

    def compare_with(self, first: Sequence[Evaluated]) -> Before:
        """Take translations as those that later ones are compared with."""
        self._before = Before({one.scores.set: one.translations for one in first})
        return self._before

    def _evaluate(
        self,
        model: Transformer,
        one: EvaluationSet,
        rows: Rows,
        scorer: TextScorer,
        train_sample: MeanLoss,
        start: float,
    ) -> Evaluated:
        loss = self._mean_loss(model, rows)
        settings, count = self._config.evaluation, self._scored_pairs(one)
        translations = self._translate(model, one.source[:count], one.tag)
        text = scorer.score(translations)
        gain = self._gain(one, translations)
        samples = tuple(
            Sample(one.source[index], one.target[index], translations[index])
            for index in sample_sentences(one.source[:count], settings.samples)
        )
        scores = Evaluation(
            set=one.name,
            pairs=len(one.source),
            bleu_pairs=count,
            loss=loss.loss,
            nll=loss.nll,
            train_sample_loss=train_sample.loss,
            train_sample_nll=train_sample.nll,
            bleu=text.bleu,
            chrf=text.chrf,
            signature=text.signature,
            chrf_signature=text.chrf_signature,
            seconds=time.perf_counter() - start,
            is_old=one.name in self._old,
            gain=gain.bleu if gain else None,
            gain_interval=(gain.low, gain.high) if gain else None,
        )
        return Evaluated(scores, samples, tuple(translations))

    def _gain(self, one: EvaluationSet, translations: Sequence[str]) -> Gain | None:
        """How much better the set is translated than by the weights that the run started from."""
        before, count = self._before.sets.get(one.name, ()), len(translations)
        if len(before) != count:
            return None
        return bleu_gain(
            before, translations, one.target[:count], self._config.evaluation.bleu_tokenize
        )

    def _mean_loss(self, model: Transformer, rows: Rows) -> MeanLoss:
        smoothing = self._config.training.label_smoothing
        return mean_loss(model, rows, smoothing, self._workers, self._arithmetic)

    def _translate(self, model: Transformer, lines: Sequence[str], tag: str) -> list[str]:
        translator = self._translators.get(tag)
        if translator is None or translator.model is not model:
            translator = Translator(model, replace(self._text, tag=tag), self._workers.device)
            self._translators[tag] = translator

        def look_up(_: int) -> None:
            if self._is_asked_to_stop():
                raise Interrupted

        def translate(part: Sequence[str]) -> list[str]:
            with self._arithmetic():
                found = translator.translate(part, self._search, on_progress=look_up)
            return [best[0].text for best in found]

        return share_translation(lines, translate, self._workers)


def sample_sentences(lines: Sequence[str], count: int) -> list[int]:
    """Choose a few lines, evenly over the set, that fit on a screen's line."""
    short = [index for index, line in enumerate(lines) if 0 < len(line) <= LONGEST_SAMPLE]
    short = short or list(range(len(lines)))
    count = min(count, len(short))
    return [short[len(short) * place // count] for place in range(count)]
