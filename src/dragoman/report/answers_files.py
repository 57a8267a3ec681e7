"""Answers about time and size: the run, its text and its checkpoints."""

from collections.abc import Mapping
from typing import Any

import numpy as np

from dragoman.report.answer import Answer
from dragoman.report.checkpoint_index import SavedCheckpoint
from dragoman.report.evidence import Evidence
from dragoman.report.findings import Findings
from dragoman.report.wording import in_bytes, in_count, in_percent, in_time, plural

PURPOSES = {
    "weights.safetensors": "the model: every parameter in float32; all that translating needs",
    "optimizer.safetensors": "Adam's two moments of every parameter in float32; for going on",
    "state.json": "step, place in the corpus, best scores and checksums; for going on",
}
_DOING = {
    "training": "training",
    "evaluation": "evaluating",
    "checkpoints": "saving",
    "restarts": "lost to restarts",
    "waiting": "waiting",
}
_MUCH = 0.1  # Of the wall time, for anything but training.


def duration(evidence: Evidence, findings: Findings) -> Answer:
    """Split the wall time and count what was done in it."""
    found, train = findings.duration, evidence.history.train
    question = "How long did the run take, and where did the time go?"
    if not np.isfinite(found.wall):
        return _unknown("duration", question, "The log holds no time at all.")
    shares = {
        name: getattr(found, name)
        for name in ("training", "evaluation", "checkpoints", "restarts", "waiting")
    }
    steps = int(np.max(train.step, initial=0.0))
    tokens = float(np.nansum(train.target_tokens))
    epochs = train.epoch[np.isfinite(train.epoch)]
    rate = tokens / found.training if found.training else float("nan")
    opening = {
        "running": "So far the run took",
        "crashed": "Until its log breaks off, the run took",
    }
    split = ", ".join(
        f"{in_time(seconds)} {_DOING[name]} ({in_percent(seconds / found.wall)})"
        for name, seconds in shares.items()
        if found.wall and seconds >= 0.001 * found.wall
    )
    passes = f" in {epochs[-1]:.2f} passes over the corpus" if len(epochs) else ""
    words = (
        f"{opening.get(evidence.state, 'The run took')} {in_time(found.wall)} for "
        f"{plural(steps, 'step')}: {split}."
    )
    if tokens:
        words += f" It read {in_count(tokens)} target tokens{passes}, {in_count(rate)} a second."
    return Answer(
        id="duration",
        question=question,
        verdict=found.wall,
        headline=in_time(found.wall),
        tone="plain",
        answer=words,
        evidence={
            "seconds": found.wall,
            "split": shares,
            "of_restarts": {"steps_made_in_vain": found.lost_steps},
            "of_waiting": {"set_up": found.set_up, "paused": found.paused},
            "steps": steps,
            "steps_lost": len(evidence.history.lost),
            "target_tokens": tokens,
            "epochs": epochs[-1] if len(epochs) else None,
            "tokens_per_second": rate,
            "state": evidence.state,
        },
        confidence="medium" if any("clock" in notice for notice in evidence.missing) else "high",
        next_step=_duration_advice(shares, found.wall),
    )


def _duration_advice(shares: Mapping[str, float], wall: float) -> str:
    others = {name: seconds for name, seconds in shares.items() if name != "training"}
    largest = max(others, key=lambda name: others[name])
    if not wall or others[largest] < _MUCH * wall:
        return "Nothing to do: the run spent its time training."
    return {
        "evaluation": "Evaluate less often (evaluation.every_steps), or score BLEU on fewer "
        "sentences (evaluation.bleu_pairs).",
        "checkpoints": "Save less often (checkpoints.every_steps), or to a faster disk.",
        "restarts": "Find the cause of the restarts (train.log names the first one), and save "
        "more often so that less is lost.",
        "waiting": "Look at what the run waited for: set-up, pauses between its lives, or a "
        "machine that stood still.",
    }[largest]


def training_set(evidence: Evidence, findings: Findings) -> Answer:
    """Sizes from the copy of the corpus's manifest."""
    question = "How large was the training set, and what did cleaning remove?"
    manifest = corpus_manifest(evidence)
    try:
        pairs, filters = manifest["pairs"], manifest["filters"]
        sizes = {
            stage: sum(side[stage] for side in manifest["bytes"].values())
            for stage in ("raw", "cleaned", "prepared")
        }
        tokens = {side: int(count) for side, count in manifest["tokens"].items()}
        removed = {name: int(count) for name, count in filters.items() if count}
        raw_pairs, prepared_pairs = int(pairs["raw"]), int(pairs["prepared"])
    except (KeyError, TypeError, AttributeError, ValueError):
        return _unknown("training_set", question, "The run has no copy of its corpus's manifest.")
    words = (
        f"{in_bytes(sizes['cleaned'])} of clean text ({in_bytes(sizes['raw'])} raw, "
        f"{in_bytes(sizes['prepared'])} prepared) in {prepared_pairs:,} of {raw_pairs:,} pairs, "
        f"{in_count(sum(tokens.values()))} tokens on both sides."
    )
    gone = ", ".join(
        f"{filter_words(name)} {count:,}"
        for name, count in sorted(removed.items(), key=lambda item: -item[1])
    )
    share = 1 - prepared_pairs / raw_pairs if raw_pairs else 0.0
    words += f" Cleaning removed {in_percent(share)}: {gone}." if gone else " Nothing was removed."
    return Answer(
        id="training_set",
        question=question,
        verdict=sizes["cleaned"],
        headline=in_bytes(sizes["cleaned"]),
        tone="plain",
        answer=words,
        evidence={
            "bytes": sizes,
            "bytes_by_side": manifest["bytes"],
            "pairs": {"raw": raw_pairs, "prepared": prepared_pairs},
            "removed": removed,
            "tokens": tokens,
            "vocabulary": manifest.get("vocabulary", {}).get("sizes"),
            "languages": manifest.get("languages"),
        },
        confidence="high",
        next_step="Nothing to do."
        if share < _MUCH
        else "Cleaning removed a lot: look at a few of the pairs that the largest filter caught.",
    )


