"""BLEU and chrF of the translations of one set, evaluated repeatedly."""

import json
import os
import subprocess
import sys
from collections.abc import Sequence
from contextlib import suppress

from dragoman.child_process import SAFE_PATH, SAFE_PATH_VARIABLE
from dragoman.errors import SystemFault
from dragoman.inference.evaluate import TextScores, score_text
from dragoman.inference.line_statistics import Sums, make_metrics

LINES_PER_PROCESS = 250  # With fewer, a process is not worth its start.
MOST_PROCESSES = 8


class TextScorer:
    """Scores translations of the same references, here or in processes beside each other.

    These know the references already, which halves the work, and what they find is summed: the
    scores are the same to the last bit.
    """

    def __init__(self, references: Sequence[str], tokenize: str, processes: int = 0) -> None:
        self._references, self._tokenize = references, tokenize
        self._processes = [
            subprocess.Popen(
                [sys.executable, "-m", "dragoman.inference.line_statistics"],
                env=os.environ | {SAFE_PATH_VARIABLE: SAFE_PATH},
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                text=True,
                encoding="utf-8",
            )
            for _ in range(processes)
        ]
        self._tell([[tokenize, part] for part in self._share(references)])

    def score(self, translations: Sequence[str]) -> TextScores:
        """Score as many translations as there are references."""
        if not self._processes:
            return score_text(translations, self._references, self._tokenize)
        self._tell(self._share(translations))
        parts = [self._collect(process) for process in self._processes]
        metrics = make_metrics(self._tokenize)
        scores = [
            metric._aggregate_and_compute(list(sums)).score
            for metric, sums in zip(metrics, zip(*parts, strict=True), strict=True)
        ]
        for metric in metrics:
            metric.num_refs = 1  # Part of the signature; they have not seen any themselves.
        return TextScores(*scores, *(str(metric.get_signature()) for metric in metrics))

    def close(self) -> None:
        """End the processes."""
        for process in self._processes:
            with suppress(OSError):
                process.communicate()

    def _share(self, lines: Sequence[str]) -> list[list[str]]:
        count = len(self._processes)
        return [list(lines[place::count]) for place in range(count)]

    def _tell(self, messages: Sequence[object]) -> None:
        for process, message in zip(self._processes, messages, strict=True):
            assert process.stdin
            try:
                process.stdin.write(json.dumps(message) + "\n")
                process.stdin.flush()
            except OSError:
                self._collect(process)

    def _collect(self, process: "subprocess.Popen[str]") -> Sums:
        assert process.stdout
        answer = process.stdout.readline()
        if not answer:
            raise SystemFault(
                f"a scoring process exited with status {process.wait()}; the same command "
                "resumes the run"
            )
        sums: Sums = json.loads(answer)
        return sums


def processes_for(lines: int, workers_here: int) -> int:
    """How many processes score so many lines fastest on a machine that has cores to spare."""
    cores = len(os.sched_getaffinity(0)) // (2 * workers_here)
    return min(MOST_PROCESSES, cores, lines // LINES_PER_PROCESS)
