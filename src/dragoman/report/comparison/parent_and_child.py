"""What a comparison says if one run started from the other."""

from typing import Any

from dragoman.report.answers.gained_and_forgotten import adaptation_answers
from dragoman.report.comparison.differences import Side, is_child_of


def family_facts(first: Side, second: Side) -> list[dict[str, Any]]:
    """That one run is the other's parent, and what the child gained and forgot."""
    for parent, child in ((first, second), (second, first)):
        recorded = child.evidence.provenance.parent
        if recorded is None or not is_child_of(child, parent):
            continue
        saved = ", ".join(recorded.checkpoints)
        facts = [("parent", f"{child.label} started from the weights of {parent.label} ({saved}).")]
        facts += [(one.id, one.answer) for one in adaptation_answers(child.evidence)]
        none = {"first": None, "second": None}
        return [{"id": name, **none, "words": words} for name, words in facts]
    return []
