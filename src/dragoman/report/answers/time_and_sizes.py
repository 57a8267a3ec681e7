"""Answers about time and size: the run, its text and its checkpoints."""

from collections.abc import Callable, Mapping
from dataclasses import asdict, fields
from typing import Any

import numpy as np

from dragoman.config import FEW_BITS, ModelSettings, OptimizerKind, moments_kept, shape_of
from dragoman.errors import FIX_FIRST
from dragoman.records import CheckpointEntry
from dragoman.report.answers.advice import spare_evaluations
from dragoman.report.answers.answer import Answer, in_case, unknown
from dragoman.report.answers.corpus_mix import mix_facts, mix_sentences
from dragoman.report.evidence import Evidence
from dragoman.report.evidence.json_lines import table_of
from dragoman.report.evidence.series import NAN
from dragoman.report.findings.analysis import Findings
from dragoman.report.findings.timeline import Duration, DurationReason, Part
from dragoman.thresholds import MUCH_REMOVED
from dragoman.wording import in_bytes, in_count, in_percent, in_time, plural

PURPOSES = {
    "weights.safetensors": "the model: every parameter in float32; all that is needed for "
    "translating",
    "optimizer.safetensors": "optimizer state of every parameter in float32 (with local steps "
    "also what they keep between two exchanges); for resuming",
    "state.json": "step, position in the corpus, best scores and checksums; for resuming",
}
MOMENTS: dict[OptimizerKind, str] = {
    "adam": "values of Adam's two moments",
    "muon": "values of Muon's momentum and Adam's two moments",
}
_DOING: Mapping[Part, str] = {
    "training": "training",
    "evaluation": "evaluating",
    "checkpoints": "saving",
    "restarts": "lost to restarts",
    "waiting": "waiting",
}
_TOO_SMALL_TO_SAY = 0.001  # Of the wall time.


def duration(evidence: Evidence, findings: Findings) -> Answer:
    """Split the wall time and count what was done in it."""
    found, train = findings.duration, evidence.history.train
    question = "How long did the run take, and where did the time go?"
    if not np.isfinite(found.wall):
        return unknown("duration", question, "The log contains no times.")
    tokens = float(np.nansum(train.target_tokens))
    epochs = train.epoch[np.isfinite(train.epoch)]
    rate = tokens / found.parts["training"] if found.parts["training"] else NAN
    words = _time_words(evidence, found)
    is_overcounted = found.overcounted > _TOO_SMALL_TO_SAY * found.wall
    excess = in_time(found.overcounted)
    disagree = f"The parts add up to {excess} more than the wall time: clocks disagree."
    is_sure = not (evidence.history.clock_was_set or evidence.history.gaps or is_overcounted)
    end, stopped_by = evidence.history.end, ""
    if end is not None and end.reason == "error":
        stopped_by = (end.detail or "an error").removesuffix(f"; {FIX_FIRST}")
    if tokens:
        passes = f" in {epochs[-1]:.2f} passes over the corpus" if len(epochs) else ""
        words += f" It read {in_count(tokens)} target tokens{passes}, "
        words += f"{in_count(rate)} a second of training."
    return Answer(
        id="duration",
        question=question,
        verdict=found.wall,
        headline=in_time(found.wall),
        note=plural(train.last_step, "step"),
        answer=words,
        details=(disagree,) if is_overcounted else (),
        evidence={
            "seconds": found.wall,
            "split": found.parts,
            "of_restarts": {"repeated_steps": found.lost_steps},
            "of_waiting": {
                "set_up": found.set_up,
                "paused": found.paused,
                "unexplained": found.unexplained,
            },
            "overcounted": found.overcounted,
            "steps": train.last_step,
            "steps_lost": len(evidence.history.lost),
            "target_tokens": tokens,
            "epochs": epochs[-1] if len(epochs) else None,
            "tokens_per_second": rate,
            "state": evidence.state,
        },
        tone="bad" if stopped_by else "plain",
        confidence="high" if is_sure else "medium",
        next_step=_after_an_error(stopped_by)
        if stopped_by
        else in_case(ADVICE_BY_REASON[found.reason], findings),
    )


def _after_an_error(reason: str) -> str:
    if reason.startswith("no finite gradient"):  # A resumed run keeps its settings.
        return f"Start a new run with other settings: these stopped it ({reason})."
    return f"Mend what stopped it ({reason}), then run the same command to resume."


