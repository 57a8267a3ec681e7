"""What back-translation brings, and what a small student of a large model keeps.

    python benchmarks/synthetic_text.py DATA --folder synthetic [--parts back-translation student]

DATA holds europarl (or --corpus) with train, val and test, and newstest2013 (or --other) with val;
each as .en and .de, plain or packed. Models from English to German, of one size:

    true      on the first 100,000 pairs of the text
    mixed     on these, and on the 900,000 German lines that follow, back-translated by `reverse`,
              a model from German to English that was trained on the same 100,000 pairs
    sampled   the same with translations that are sampled, one of the ten likeliest words at a time
    all       on the true pairs of all these lines: the ceiling, and the teacher
    student   preset `student`, on what the teacher says of all English lines
    untaught  preset `student`, on the true pairs of all lines

`true` sees as many target slots as `mixed` and `all`, in twice as many half-sized steps, with more
dropout and a smaller vocabulary, as suits a small text; `reverse` three quarters of them. Each is
scored on both sets, greedily and with beam 4, by the checkpoint that is best on the corpus's val.
The same command goes on where it was stopped.
"""

import argparse
from collections.abc import Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from itertools import islice
from pathlib import Path

from dragoman.corpus.text import read_lines
from stages import Stages, cell

LANGUAGES = ("en", "de")
BEAMS = (1, 4)
PARTS = {
    "back-translation": ["reverse", "all", "mixed", "true"],
    "sampling": ["reverse", "sampled"],
    "student": ["all", "student"],
    "untaught": ["untaught"],
}
SETTINGS = """\
[vocabulary]
size = {words}
sample_pairs = 200_000
[model]
preset = "{preset}"
dropout = {dropout}
attention_dropout = {inner_dropout}
relu_dropout = {inner_dropout}
zero_branches = true
[batches]
tokens_per_step = {slots}
[optimizer]
kind = "muon"
clip_norm = 1.0
[schedule]
kind = "warmup_stable_decay"
peak = {peak}
warmup_steps = {warmup}
decay_steps = {decay}
[training]
steps = {steps}
precision = "{precision}"
[evaluation]
every_steps = {every}
[checkpoints]
every_steps = {every}
[logging]
trackers = []
"""
# For texts that are read a few times, and for those that are read dozens of times.
OF_LARGE = {"words": 16_384, "slots": 32_768, "peak": 3.2e-3, "dropout": 0.1, "inner_dropout": 0.0}
OF_SMALL = {"words": 8_192, "slots": 16_384, "peak": 2.4e-3, "dropout": 0.3, "inner_dropout": 0.1}
TRUE = 'source = "true.en", target = "true.de", name = "true"'
# True pairs are seen so often as others: sources without a tag are what is translated later.
WEIGHT_OF_TRUE = 3.0
TRAINED_ON = {
    "reverse": '{ source = "true.de", target = "true.en" }',
    "true": f"{{ {TRUE} }}",
    "all": '{ source = "all.en", target = "all.de" }',
    "mixed": f"{{ {TRUE}, weight = {WEIGHT_OF_TRUE} }}, "
    '{ tsv = "back/pairs.tsv.zst", tag = "<bt>", name = "back" }',
    "sampled": f"{{ {TRUE}, weight = {WEIGHT_OF_TRUE} }}, "
    '{ tsv = "drawn/pairs.tsv.zst", tag = "<bt>", name = "drawn" }',
    "student": '{ tsv = "distilled/pairs.tsv.zst" }',
    "untaught": '{ source = "all.en", target = "all.de" }',
}


def main() -> None:
    arguments = parse()
    folder: Path = arguments.folder.absolute()
    folder.mkdir(parents=True, exist_ok=True)
    if not (folder / "texts").exists():
        with ProcessPoolExecutor(len(LANGUAGES)) as pool:
            list(pool.map(partial(cut_texts, arguments, folder), LANGUAGES))
        (folder / "texts").touch()
    stages = Stages(folder, arguments.trainings_at_once, arguments.home)
    names = list(dict.fromkeys(name for part in arguments.parts for name in PARTS[part]))
    for name in names:
        (folder / f"{name}.toml").write_text(config(arguments, name))
        after = [made] if (made := add_text(stages, arguments, name)) else []
        trained = stages.add_model(name, arguments.override, after)
        sets = ["--set", "test.own", "--set", "other"]
        for beam in BEAMS:
            words = ["evaluate", stages.run_of(name), *sets, "--beam", str(beam)]
            stages.add(f"evaluate-{name}-{beam}", *words, after=[trained])
    stages.run_all(arguments.minutes, partial(table, stages, names, arguments))


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("data", type=Path)
    parser.add_argument("--parts", nargs="+", choices=PARTS, default=["back-translation"])
    parser.add_argument("--corpus", default="europarl")
    parser.add_argument("--other", default="newstest2013")
    parser.add_argument("--folder", type=Path, default=Path("synthetic"))
    parser.add_argument("--true", type=int, default=100_000, help="pairs")
    parser.add_argument("--more", type=int, default=900_000, help="lines to translate back")
    parser.add_argument("--steps", type=int, default=4_500, help="of `all`; see above")
    parser.add_argument("--student-steps", type=int, default=8_000)
    parser.add_argument("--preset", default="base", help="of all but the students")
    parser.add_argument("--precision", default="bfloat16")
    parser.add_argument("--workers", type=int, default=4, help="that translate a text")
    parser.add_argument("--trainings-at-once", type=int, default=2)
    parser.add_argument("--minutes", type=float, default=600, help="to end after, and go on later")
    parser.add_argument("--home", type=Path, help="a .tar.gz to keep all small files in")
    parser.add_argument("--override", action="append", default=[], help="of every config")
    return parser.parse_args()


