"""What back-translation brings, and what a small student of a large model keeps.

    python benchmarks/synthetic_text.py DATA --folder synthetic [--true 100000 --more 900000]

DATA holds europarl (or --corpus) with train, val and test, and newstest2013 (or --other) with val;
each as .en and .de, plain or packed. Models of one size are trained from English to German, with as
many steps each:

    true      on the first pairs of the text
    mixed     on these, and on German lines that follow, back-translated by a model from German to
              English that was trained on the same pairs
    all       on the true pairs of all these lines: the ceiling

With --student also a student (preset `student`) that learns what `all`, its teacher, says, and one
that learns from the true pairs. Each is scored greedily on both sets, by the checkpoint that is
best on the corpus's val. The same command goes on where it was stopped.
"""

import argparse
import json
import re
import subprocess
import sys
import time
from dataclasses import dataclass
from itertools import islice
from pathlib import Path

from dragoman.corpus.text import read_lines

LANGUAGES = ("en", "de")
SETTINGS = """\
[vocabulary]
size = 16_384
sample_pairs = 100_000
[model]
preset = "{preset}"
{dropout}[batches]
tokens_per_step = 32_768
[optimizer]
clip_norm = 1.0
[schedule]
kind = "warmup_stable_decay"
peak = 1.2e-3
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
# For 100,000 pairs, which are read many times.
MORE_DROPOUT = "dropout = 0.3\nattention_dropout = 0.2\nrelu_dropout = 0.2\n"
SCORE = re.compile(r"^(\S+): .* pairs|^  BLEU  (\S+)   95% (\S+) to (\S+)", re.MULTILINE)


@dataclass
class Running:
    """A command that goes on beside others."""

    name: str
    process: subprocess.Popen[bytes]
    log: Path
    begun: float

    def wait(self) -> str:
        """What it said, once it is done."""
        code = self.process.wait()
        said = self.log.read_text(encoding="utf-8", errors="replace")
        print(f"{self.name}: {time.monotonic() - self.begun:.0f} s", flush=True)
        if code:
            sys.exit(f"{self.name} failed with {code}:\n{said[-2_000:]}")
        return said


class Bench:
    """Texts, configs, runs and logs, all in one folder."""

    def __init__(self, arguments: argparse.Namespace) -> None:
        self.arguments = arguments
        self.folder: Path = arguments.folder.absolute()
        (self.folder / "logs").mkdir(parents=True, exist_ok=True)

    def start(self, name: str, *words: str | Path) -> Running:
        """Give a dragoman command."""
        log = self.folder / "logs" / f"{name}.log"
        command = [sys.executable, "-m", "dragoman", *map(str, words)]
        with open(log, "wb") as file:
            process = subprocess.Popen(command, stdout=file, stderr=file, cwd=self.folder)
        return Running(name, process, log, time.monotonic())

    def text(self, name: str, language: str, corpus: str = "") -> Path:
        """A file of a corpus, however it is packed."""
        folder: Path = self.arguments.data.absolute() / (corpus or self.arguments.corpus)
        return next(iter(sorted(folder.glob(f"{name}.{language}*"))))

    def write_texts(self) -> None:
        """Cut what each model may see out of the training text."""
        true, more = self.arguments.true, self.arguments.more
        for language in LANGUAGES:
            path = self.text("train", language)
            lines = (line for _, chunk in read_lines(path, 10_000) for line in chunk)
            with open(self.folder / f"all.{language}", "wb") as every:
                with open(self.folder / f"true.{language}", "wb") as first:
                    for line in islice(lines, true):
                        first.write(line)
                        every.write(line)
                with open(self.folder / f"more.{language}", "wb") as rest:
                    for line in islice(lines, more):
                        rest.write(line)
                        every.write(line)

    def config(self, name: str, texts: str, source: str = "en", **changes: str) -> Path:
        """Write the config of a model."""
        target = LANGUAGES[source == "en"]
        sets = {
            "validation.own": ("val", ""),
            "validation.other": ("val", self.arguments.other),
            "test.own": ("test", ""),
        }
        lines = [
            "[corpus]",
            f'folder = "prepared/{name}"',
            f'source_language = "{source}"',
            f'target_language = "{target}"',
            f"train = [{texts}]",
            *(
                f'{key} = {{ source = "{self.text(text, source, corpus)}", '
                f'target = "{self.text(text, target, corpus)}" }}'
                for key, (text, corpus) in sets.items()
            ),
        ]
        steps = int(changes.get("steps", self.arguments.steps))
        settings = {
            "preset": self.arguments.preset,
            "dropout": "",
            "precision": self.arguments.precision,
            "steps": str(steps),
            "warmup": str(max(1, steps // 6)),
            "decay": str(steps // 2),
            "every": str(max(1, steps // 3)),
        }
        path = self.folder / f"{name}.toml"
        path.write_text("\n".join(lines) + "\n" + SETTINGS.format(**(settings | changes)))
        return path

    def prepare(self, name: str) -> Running:
        return self.start(f"prepare-{name}", "prepare", f"{name}.toml", *self.arguments.override)

    def train(self, name: str) -> Running:
        run = self.folder / "runs" / name
        return self.start(
            f"train-{name}", "train", f"{name}.toml", "--run", run, *self.arguments.override
        )

    def scores(self, names: list[str]) -> None:
        """Score runs side by side, and print the table."""
        sets = ["--set", "test.own", "--set", "other", "--beam", "1"]
        running = [
            self.start(f"evaluate-{name}", "evaluate", self.folder / "runs" / name, *sets)
            for name in names
        ]
        rows = {}
        for name, one in zip(names, running, strict=True):
            found = SCORE.findall(one.wait())
            # The name of a set, then its BLEU with an interval.
            rows[name] = {
                named[0]: [float(value) for value in bleu[1:]]
                for named, bleu in zip(found[::2], found[1::2], strict=True)
            }
        results = self.folder / "results.json"
        known = json.loads(results.read_text()) if results.exists() else {}
        results.write_text(json.dumps(known | rows, indent=1) + "\n")
        for name, row in rows.items():
            cells = [f"{bleu:.2f} ({low:.2f} to {high:.2f})" for bleu, low, high in row.values()]
            print(f"| {name} | {' | '.join(cells)} |", flush=True)


def back_translate(bench: Bench) -> None:
    """Three models: true pairs alone, with back-translations, and all true pairs."""
    arguments, folder = bench.arguments, bench.folder
    true = '{ source = "true.en", target = "true.de", name = "true" }'
    swapped = '{ source = "true.de", target = "true.en" }'
    reverse_steps = str(arguments.steps // 2)
    bench.config("reverse", swapped, "de", dropout=MORE_DROPOUT, steps=reverse_steps)
    bench.config("true", true, dropout=MORE_DROPOUT)
    bench.config("all", '{ source = "all.en", target = "all.de" }')
    bench.prepare("reverse").wait()
    for name in ("true", "all"):
        bench.prepare(name).wait()
    # Drawing and training at once would hold each other up.
    for name in ("reverse", "true", "all"):
        bench.train(name).wait()
    drawn = ["--batch-tokens", str(arguments.batch_tokens), "--part-lines", "20000"]
    words = ["--input", "more.de", "--output", "back", *drawn]
    if arguments.workers > 1:
        words += ["--workers", str(arguments.workers)]
    made = bench.start("augment", "augment", "back-translate", folder / "runs/reverse", *words)
    print("\n".join(made.wait().splitlines()[-12:]), flush=True)
    entry = (folder / "back/mix.toml").read_text().splitlines()[2].strip().rstrip(",")
    bench.config("mixed", f"{true}, {entry}")
    bench.prepare("mixed").wait()
    bench.train("mixed").wait()
    print(f"| trained on | {arguments.corpus}, test | {arguments.other}, val |\n|---|---|---|")
    bench.scores(["reverse", "true", "mixed", "all"])


def distill(bench: Bench) -> None:
    """A student that learns what its teacher says of the source text."""
    arguments, folder = bench.arguments, bench.folder
    lines = folder / "distilled.en"
    with open(folder / "all.en", "rb") as text, open(lines, "wb") as first:
        first.writelines(islice(text, arguments.student_lines))
    words = ["--input", str(lines), "--output", "distilled", "--part-lines", "20000"]
    words += ["--batch-tokens", str(arguments.teacher_batch_tokens), "--beam", "4"]
    made = bench.start("distill", "augment", "distill", folder / "runs/all", *words)
    print("\n".join(made.wait().splitlines()[-12:]), flush=True)
    entry = (folder / "distilled/mix.toml").read_text().splitlines()[2].strip().rstrip(",")
    every = '{ source = "all.en", target = "all.de" }'
    student = {"preset": "student", "steps": str(arguments.student_steps)}
    bench.config("student", entry, **student)
    bench.config("untaught", every, **student)
    for name in ("student", "untaught"):
        bench.prepare(name).wait()
        bench.train(name).wait()
    bench.scores(["student", "untaught"])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("data", type=Path)
    parser.add_argument("--corpus", default="europarl")
    parser.add_argument("--other", default="newstest2013")
    parser.add_argument("--folder", type=Path, default=Path("synthetic"))
    parser.add_argument("--true", type=int, default=100_000, help="pairs")
    parser.add_argument("--more", type=int, default=900_000, help="lines to translate back")
    parser.add_argument("--steps", type=int, default=2_000, help="of each, half for the reverse")
    parser.add_argument("--preset", default="base")
    parser.add_argument("--precision", default="bfloat16")
    parser.add_argument("--batch-tokens", type=int, default=32_768, help="drawn at a time")
    parser.add_argument("--workers", type=int, default=1, help="that draw")
    parser.add_argument("--student", action="store_true", help="make it too")
    parser.add_argument("--student-alone", action="store_true", help="the rest is there")
    parser.add_argument("--student-lines", type=int, default=500_000, help="for the teacher")
    parser.add_argument("--student-steps", type=int, default=2_000)
    parser.add_argument("--teacher-batch-tokens", type=int, default=4_096)
    parser.add_argument("--override", action="append", default=[], help="of every config")
    bench = Bench(parser.parse_args())
    if not bench.arguments.student_alone:
        bench.write_texts()
        back_translate(bench)
    if bench.arguments.student or bench.arguments.student_alone:
        distill(bench)


if __name__ == "__main__":
    main()