def _time_words(evidence: Evidence, found: Duration) -> str:
    opening = {
        "running": "So far the run has taken",
        "crashed": "Up to the point where its log ends, the run took",
    }.get(evidence.state, "The run took")
    split = ", ".join(
        f"{in_time(seconds)} {_DOING[name]} ({in_percent(seconds / found.wall)})"
        for name, seconds in found.parts.items()
        if found.wall and seconds > _TOO_SMALL_TO_SAY * found.wall
    )
    steps = plural(evidence.history.train.last_step, "step")
    return f"{opening} {in_time(found.wall)} for {steps}{f': {split}' if split else ''}."


def spare_restarts(findings: Findings) -> str:
    """What to do about restarts; to save more often, where steps had to be repeated for long."""
    found = findings.duration
    lose_less = 2 * found.lost_steps > found.parts["restarts"]
    advice = "Mend the causes of the restarts, named under What is missing or odd"
    return f"{advice}{', and save more often to lose less' if lose_less else ''}."


ADVICE_BY_REASON: Mapping[DurationReason, str | Callable[[Findings], str]] = {
    "mostly training": "Nothing to do: the run spent its time training.",
    "evaluation": spare_evaluations,
    "checkpoints": "Save less often (checkpoints.every_steps), or to a faster disk.",
    "restarts": spare_restarts,
    "set-up": "Most of the waiting is set-up before the first step, which matters little in a "
    "longer run.",
    "pauses": "Most of the waiting is between a stop and the next resume: nothing to do.",
    "gaps": "Find out what happened in the gaps that the log does not explain: a clock was set, "
    "or a machine hung.",
}


def training_set(evidence: Evidence, findings: Findings) -> Answer:
    """Sizes from the copy of the corpus's manifest."""
    question = "How large was the training set, and what did cleaning remove?"
    manifest = evidence.corpus
    pairs, tokens = manifest.pairs, dict(manifest.tokens)
    if not pairs.raw:
        return unknown("training_set", question, "The run has no copy of the corpus manifest.")
    sizes = {
        stage: sum(getattr(side, stage) for side in manifest.bytes.values())
        for stage in ("raw", "cleaned", "prepared")
    }
    removed = {name: count for name, count in manifest.filters.items() if count}
    gone = ", ".join(
        f"{filter_words(name)} {count:,}"
        for name, count in sorted(removed.items(), key=lambda item: -item[1])
    )
    share = 1 - pairs.prepared / pairs.raw
    return Answer(
        id="training_set",
        question=question,
        verdict=sizes["cleaned"],
        headline=in_bytes(sizes["cleaned"]),
        note=f"{pairs.prepared:,} pairs, {in_percent(share) if gone else 'none'} removed",
        answer=f"{in_bytes(sizes['cleaned'])} of clean text ({in_bytes(sizes['raw'])} raw, "
        f"{in_bytes(sizes['prepared'])} prepared) in {pairs.prepared:,} of {pairs.raw:,} "
        f"pairs, {in_count(sum(tokens.values()))} tokens on both sides. "
        + (f"Cleaning removed {in_percent(share)}: {gone}." if gone else "Nothing was removed."),
        evidence={
            "bytes": sizes,
            "bytes_by_side": {side: asdict(one) for side, one in manifest.bytes.items()},
            "pairs": asdict(pairs),
            "removed": removed,
            "tokens": tokens,
            "vocabulary": list(manifest.vocabulary.sizes) or None,
            "languages": dict(manifest.languages) or None,
            "corpora": mix_facts(evidence) or None,
        },
        details=mix_sentences(evidence),
        confidence="high",
        next_step="Nothing to do."
        if share < MUCH_REMOVED.value
        else "Cleaning removed a lot: look at some of the pairs that the largest filter caught.",
    )


def filter_words(name: str) -> str:
    """A filter's name as people read it."""
    return name.replace("_", " ").replace("utf8", "UTF-8")


def checkpoint_files(evidence: Evidence, findings: Findings) -> Answer:
    """Each file of the latest checkpoint, and why it has that size."""
    question = "What is in a checkpoint?"
    index, parameters = evidence.checkpoints, evidence.parameters
    latest = index.named(index.latest)
    if latest is None:
        return unknown("checkpoint_files", question, _no_checkpoint(evidence))
    named = ", ".join(f"{name} ({in_bytes(file.bytes)})" for name, file in latest.files.items())
    words = f"{latest.name} holds {named}."
    contents = _contents(evidence, parameters)
    expected = 4 * sum(contents.values()) if parameters and contents else None
    if expected:
        beyond = latest.bytes - expected
        rest = (
            f"the other {in_bytes(beyond)} are names and state"
            if beyond >= 0
            else f"the files are {in_bytes(-beyond)} short of that"
        )
        *first, last = (f"{count:,} {name}" for name, count in contents.items())
        numbers = f"{', '.join(first)} and {last}"
        words += f" At 4 bytes each, the {numbers} come to {expected:,} bytes; {rest}."
    return Answer(
        id="checkpoint_files",
        question=question,
        verdict=list(latest.files),
        headline=plural(len(latest.files), "file"),
        note=f"{parameters:,} parameters" if parameters else "",
        answer=words,
        evidence={
            "checkpoint": latest.name,
            "files": [
                {"name": name, "bytes": file.bytes, "purpose": PURPOSES.get(name, "")}
                for name, file in latest.files.items()
            ],
            "bytes": latest.bytes,
            "parameters": parameters,
            "expected_bytes": expected,
        },
        confidence="high" if parameters else "medium",
        next_step="For translating, weights.safetensors is enough.",
    )