def text_file(data: Path, name: str, language: str) -> Path:
    """A file of a corpus, however it is packed."""
    return next(iter(sorted(data.absolute().glob(f"{name}.{language}*"))))


def cut_texts(arguments: argparse.Namespace, folder: Path, language: str) -> None:
    """Cut what each model may see out of the training text."""
    path = text_file(arguments.data / arguments.corpus, "train", language)
    lines = (line for _, chunk in read_lines(path, 10_000) for line in chunk)
    with open(folder / f"all.{language}", "wb") as every:
        for name, count in (("true", arguments.true), ("more", arguments.more)):
            with open(folder / f"{name}.{language}", "wb") as own:
                for line in islice(lines, count):
                    own.write(line)
                    every.write(line)


def config(arguments: argparse.Namespace, name: str) -> str:
    source, target = LANGUAGES[:: -1 if name == "reverse" else 1]
    own, other = arguments.data / arguments.corpus, arguments.data / arguments.other
    sets = {"validation.own": (own, "val"), "validation.other": (other, "val")}
    lines = [
        "[corpus]",
        f'folder = "prepared/{name}"',
        f'source_language = "{source}"',
        f'target_language = "{target}"',
        f"train = [{TRAINED_ON[name]}]",
        *(
            f'{key} = {{ source = "{text_file(data, text, source)}", '
            f'target = "{text_file(data, text, target)}" }}'
            for key, (data, text) in (sets | {"test.own": (own, "test")}).items()
        ),
    ]
    return "\n".join(lines) + "\n" + SETTINGS.format(**settings(arguments, name))


def settings(arguments: argparse.Namespace, name: str) -> Mapping[str, object]:
    """What the models differ in."""
    is_small, is_student = name in ("true", "reverse"), name in ("student", "untaught")
    # In half-sized steps as many slots are twice as many.
    steps = {"true": 2 * arguments.steps, "reverse": 3 * arguments.steps // 2}.get(
        name, arguments.student_steps if is_student else arguments.steps
    )
    warmup = max(1, min(300, steps // 6))
    return {
        **(OF_SMALL if is_small else OF_LARGE),
        **({"dropout": 0.05} if is_student else {}),
        "preset": "student" if is_student else arguments.preset,
        "precision": arguments.precision,
        "steps": steps,
        "warmup": warmup,
        "decay": max(1, steps - 2 * warmup),
        "every": max(1, steps // 5),
    }


def add_text(stages: Stages, arguments: argparse.Namespace, name: str) -> str | None:
    """Plan the text that a model makes for another, if this one needs any."""
    parts = ["--part-lines", "20000"]
    if arguments.workers > 1:
        parts += ["--workers", str(arguments.workers)]
    search = ["--beam", "4", "--patience", "1"]
    match name:
        case "mixed":
            return back_translate(stages, "back", "--beam", "1", *parts)
        case "sampled":
            return back_translate(stages, "drawn", "--top-k", "10", *parts)
        case "student":
            words = ["augment", "distill", stages.run_of("all"), "--input", "all.en", *search]
            after = ["train-all"]
            return stages.add("distill", *words, "--output", "distilled", *parts, after=after)
    return None


def back_translate(stages: Stages, output: str, *options: str) -> str:
    words = ["augment", "back-translate", stages.run_of("reverse"), "--input", "more.de"]
    return stages.add(output, *words, "--output", output, *options, after=["train-reverse"])


def table(stages: Stages, names: Sequence[str], arguments: argparse.Namespace) -> str:
    """BLEU of what is there, and what share of the gap synthetic text closes."""
    texts = {"test.own": f"{arguments.corpus} test", "other": f"{arguments.other} val"}
    titles = [f"{text}, beam {beam}" for text in texts.values() for beam in BEAMS]
    lines = [
        f"| trained on | steps | seconds | {' | '.join(titles)} |",
        "|---" * (3 + len(titles)) + "|",
    ]
    found = {
        name: {beam: stages.scores(f"evaluate-{name}-{beam}") for beam in BEAMS} for name in names
    }
    for name, scores in found.items():
        cells = [cell(scores[beam].get(key)) for key in texts for beam in BEAMS]
        steps, seconds = settings(arguments, name)["steps"], stages.seconds(f"train-{name}")
        lines.append(f"| {name} | {steps} | {seconds} | {' | '.join(cells)} |")
    for name in ("mixed", "sampled"):
        for key, text in texts.items():
            three = [
                found.get(one, {}).get(BEAMS[-1], {}).get(key) for one in ("true", name, "all")
            ]
            bleus = [score[0] for score in three if score]
            if len(bleus) == len(three) and bleus[2] != bleus[0]:
                share = (bleus[1] - bleus[0]) / (bleus[2] - bleus[0])
                lines.append(f"\n{name} closes {share:.0%} of the gap on {text}")
    made = [one for one in ("back", "drawn", "distill") if stages.seconds(one)]
    lines += [f"\n{one}: {stages.seconds(one)} s" for one in made]
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    main()
