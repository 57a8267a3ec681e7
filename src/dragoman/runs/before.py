"""Translations by the weights a run started from, for comparison with later ones."""

import json

from dragoman.documents import encode, read_document
from dragoman.files import write_whole
from dragoman.records import Before
from dragoman.runs.folder import RunFolder


def write_before(run: RunFolder, before: Before) -> None:
    """Put the translations into the run folder."""
    write_whole(run.before, json.dumps(encode(before), ensure_ascii=False).encode())


def read_before(run: RunFolder) -> Before | None:
    """Read them again; None if the run did not start from another, or is about to."""
    # Machines that share a history may have shared that there is none.
    if not run.before.is_file() or not run.before.stat().st_size:
        return None
    return read_document(run.before, Before, "restore it, or delete it to train without it")
