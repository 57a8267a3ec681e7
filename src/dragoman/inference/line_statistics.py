"""The sums over lines that BLEU and chrF need, which other processes can compute for their share.

Run as a process it reads lines of JSON: first a tokenizer's name and references, then, again and
again, their translations; it answers each time with the sums. It ends with its input.
"""

import json
import signal
import sys
from collections.abc import Sequence

from sacrebleu.metrics.base import Metric
from sacrebleu.metrics.bleu import BLEU
from sacrebleu.metrics.chrf import CHRF

from dragoman.child_process import PARENT, die_with_parent

Sums = list[list[float]]  # Of each metric.


def make_metrics(tokenize: str, references: Sequence[str] | None = None) -> list[Metric]:
    """BLEU and chrF; references that are known are looked at only once."""
    known = [list(references)] if references else None
    # Tokenised text is meant where no tokenizer is; sacreBLEU need not warn of it.
    return [
        BLEU(tokenize=tokenize, force=tokenize == "none", references=known),
        CHRF(references=known),
    ]


def sum_statistics(metrics: Sequence[Metric], translations: Sequence[str]) -> Sums:
    """The sums of each metric over translations of the known references."""
    return [
        [sum(column) for column in zip(*lines, strict=True)]
        for lines in (one._extract_corpus_statistics(translations, None) for one in metrics)
    ]


def main() -> None:
    """Answer whoever started this process."""
    die_with_parent(PARENT)
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # The one who started it decides when to end.
    metrics = make_metrics(*json.loads(sys.stdin.readline()))
    for line in sys.stdin:
        print(json.dumps(sum_statistics(metrics, json.loads(line))), flush=True)


if __name__ == "__main__":
    main()
