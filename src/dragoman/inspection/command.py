"""What `dragoman inspect` does, and `prepare` and the demo after they have prepared a corpus."""

import os
from pathlib import Path

from dragoman.config import Config
from dragoman.corpus.inputs import OldRun, find_inputs
from dragoman.corpus.manifest import MANIFEST
from dragoman.corpus.prepare import INSPECTED
from dragoman.inspection.inspect import inspect_text
from dragoman.inspection.page import (
    leak_warning,
    read_findings,
    summary,
    write_inspection,
)


def inspect_corpus(config: Config, processes: int | None = None, old: OldRun | None = None) -> None:
    """Inspect all text, write the page, and say what a person should know at once."""
    cores = processes or len(os.sched_getaffinity(0))
    found = inspect_text(config, find_inputs(config, old), cores)
    page = write_inspection(Path(config.corpus.folder), config, found)
    for line in summary(found, config.cleaning):
        print(line)
    print(page)


def inspect_prepared(
    config: Config, processes: int | None = None, old: OldRun | None = None
) -> None:
    """Inspect a corpus that was prepared, unless it was before; what leaked is told every time."""
    folder = Path(config.corpus.folder)
    manifest, page = (folder / name for name in (MANIFEST, INSPECTED[0]))
    is_new = page.exists() and page.stat().st_mtime >= manifest.stat().st_mtime
    findings = read_findings(folder) if is_new else None
    if findings is None:
        inspect_corpus(config, processes, old)
    elif warning := leak_warning(findings, config.cleaning):
        print(f"{warning}\n{page}")
