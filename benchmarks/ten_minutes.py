"""The best greedy translation in ten minutes: a model that learns from its own beam search.

    python benchmarks/ten_minutes.py configs/europarl-minutes.toml FOLDER [--steps N] [--minutes M]

On one GPU, after `dragoman prepare` of the recipe, every command as a user would give it, and the
clock of the wall over all of them:

    train     the recipe, in so many steps
    distill   lines of its training text, spread evenly, translated with a beam by its last
              checkpoints' average; of each beam what is most like the true translation
    prepare   that text once more, and these pairs
    again     from its weights, on both, in as many steps as the time left allows
    evaluate  the average of the last checkpoints, greedily

What a beam finds is what the second model learns to say at once. Settings (NAME=VALUE) are for
both trainings, those after --second for the second one alone. What to translate is chosen while the
first one runs.
"""

import argparse
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from itertools import islice
from pathlib import Path

from dragoman.config import (
    Config,
    CorpusSettings,
    ParallelText,
    StageSettings,
    VocabularySettings,
    corpus_names,
)
from dragoman.config_file import dump_config, load_config
from dragoman.corpus.text import read_pairs, resolve_files
from run_lines import lines_of

LATE = 0.75  # Of the steps, until the recipe's last text and the translated pairs count more.
CHECKPOINTS, EVALUATIONS = 16, 3  # Of each training, evenly.
SECONDS_BESIDE_STEPS = 34.0  # Of the second training and the evaluation after it.
AVERAGED = ("--average", "4")
NAME = "distilled"


def main() -> None:
    arguments = parse()
    folder: Path = arguments.folder.absolute()
    folder.mkdir(parents=True, exist_ok=True)
    recipe = load_config(arguments.recipe, arguments.settings)
    last = corpus_names(recipe.corpus)[-1]
    late = {last: arguments.late}
    first = write(folder, "first", with_steps(recipe, arguments.steps, late))
    begun = time.monotonic()
    print("| command | seconds |\n|---|---|", flush=True)
    with ThreadPoolExecutor(1) as beside:
        chosen = beside.submit(choose_lines, recipe.corpus, folder, arguments.every)
        dragoman("train", first, "--run", folder / "runs" / "first", "--workers", "1")
        count = chosen.result()
    words = ("--input", folder / "lines.source", "--output", folder / NAME)
    beam = ("--beam", str(arguments.beam), *AVERAGED)
    like = ("--reference", folder / "lines.target", "--n-best", str(arguments.beam), "--by", "bleu")
    workers = ("--workers", str(arguments.workers), *arguments.how)
    dragoman("augment", "distill", folder / "runs" / "first", *words, *beam, *like, *workers)
    late[NAME] = arguments.late_weight
    dragoman("prepare", write(folder, "again", taught(folder, arguments, late, arguments.steps)))
    steps = steps_in(60 * arguments.minutes - (time.monotonic() - begun), folder)
    again = write(folder, "again", taught(folder, arguments, late, steps))
    dragoman("train", again, "--run", folder / "runs" / "again", "--workers", "1")
    print(f"| until here | {time.monotonic() - begun:.1f} |", flush=True)
    scored = ("--set", next(iter(recipe.corpus.validation)))
    dragoman("evaluate", folder / "runs" / "again", *scored, *AVERAGED, "--beam", "1")
    seconds = time.monotonic() - begun
    print(f"| all, of {count:,} lines | {seconds:.1f} |\n\n| run | step | set | loss | BLEU |")
    print("|---|---|---|---|---|")
    for name in ("first", "again"):
        for line in lines_of(folder / "runs" / name, "eval"):
            print(
                f"| {name} | {line['step']} | {line['set']} | {line['loss']:.3f} "
                f"| {line['bleu']:.2f} |"
            )


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("recipe", type=Path)
    parser.add_argument("folder", type=Path)
    parser.add_argument("settings", nargs="*", metavar="NAME=VALUE")
    parser.add_argument("--steps", type=int, default=7_200)
    parser.add_argument("--minutes", type=float, default=10.0)
    parser.add_argument("--second", nargs="*", default=[], metavar="NAME=VALUE")
    parser.add_argument("--peak", type=float, default=2e-3, help="of the second training")
    parser.add_argument("--late", type=float, default=4.0, help="weight of the last text, late")
    parser.add_argument(
        "--every", type=int, default=4, help="line is translated, but all of the last text"
    )
    parser.add_argument("--weight", type=float, default=3.0, help="of translated pairs")
    parser.add_argument("--late-weight", type=float, default=6.0, help="of them, late")
    parser.add_argument("--beam", type=int, default=4)
    parser.add_argument("--workers", type=int, default=4, help="that translate")
    parser.add_argument(
        "--how", type=str.split, default=[], help='of `augment distill`: --how="--part-lines 5000"'
    )
    return parser.parse_intermixed_args()