def corpus_manifest(evidence: Evidence) -> Mapping[str, Any]:
    """The copy of the corpus's manifest in provenance.json."""
    corpus = evidence.provenance.get("corpus")
    manifest = corpus.get("manifest") if isinstance(corpus, dict) else None
    return manifest if isinstance(manifest, dict) else {}


def filter_words(name: str) -> str:
    """A filter's name as people read it."""
    return name.replace("_", " ").replace("utf8", "UTF-8")


def checkpoint_files(evidence: Evidence, findings: Findings) -> Answer:
    """Each file of the latest checkpoint, and why it has that size."""
    question = "What is in a checkpoint?"
    latest = _latest(evidence)
    if latest is None:
        return _unknown("checkpoint_files", question, "No checkpoint has been written yet.")
    parameters = _parameters(evidence)
    named = ", ".join(f"{name} ({in_bytes(size)})" for name, size in latest.files.items())
    words = f"{latest.name} holds {named}."
    expected = None
    if parameters:
        expected = 12 * parameters
        words += (
            f" {parameters:,} parameters x 4 bytes x 3 (weights and Adam's two moments) are "
            f"{expected:,} bytes; the {in_bytes(abs(latest.bytes - expected))} beyond are names "
            "and state."
        )
    return Answer(
        id="checkpoint_files",
        question=question,
        verdict=list(latest.files),
        headline=plural(len(latest.files), "file"),
        tone="plain",
        answer=words,
        evidence={
            "checkpoint": latest.name,
            "files": [
                {"name": name, "bytes": size, "purpose": PURPOSES.get(name, "")}
                for name, size in latest.files.items()
            ],
            "bytes": latest.bytes,
            "parameters": parameters,
            "expected_bytes": expected,
        },
        confidence="high" if parameters else "medium",
        next_step="For translating alone, weights.safetensors is enough.",
    )


def checkpoint_size(evidence: Evidence, findings: Findings) -> Answer:
    """The latest, the best and all kept checkpoints."""
    question = "How large are the checkpoints?"
    latest, index = _latest(evidence), evidence.checkpoints
    if latest is None:
        return _unknown("checkpoint_size", question, "No checkpoint has been written yet.")
    total = sum(item.bytes for item in index.checkpoints)
    best = {
        label: item
        for label, name in (("loss", index.best_loss), ("BLEU", index.best_bleu))
        if (item := index.find(name))
    }
    writes = [write for write in evidence.history.checkpoints if not write.failure]
    blocking = float(np.mean([write.seconds_blocking for write in writes])) if writes else None
    words = f"The latest (step {latest.step:,}) has {in_bytes(latest.bytes)}"
    for label, item in best.items():
        words += f", that with the best {label} (step {item.step:,}) {in_bytes(item.bytes)}"
    words += f"; {plural(len(index.checkpoints), 'kept checkpoint')} take {in_bytes(total)}."
    if blocking is not None:
        words += f" Saving held up training for {in_time(blocking)} each time."
    return Answer(
        id="checkpoint_size",
        question=question,
        verdict=latest.bytes,
        headline=in_bytes(latest.bytes),
        tone="plain",
        answer=words,
        evidence={
            "latest": _checkpoint_json(latest),
            "best_loss": _checkpoint_json(best.get("loss")),
            "best_bleu": _checkpoint_json(best.get("BLEU")),
            "kept": [_checkpoint_json(item) for item in index.checkpoints],
            "bytes_of_all_kept": total,
            "mean_seconds_blocking": blocking,
        },
        confidence="high",
        next_step="checkpoints.keep_latest says how many are kept.",
    )


def _latest(evidence: Evidence) -> SavedCheckpoint | None:
    index = evidence.checkpoints
    newest = index.checkpoints[-1] if index.checkpoints else None
    return index.find(index.latest) or newest


def _checkpoint_json(item: SavedCheckpoint | None) -> dict[str, Any] | None:
    if item is None:
        return None
    return {
        "name": item.name,
        "step": item.step,
        "bytes": item.bytes,
        "loss": item.loss,
        "bleu": item.bleu,
    }


def _parameters(evidence: Evidence) -> int | None:
    model = evidence.provenance.get("model")
    parameters = model.get("parameters") if isinstance(model, dict) else None
    if isinstance(parameters, int):
        return parameters
    calibration = evidence.history.calibration
    return int(calibration.parameters) if calibration and calibration.parameters else None


def _unknown(identity: str, question: str, words: str) -> Answer:
    return Answer(
        id=identity,
        question=question,
        verdict="unclear",
        headline="Unclear",
        tone="plain",
        answer=words,
        evidence={},
        confidence="low",
        next_step="See what is missing, at the top of the report.",
    )