def _contents(evidence: Evidence, parameters: int | None) -> dict[str, int]:
    """How many numbers of each kind a checkpoint holds; empty if the settings do not tell."""
    table, known = table_of(evidence.settings.get("model")), {i.name for i in fields(ModelSettings)}
    kind: OptimizerKind = evidence.setting("optimizer", "kind") or "adam"
    if kind != "adam" and not table:
        return {}
    try:
        shape = shape_of(ModelSettings(**{key: table[key] for key in table.keys() & known}))
        moments = moments_kept(kind, parameters or 0, shape)
    except (KeyError, TypeError, AssertionError):
        return {}
    contents = {"weights": parameters or 0, MOMENTS[kind]: moments}
    sync, compression = (evidence.setting("distributed", name) for name in ("sync", "compression"))
    return contents | dict.fromkeys(kept_by_local_steps(sync, compression), parameters or 0)


def kept_by_local_steps(sync: str | None, compression: str | None) -> tuple[str, ...]:
    """What a checkpoint holds of every parameter because of local steps, in words."""
    if sync != "local":
        return ()
    kept = ("of a worker's own weights", "of the outer momentum", "of what was sent last")
    return (*kept, "of what rounding kept back") if compression in FEW_BITS else kept


def checkpoint_size(evidence: Evidence, findings: Findings) -> Answer:
    """The latest, the best and all kept checkpoints."""
    question = "How large are the checkpoints?"
    index, writes = evidence.checkpoints, evidence.history.checkpoints
    latest, best_loss, best_bleu = map(
        index.named, (index.latest, index.best_loss, index.best_bleu)
    )
    if latest is None:
        return unknown("checkpoint_size", question, _no_checkpoint(evidence))
    total = sum(item.bytes for item in index.checkpoints)
    kept = plural(len(index.checkpoints), "kept checkpoint")
    stops = [write.event.seconds_blocking for write in writes]
    blocking = float(np.mean(stops)) if stops else None
    words = f"The latest (step {latest.step:,}) takes {in_bytes(latest.bytes)}"
    for label, item in (("loss", best_loss), ("BLEU", best_bleu)):
        if item is not None:
            words += f", the one with the best {label} (step {item.step:,}) {in_bytes(item.bytes)}"
    verb = "takes" if len(index.checkpoints) == 1 else "take"
    words += f"; {kept} {verb} {in_bytes(total)}."
    if blocking is not None:
        words += f" Each save paused training for {in_time(blocking)}."
    return Answer(
        id="checkpoint_size",
        question=question,
        verdict=latest.bytes,
        headline=in_bytes(latest.bytes),
        note=f"{kept}, {in_bytes(total)}",
        answer=words,
        evidence={
            "latest": _checkpoint_json(latest),
            "best_loss": _checkpoint_json(best_loss),
            "best_bleu": _checkpoint_json(best_bleu),
            "kept": [_checkpoint_json(item) for item in index.checkpoints],
            "bytes_of_all_kept": total,
            "mean_seconds_blocking": blocking,
        },
        confidence="high",
        next_step="checkpoints.keep_latest sets how many are kept.",
    )


def _no_checkpoint(evidence: Evidence) -> str:
    writes = evidence.history.checkpoints
    if not writes:
        return "No checkpoint has been written yet."
    latest, written = writes[-1], plural(len(writes), "checkpoint")
    return (
        f"The log mentions {written}, the last at step {latest.step:,} with "
        f"{in_bytes(latest.event.bytes)}, but none is in this folder."
    )


def _checkpoint_json(item: CheckpointEntry | None) -> dict[str, Any] | None:
    if item is None:
        return None
    return {name: getattr(item, name) for name in ("name", "step", "bytes", "loss", "bleu")}
