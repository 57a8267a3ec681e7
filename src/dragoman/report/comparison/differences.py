"""The differences between two runs, in numbers and in sentences."""

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from dragoman.corpus.manifest import SIDES
from dragoman.report.answers.answer import Answer
from dragoman.report.evidence import Evidence
from dragoman.report.findings.analysis import Findings
from dragoman.thresholds import MEANINGFUL_BLEU_GAIN, SAME_LINK, SAME_SPEED
from dragoman.wording import in_bits_per_second, in_count, in_time

_OF_ITS_TEXT = "checksums of its text"


@dataclass(frozen=True)
class Side:
    """One of the two runs."""

    label: str
    evidence: Evidence
    findings: Findings
    answers: tuple[Answer, ...]


def differing(first: dict[str, Any], second: dict[str, Any]) -> dict[str, list[Any]]:
    """What the two do not share, with None where one of them says nothing."""
    names = dict.fromkeys((*first, *second))
    pairs = {name: [first.get(name), second.get(name)] for name in names}
    return {name: pair for name, pair in pairs.items() if pair[0] != pair[1]}


def shown(value: Any) -> str:
    """A setting as a reader would write it."""
    if value is None or value == "":
        return "not set"
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False, default=str)


def facts_of(first: Side, second: Side) -> list[dict[str, Any]]:
    """What the change did, each as numbers and as a sentence."""
    wall_time = _fact(
        "wall_time",
        [side.findings.duration.wall for side in (first, second)],
        lambda one, other: (
            f"The whole run took {in_time(one)} in {first.label} and {in_time(other)} in "
            f"{second.label}."
        ),
    )
    losses = _loss_fact(first, second)
    speeds = [*_speed_facts(first, second), _link_fact(first, second)]
    facts = [*speeds, *_bleu_facts(first, second), losses, wall_time]
    return [fact for fact in facts if fact]


def _speed_facts(first: Side, second: Side) -> list[dict[str, Any] | None]:
    """Seconds a step, and the speed: that of steps, or of tokens where their number differs."""
    labels = (first.label, second.label)
    sizes = [side.evidence.setting("batches", "tokens_per_step") for side in (first, second)]
    same_size = sizes[0] == sizes[1]
    return [
        _fact(
            "step_time",
            [
                side.findings.times.mean if side.findings.times else np.nan
                for side in (first, second)
            ],
            lambda one, other: (
                f"A step takes {in_time(one)} in {labels[0]} and {in_time(other)} in {labels[1]}"
                + (f": {_times_as_fast(labels[1], one / other)}." if same_size else ".")
            ),
        ),
        _fact(
            "tokens_per_second",
            [_tokens_per_second(side) for side in (first, second)],
            lambda one, other: (
                f"Steps differ in size ({sizes[0]:,} and {sizes[1]:,} slots). {labels[0]} trains "
                f"on {in_count(one)} target tokens a second and {labels[1]} on {in_count(other)}: "
                f"{_times_as_fast(labels[1], other / one)}."
            ),
        )
        if not same_size and all(sizes)
        else None,
    ]


def _link_fact(first: Side, second: Side) -> dict[str, Any] | None:
    """What the slowest links carried, if the runs had links that differ."""
    carried = [side.evidence.goodput for side in (first, second)]
    if min(carried) > (1 - SAME_LINK.value) * max(carried):
        return None
    return _fact(
        "slowest_link",
        carried,
        lambda one, other: (
            f"The slowest link between machines carried {in_bits_per_second(one)} in "
            f"{first.label} and {in_bits_per_second(other)} in {second.label}."
        ),
    )


def _tokens_per_second(side: Side) -> float:
    """As the run's own report has it."""
    duration = next(answer for answer in side.answers if answer.id == "duration")
    return float(duration.evidence.get("tokens_per_second", np.nan))


def _bleu_facts(first: Side, second: Side) -> list[dict[str, Any] | None]:
    """The best score and the time to it, if both runs were scored in the same way."""
    labels = (first.label, second.label)
    series = [side.evidence.evaluations for side in (first, second)]
    best = [np.nan if one is None else one.best_bleu for one in series]
    if not np.isfinite(best).all():
        return []
    differences = differing(*(way_of_scoring(side.evidence) for side in (first, second)))
    if differences:
        return [
            {
                "id": "not_comparable",
                "first": best[0],
                "second": best[1],
                "words": f"The best BLEU is {best[0]:.2f} in {labels[0]} and {best[1]:.2f} in "
                f"{labels[1]}. {_not_comparable('these', 'measured', differences)}",
            }
        ]
    goal = min(best)
    has_head_start = is_child_of(second, first) or is_child_of(first, second)
    return [
        _fact(
            "best_bleu",
            best,
            lambda one, other: (
                f"The best BLEU is {one:.2f} in {labels[0]} and {other:.2f} in "
                f"{labels[1]}: {_better_by(other - one)}."
            ),
        ),
        _fact(
            "seconds_to_same_bleu",
            [_seconds_to_bleu(side.evidence, goal) for side in (first, second)],
            lambda one, other: (
                f"BLEU {goal:.2f}, the highest that both reached, took "
                f"{in_time(one)} in {labels[0]} and {in_time(other)} in {labels[1]}: "
                f"{_times_as_fast(labels[1], one / other)}."
            ),
        )
        if not has_head_start
        else None,
    ]


