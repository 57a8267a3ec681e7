"""The best greedy translation in ten minutes: a model that learns from its own beam search.

    python benchmarks/ten_minutes.py configs/europarl-minutes.toml FOLDER [--steps N] [--again N]

On one GPU, after `dragoman prepare` of the recipe, every command as a user would give it, and the
clock of the wall over all of them:

    train     the recipe, in so many steps
    distill   lines of its training text, spread evenly, translated with a beam by its last
              checkpoints' average
    prepare   that text once more, and these pairs
    again     from its weights, in so many steps, on both
    evaluate  the average of the last checkpoints, greedily

What a beam finds is what the second model learns to say at once. Settings (NAME=VALUE) are for
both trainings, those after --second for the second one alone. What to translate is chosen while the
first one runs.
"""

import argparse
import subprocess
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from itertools import chain
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
from dragoman.corpus.text import read_lines, resolve_files
from run_lines import lines_of

LATE = 0.75  # Of the steps, until the recipe's last text and the translated pairs count more.
CHECKPOINTS = 8  # Of each training, evenly.
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
    words = ("--input", folder / "lines.txt", "--output", folder / NAME)
    beam = ("--beam", str(arguments.beam), *AVERAGED)
    workers = ("--workers", str(arguments.workers), *arguments.how)
    dragoman("augment", "distill", folder / "runs" / "first", *words, *beam, *workers)
    late[NAME] = arguments.late_weight
    again = write(folder, "again", taught(folder, arguments, late))
    dragoman("prepare", again)
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
    parser.add_argument("--again", type=int, default=8_400)
    parser.add_argument("--second", nargs="*", default=[], metavar="NAME=VALUE")
    parser.add_argument("--peak", type=float, default=2e-3, help="of the second training")
    parser.add_argument("--late", type=float, default=4.0, help="weight of the last text, late")
    parser.add_argument(
        "--every", type=int, default=3, help="line is translated, but all of the last text"
    )
    parser.add_argument("--weight", type=float, default=3.0, help="of translated pairs")
    parser.add_argument("--late-weight", type=float, default=6.0, help="of them, late")
    parser.add_argument("--beam", type=int, default=4)
    parser.add_argument("--workers", type=int, default=4, help="that translate")
    parser.add_argument("--how", nargs="*", default=[], help="more words for `augment distill`")
    return parser.parse_args()


def with_steps(recipe: Config, steps: int, late: dict[str, float]) -> Config:
    """The recipe in so many steps, evaluated at their end; weights of the last part of them."""
    schedule = recipe.schedule
    return replace(
        recipe,
        training=replace(recipe.training, steps=steps),
        schedule=replace(schedule, decay_steps=steps - 2 * schedule.warmup_steps),
        evaluation=replace(recipe.evaluation, every_steps=steps),
        checkpoints=replace(recipe.checkpoints, every_steps=steps // CHECKPOINTS),
        stages=(StageSettings(int(LATE * steps), late),),
    )


def taught(folder: Path, arguments: argparse.Namespace, late: dict[str, float]) -> Config:
    """The second training: the same text beside the pairs, from the weights of the first."""
    recipe = load_config(arguments.recipe, [*arguments.settings, *arguments.second])
    run = str(folder / "runs" / "first")
    pairs = ParallelText(
        tsv=str(folder / NAME / "pairs.tsv.zst"), name=NAME, weight=arguments.weight
    )
    again = with_steps(recipe, arguments.again, late)
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
    """Every so many lines of the training text, and all lines of the last one."""
    *texts, last = corpus.train
    lines = chain(sources(texts, every), sources([last], 1))
    with open(folder / "lines.txt", "wb") as file:
        return sum(1 for line in lines if file.write(line.rstrip(b"\r\n") + b"\n"))


def sources(texts: list[ParallelText], every: int) -> Iterator[bytes]:
    for text in texts:
        for files in resolve_files(text, text.name):
            chunks = (chunk for _, chunk in read_lines(files.paths[0], 10_000))
            yield from list(chain.from_iterable(chunks))[::every]


def dragoman(*words: str | Path) -> None:
    """Run a command, and tell how long it took."""
    begun = time.monotonic()
    subprocess.run([sys.executable, "-m", "dragoman", *map(str, words)], check=True)
    seconds = time.monotonic() - begun
    print(f"| {' '.join(str(word) for word in words[:2])} | {seconds:.1f} |", flush=True)


if __name__ == "__main__":
    main()
