"""One model for both directions of Multi30k beside a model for each of them.

    python benchmarks/both_ways.py DATA --folder both-ways

DATA holds multi30k. The model for both is that of `configs/multi30k-both-ways.toml`, those for one
of `configs/multi30k-raw.toml`, as it is and with its sides exchanged. The test sets are scored as
the recipes say, by the checkpoint that is best on the first validation set. The same command goes
on where it was stopped.
"""

import argparse
from functools import partial
from pathlib import Path

from stages import Stages, cell

CONFIGS = Path(__file__).parents[1] / "configs"
ONE, BOTH = "multi30k-raw", "multi30k-both-ways"
# Where each direction's scores are: a model, and the name of its set.
SCORES = {
    "English to German": {"to-german": "test_2016_flickr", "both-ways": "german"},
    "German to English": {"to-english": "test_2016_flickr", "both-ways": "english"},
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("data", type=Path)
    parser.add_argument("--folder", type=Path, default=Path("both-ways"))
    parser.add_argument("--evaluations", type=int, default=6, help="of a training")
    parser.add_argument("--steps", type=int, default=9_000)
    parser.add_argument("--trainings-at-once", type=int, default=3)
    parser.add_argument("--minutes", type=float, default=600, help="to end after, and go on later")
    parser.add_argument("--home", type=Path, help="a .tar.gz to keep all small files in")
    parser.add_argument("--override", action="append", default=[], help="of every config")
    arguments = parser.parse_args()
    folder: Path = arguments.folder.absolute()
    folder.mkdir(parents=True, exist_ok=True)
    every = max(1, arguments.steps // arguments.evaluations)
    overrides = [f"training.steps={arguments.steps}", f"evaluation.every_steps={every}"]
    overrides += [f"checkpoints.every_steps={every}"]
    # As much of the training as in the recipes.
    overrides += [f"schedule.warmup_steps={arguments.steps // 9}"]
    overrides += [f"schedule.decay_steps={arguments.steps * 5 // 9}", *arguments.override]
    one, both = (recipe(name, arguments.data.absolute()) for name in (ONE, BOTH))
    exchanged = one.replace(".en.", "\0").replace(".de.", "\1")
    languages = '[corpus]\nsource_language = "de"\ntarget_language = "en"'
    texts = {
        "both-ways": both,
        "to-german": one,
        "to-english": exchanged.translate({0: ".de.", 1: ".en."}).replace("[corpus]", languages),
    }
    stages = Stages(folder, arguments.trainings_at_once, arguments.home)
    for name, text in texts.items():
        (folder / f"{name}.toml").write_text(text.replace("FOLDER", f"prepared/{name}"))
        trained = stages.add_model(name, overrides)
        stages.add(f"evaluate-{name}", "evaluate", stages.run_of(name), after=[trained])
    stages.run_all(arguments.minutes, partial(table, stages))


def recipe(name: str, data: Path) -> str:
    """A config with other places for its text and its corpus."""
    text = (CONFIGS / f"{name}.toml").read_text()
    return text.replace("../../shared/data", str(data)).replace(f"../prepared/{name}", "FOLDER")


def table(stages: Stages) -> str:
    lines = ["| direction | one model each | one model for both |", "|---|---|---|"]
    for direction, places in SCORES.items():
        cells = [cell(stages.scores(f"evaluate-{name}").get(of)) for name, of in places.items()]
        lines.append(f"| {direction} | {' | '.join(cells)} |")
    names = ("to-german", "to-english", "both-ways")
    took = ", ".join(f"{name} {stages.seconds(f'train-{name}')}" for name in names)
    return "\n".join([*lines, f"\nseconds of training, side by side: {took}\n"])


if __name__ == "__main__":
    main()