def is_child_of(child: Side, parent: Side) -> bool:
    """Whether a run started from the weights of the other."""
    recorded = child.evidence.provenance.parent
    return recorded is not None and recorded.run == parent.evidence.name


def _loss_fact(first: Side, second: Side) -> dict[str, Any] | None:
    """The lowest eval losses of the same text, or why they do not compare."""
    ways = [way_of_counting_loss(side.evidence) for side in (first, second)]
    differences = differing(*ways)
    if not differences:
        scored = [way_of_scoring(side.evidence) for side in (first, second)]
        if any(scored[0][name] != scored[1][name] for name in ("set", _OF_ITS_TEXT)):
            return None
        series = [side.evidence.evaluations for side in (first, second)]
        return _fact(
            "best_loss",
            [np.nan if one is None else one.lowest_loss for one in series],
            lambda one, other: (
                f"The lowest eval loss is {one:.3f} in {first.label} and {other:.3f} in "
                f"{second.label}: {other - one:+.3f}."
            ),
        )
    return {
        "id": "losses_not_comparable",
        "first": ways[0],
        "second": ways[1],
        "words": _not_comparable("the losses", "computed", differences),
    }


def _not_comparable(what: str, done: str, differences: dict[str, list[Any]]) -> str:
    ways = ", ".join(
        f"{name}: {' and '.join('not known' if one is None else shown(one) for one in pair)}"
        for name, pair in differences.items()
    )
    if all(None in pair for pair in differences.values()):
        return f"Whether {what} are comparable is not known ({ways})."
    return f"{what.capitalize()} are not comparable, because they were {done} differently ({ways})."


def way_of_scoring(evidence: Evidence) -> dict[str, Any]:
    """What must be the same for two scores to be compared."""
    series = evidence.evaluations
    name = series.name if series is not None else None
    sums = _checksums(evidence, [f"validation.{name}.{side}.txt" for side in SIDES])
    return {
        "set": name,
        _OF_ITS_TEXT: sums,
        "signature": series.signature if series is not None else None,
        "evaluation.beam": evidence.setting("evaluation", "beam"),
        "evaluation.bleu_pairs": evidence.setting("evaluation", "bleu_pairs"),
    }


def way_of_counting_loss(evidence: Evidence) -> dict[str, Any]:
    """What must be the same for two losses per token to be compared."""
    vocabulary = evidence.corpus.vocabulary
    return {
        "subwords": list(vocabulary.sizes) or None,
        "checksums of the vocabulary": _checksums(evidence, vocabulary.files),
        "training.label_smoothing": evidence.setting("training", "label_smoothing"),
    }


def _checksums(evidence: Evidence, names: Sequence[str]) -> str | None:
    """The beginnings of the checksums of files of the corpus, as far as they are known."""
    files = evidence.corpus.files
    return " ".join(files[name].sha256[:8] for name in names if name in files) or None


def _fact(
    name: str, values: Sequence[float], words: Callable[[float, float], str]
) -> dict[str, Any] | None:
    """A fact about both runs, if both know it."""
    one, other = values
    if not np.isfinite(values).all():
        return None
    return {"id": name, "first": one, "second": other, "words": words(one, other)}


def _better_by(bleu: float) -> str:
    least = MEANINGFUL_BLEU_GAIN.value
    matters = "" if abs(bleu) >= least else f", less than the {least:g} that count as a gain"
    return f"{bleu:+.2f}{matters}"


def _times_as_fast(label: str, ratio: float) -> str:
    if abs(ratio - 1) < SAME_SPEED.value:
        return "no difference that matters"
    if ratio < 1:
        return f"{label} takes {1 / ratio:.2f} times as long"
    return f"{label} is {ratio:.2f} times as fast"


def _seconds_to_bleu(evidence: Evidence, goal: float) -> float:
    series = evidence.evaluations
    there = series.time[series.bleu >= goal] if series is not None else np.zeros(0)
    return float(there[0] - evidence.history.first_time) if len(there) else np.nan