def with_steps(recipe: Config, steps: int, late: dict[str, float]) -> Config:
    """The recipe in so many steps, evaluated at their end; weights of the last part of them."""
    schedule = recipe.schedule
    return replace(
        recipe,
        training=replace(recipe.training, steps=steps),
        schedule=replace(schedule, decay_steps=steps - 2 * schedule.warmup_steps),
        evaluation=replace(recipe.evaluation, every_steps=-(-steps // EVALUATIONS)),
        checkpoints=replace(recipe.checkpoints, every_steps=steps // CHECKPOINTS),
        stages=(StageSettings(int(LATE * steps), late),),
    )


def steps_in(seconds: float, folder: Path) -> int:
    """How many steps of the second training that leaves, each as long as one of the first."""
    took = statistics.median(
        line["seconds"] for line in lines_of(folder / "runs" / "first", "train")
    )
    between = int((seconds - SECONDS_BESIDE_STEPS) / took) // CHECKPOINTS
    return CHECKPOINTS * max(1, between)  # The last checkpoint is the end, and none is close to it.


def taught(
    folder: Path, arguments: argparse.Namespace, late: dict[str, float], steps: int
) -> Config:
    """The second training: the same text beside the pairs, from the weights of the first."""
    recipe = load_config(arguments.recipe, [*arguments.settings, *arguments.second])
    run = str(folder / "runs" / "first")
    pairs = ParallelText(
        tsv=str(folder / NAME / "pairs.tsv.zst"), name=NAME, weight=arguments.weight
    )
    again = with_steps(recipe, steps, late)
    return replace(
        again,
        corpus=replace(
            recipe.corpus,
            folder=str(folder / "prepared"),
            train=(pairs, *recipe.corpus.train),
        ),
        vocabulary=VocabularySettings(model=f"{run}/source.model"),
        training=replace(again.training, start_from=run),
        schedule=replace(again.schedule, peak=arguments.peak),
    )


def write(folder: Path, name: str, config: Config) -> Path:
    path = folder / f"{name}.toml"
    path.write_text(dump_config(config, with_defaults=False))
    return path


def choose_lines(corpus: CorpusSettings, folder: Path, every: int) -> int:
    """Every so many pairs of the training text, and all of the last one; one file a side."""
    *texts, last = corpus.train
    count = 0
    with (
        open(folder / "lines.source", "w") as sources,
        open(folder / "lines.target", "w") as targets,
    ):
        for text, step in (*((text, every) for text in texts), (last, 1)):
            for source, target in islice(pairs(text), 0, None, step):
                sources.write(f"{source}\n")
                targets.write(f"{target}\n")
                count += 1
    return count


def pairs(text: ParallelText) -> Iterator[tuple[str, str]]:
    for files in resolve_files(text, text.name):
        for chunk in read_pairs(files, 10_000):
            yield from zip(*chunk, strict=True)


def dragoman(*words: str | Path) -> None:
    """Run a command, and tell how long it took."""
    begun = time.monotonic()
    subprocess.run([sys.executable, "-m", "dragoman", *map(str, words)], check=True)
    seconds = time.monotonic() - begun
    print(f"| {' '.join(str(word) for word in words[:2])} | {seconds:.1f} |", flush=True)


if __name__ == "__main__":
    main()
