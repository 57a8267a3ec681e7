import os
import random
import signal

import pytest

from dragoman.errors import SystemFault
from dragoman.inference.evaluate import score_text
from dragoman.inference.scorer import TextScorer
from support import number_pairs


@pytest.mark.slow
def test_processes_score_as_one_does_time_and_again() -> None:
    references = number_pairs(1_000, 50)[1]
    draw = random.Random(1)
    scorer = TextScorer(references, "13a", processes=3)
    for _ in range(2):
        translations = [
            " ".join(word for word in line.split() if draw.random() > 0.2) for line in references
        ]
        assert scorer.score(translations) == score_text(translations, references, "13a")
    scorer.close()


@pytest.mark.slow
def test_a_process_that_is_gone_is_no_endless_wait() -> None:
    references = number_pairs(1_000, 8)[1]
    scorer = TextScorer(references, "13a", processes=2)
    os.kill(scorer._processes[1].pid, signal.SIGKILL)
    with pytest.raises(SystemFault, match="exited with status -9"):
        scorer.score(references)
    scorer.close()
