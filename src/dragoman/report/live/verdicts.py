"""Watches a run's verdicts during training and reports when one changes.

`dragoman train` starts `python -m dragoman.report.live.verdicts RUN` if `[notify]` asks for it.
"""

import sys
import time
from collections.abc import Iterator, Mapping
from pathlib import Path

from dragoman.child_process import die_with_agent
from dragoman.config import NotifySettings
from dragoman.config_file import load_saved_config
from dragoman.console import say
from dragoman.notify import Notice, notify
from dragoman.report.answers import answers_now
from dragoman.report.answers.answer import Answer
from dragoman.report.live.run_state import LARGEST_SHARE
from dragoman.runs.folder import RunFolder

SHORTEST_WAIT_SECONDS = 30.0


def changes(before: Mapping[str, Answer], after: Mapping[str, Answer]) -> Iterator[str]:
    """A sentence for each verdict that was another; numbers change all the time."""
    for name, answer in after.items():
        earlier = before.get(name)
        if earlier is None or not isinstance(answer.verdict, str):
            continue
        if answer.verdict != earlier.verdict:
            yield f"{answer.question} Was {earlier.verdict}, now {answer.verdict}: {answer.answer}"


def tell_changes(
    run: RunFolder, settings: NotifySettings, before: Mapping[str, Answer]
) -> dict[str, Answer]:
    """Look at the run once, and tell of every verdict that changed."""
    after = {answer.id: answer for answer in answers_now(run.path)}
    for message in changes(before, after):
        notify(settings, Notice("verdict", run.name, message), say)
    return after


def main() -> None:
    """Look again and again, as rarely as the live page does, until the training ends."""
    die_with_agent()
    run = RunFolder(Path(sys.argv[1]))
    known: dict[str, Answer] = {}
    while True:
        spent = time.process_time()
        if run.exists() and run.metrics.exists():
            known = tell_changes(run, load_saved_config(run.config).notify, known)
        spent = time.process_time() - spent
        time.sleep(max(SHORTEST_WAIT_SECONDS, spent / LARGEST_SHARE))


if __name__ == "__main__":
    main()
