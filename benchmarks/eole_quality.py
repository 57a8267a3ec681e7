"""BLEU of Eole on newstest2013 against minutes of training on one GPU, for `europarl.py draw`.

    PYTHONPATH=build/eole python benchmarks/eole_quality.py PREPARED STEPS > eole.jsonl

`eole_command.py` says how that folder is made. The text, the size of the model and the tokens of a
step are those of our recipes; mixed precision and batches are as `eole_gpu.py` has them. The rate
rises to the peak for 800 steps and falls to zero as a cosine: of what Eole has, the fastest in so
few steps. Minutes are its steps at their median pace, so that neither its start nor saving counts;
it translates greedily in the end.
"""

import argparse
import json
import re
import statistics
import sys
import tempfile
import time
from itertools import pairwise
from pathlib import Path

import torch

from dragoman.corpus.store import PreparedCorpus
from dragoman.inference.evaluate import score_text
from eole_gpu import run, write_config
from europarl import PEAK, SET, TOKENS_PER_STEP, WARM_UP_STEPS
from peers import words_of, write_for_eole

SAVED = 4  # Times, evenly.
SCHEDULE = f"learning_rate: {PEAK}\n  warmup_steps: {{}}\n  decay_method: cosine"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("prepared", type=Path)
    parser.add_argument("steps", type=int)
    parser.add_argument("--slots", type=int, default=TOKENS_PER_STEP)
    parser.add_argument("--way", default="autocast")
    parser.add_argument("--text", type=Path, help="where its text is; written if there is none")
    arguments = parser.parse_args()
    corpus, steps = PreparedCorpus(arguments.prepared), arguments.steps
    with tempfile.TemporaryDirectory() as name:
        folder = arguments.text or Path(name) / "eole"
        if not folder.exists():
            write_for_eole(corpus, folder, len(corpus.train))
        schedule = SCHEDULE.format(min(WARM_UP_STEPS, steps // 4))
        every = steps // SAVED
        config = write_config(folder, arguments.slots, arguments.way, steps, every, schedule)
        seconds = train(config)
        for step in range(every, steps + 1, every):
            bleu = translate(corpus, folder, folder / "model" / f"step_{step}")
            line = {"minutes": step * seconds / 60, "step": step, "bleu": bleu}
            print(json.dumps(line), flush=True)


def train(config: str) -> float:
    """Seconds of a step, as its lines come: the median, which leaves out saving."""
    lines, told = [], list[tuple[int, float]]()
    for line in run(["train", "-c", config]):
        lines.append(line)
        found = re.search(r"Step (\d+)/.*tok/s", line)
        if found:
            told.append((int(found[1]), time.monotonic()))
            print(line.strip(), file=sys.stderr)
    if len(told) < 2:
        sys.exit("".join(lines[-40:]))
    return statistics.median(
        (until - since) / (last - first) for (first, since), (last, until) in pairwise(told)
    )


def translate(corpus: PreparedCorpus, folder: Path, model: Path) -> float:
    """BLEU of the set, as its own command translates it."""
    source, target = corpus.subwords()
    pairs = next(one for one in corpus.evaluation_sets("validation") if one.name == SET)
    words = words_of(target.size)
    lines = (
        " ".join(words[token] for token in one[:-1]) for one in source.encode(list(pairs.source))
    )
    (folder / "in.txt").write_text("".join(f"{line}\n" for line in lines))
    command = ["predict", "--model_path", str(model), "--src", str(folder / "in.txt")]
    command += ["--output", str(folder / "out.txt"), "--beam_size", "1"]
    command += ["--batch_type", "tokens", "--batch_size", "16384"]
    command += ["--gpu_ranks", "0", "--world_size", "1"] if torch.cuda.is_available() else []
    told = list(run(command))
    if not (folder / "out.txt").exists():
        sys.exit("".join(told[-40:]))
    places = {word: place for place, word in enumerate(words)}
    made = [
        [places[word] for word in line.split() if word in places]
        for line in (folder / "out.txt").read_text().splitlines()
    ]
    (folder / "out.txt").unlink()
    return score_text(target.decode(made), list(pairs.target), "13a").bleu


if __name__ == "__main__":
    main()
