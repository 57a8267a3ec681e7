"""What each corpus of a mix contributed, in words."""

import math
from typing import Any

from dragoman.report.evidence import Evidence
from dragoman.wording import in_percent


def mix_facts(evidence: Evidence) -> dict[str, Any]:
    """Sizes and epochs of each corpus; empty if the text was not mixed."""
    sizes = evidence.corpus.corpora or {}
    return {
        name: {
            "pairs": sizes[name].pairs,
            "epochs": one.epoch,
            "pairs_read": one.epoch * sizes[name].pairs,
        }
        for name, one in evidence.corpora.items()
        if name in sizes and math.isfinite(one.epoch)
    }


def mix_sentences(evidence: Evidence) -> tuple[str, ...]:
    """A sentence for each corpus."""
    facts = mix_facts(evidence)
    read = sum(one["pairs_read"] for one in facts.values())
    return tuple(
        f"{name}: {one['pairs']:,} pairs, read {one['epochs']:.2f} times: "
        f"{in_percent(one['pairs_read'] / read)} of all pairs read."
        for name, one in facts.items()
        if read
    )
