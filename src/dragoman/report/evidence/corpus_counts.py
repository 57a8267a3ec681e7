"""How often each corpus of a mix was read, from the last logged step."""

from collections.abc import Mapping
from pathlib import Path

from dragoman.documents import decode_object, parse_leniently
from dragoman.records import CorpusStep
from dragoman.report.evidence.json_lines import table_of

_BYTES_OF_THE_END = 1 << 20  # Many lines, whatever they hold.


def read_corpus_counts(metrics: Path) -> dict[str, CorpusStep]:
    """What the last train line says of each corpus; empty if the text was not mixed."""
    for line in reversed(_last_lines(metrics)):
        logged = decode_object(line)
        if logged and logged.get("kind") == "train":
            counts: Mapping[str, object] = table_of(logged.get("corpora"))
            return {name: parse_leniently(CorpusStep, one) for name, one in counts.items()}
    return {}


def _last_lines(path: Path) -> list[bytes]:
    if not path.is_file():
        return []
    with open(path, "rb") as file:
        file.seek(max(0, path.stat().st_size - _BYTES_OF_THE_END))
        return file.read().split(b"\n")
