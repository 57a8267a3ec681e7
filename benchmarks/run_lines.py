"""What a run has written down, line by line."""

import json
from pathlib import Path
from typing import Any


def lines_of(run: Path, *kinds: str) -> list[dict[str, Any]]:
    """The lines of a run's metrics.jsonl, of some kinds or all; none if there is no such file."""
    path = run / "metrics.jsonl"
    if not path.exists():
        return []
    lines = map(json.loads, path.read_text().splitlines())
    return [line for line in lines if not kinds or line["kind"] in kinds]
