"""What a run that started from another gained on its own text, and forgot of the old."""

from dataclasses import dataclass

from dragoman.records import Evaluation
from dragoman.report.evidence import Evidence
from dragoman.runs.metrics_reader import Logged


@dataclass(frozen=True)
class Change:
    """BLEU of one set against that of the weights that the run started from."""

    set: str
    step: int
    bleu_before: float
    bleu: float
    gain: float
    low: float  # The 95% interval of the gain.
    high: float


@dataclass(frozen=True)
class Adaptation:
    """How a run has changed what it started from; the best step is that of the first set."""

    parent: str
    new: tuple[Change, ...]  # The first validation set, by step.
    old: tuple[tuple[Change, ...], ...]  # Each old set, by step.

    @property
    def best(self) -> Change:
        """Where the first set is translated best."""
        return max(self.new, key=lambda one: one.bleu)

    @property
    def enough(self) -> Change | None:
        """The first evaluation that is as good as the best, as far as can be told.

        None if the best may be no better than what the run started from.
        """
        lowest = self.best.low
        return next(one for one in self.new if one.gain >= lowest) if lowest > 0 else None

    def old_at(self, step: int) -> tuple[Change, ...]:
        """What became of the old sets by a step."""
        return tuple(one for series in self.old for one in series if one.step == step)


def judge_adaptation(evidence: Evidence) -> Adaptation | None:
    """Read the changes from the log; None if the run did not start from another."""
    parent, lines = evidence.provenance.parent, evidence.history.all_evaluations
    if parent is None:
        return None
    first = {line.event.set: line.event.bleu for line in lines if line.step == 0}
    by_set: dict[str, list[Change]] = {}
    old_sets = {line.event.set for line in lines if line.event.is_old}
    for line in lines:
        if change := _change(line, first):
            by_set.setdefault(change.set, []).append(change)
    new = next((tuple(series) for name, series in by_set.items() if name not in old_sets), ())
    old = tuple(tuple(series) for name, series in by_set.items() if name in old_sets)
    return Adaptation(parent.run, new, old)


def _change(line: Logged[Evaluation], first: dict[str, float]) -> Change | None:
    event = line.event
    if not line.step or event.set not in first or event.gain is None:
        return None
    low, high = event.gain_interval or (event.gain, event.gain)
    return Change(event.set, line.step, first[event.set], event.bleu, event.gain, low, high)
