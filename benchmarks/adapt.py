"""What adapting a trained model to other text brings and costs, with and without old text mixed in.

    python benchmarks/adapt.py PARENT.toml TRAIN.en TRAIN.de DEV.en DEV.de --steps 900

The parent is trained from its config first, unless it is at --parent already. Then on the new text:

    child    starts from the parent, on the new text alone
    mixed    the same, with a share of the parent's own text, so much longer that it sees as much
             new text
    scratch  a model of the same size from nothing, on the new text alone

All of them, and weights halfway between parent and child, are scored on the new domain and on the
parent's first validation set, by the checkpoint that is best on the new domain. The same command
goes on where it was stopped.
"""

import argparse
import json
from collections.abc import Iterator, Mapping
from dataclasses import replace
from functools import partial
from itertools import islice
from pathlib import Path

from dragoman.config import (
    Config,
    CorpusSettings,
    EvaluationSettings,
    ParallelText,
    ScheduleSettings,
    VocabularySettings,
)
from dragoman.config_file import dump_config, load_config
from dragoman.corpus.text import read_lines
from stages import Stages, cell

EVALUATIONS = 6  # Of a training.
HALFWAY = 0.5
NAMES = ("parent", "child", "halfway", "mixed", "scratch")


def main() -> None:
    arguments = parse()
    folder: Path = arguments.folder.absolute()
    folder.mkdir(parents=True, exist_ok=True)
    parent_config = load_config(arguments.parent_config, arguments.override)
    stages = Stages(folder, arguments.trainings_at_once, arguments.home)
    runs = {name: stages.run_of(name) for name in NAMES} | {"halfway": stages.run_of("child")}
    if arguments.parent:
        runs["parent"] = str(arguments.parent.resolve())
    else:
        write_config(folder, "parent", parent_config)
        stages.add_model("parent")
    after = [] if arguments.parent else ["train-parent"]
    configs = make_configs(arguments, parent_config, folder, runs["parent"])
    for name, config in configs.items():
        write_config(folder, name, config)
        overrides = arguments.scratch_override if name == "scratch" else []
        stages.add_model(name, overrides, after)
    names = [name for name in NAMES if name in ("parent", "halfway", *configs)]
    old = first_files(parent_config.corpus.validation)
    domains = {"new": arguments.texts[2:], "old": [Path(old.source), Path(old.target)]}
    for name in names:
        trained = "child" if name == "halfway" else name
        needed = after if name == "parent" else [f"train-{trained}"]
        for domain, (source, reference) in domains.items():
            words = ["evaluate", runs[name], "--beam", str(arguments.beam), "--source"]
            words += [str(source.resolve()), "--reference", str(reference.resolve())]
            words += ["--blend", str(HALFWAY)] if name == "halfway" else []
            stages.add(f"evaluate-{name}-{domain}", *words, after=needed)
        if name in ("child", "mixed"):
            stages.add(f"report-{name}", "report", runs[name], after=needed)
    stages.run_all(arguments.minutes, partial(table, stages, names, configs))


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("parent_config", type=Path)
    parser.add_argument("texts", type=Path, nargs=4, metavar="TEXT")
    parser.add_argument("--parent", type=Path, help="a run that is there already")
    parser.add_argument("--folder", type=Path, default=Path("adapt"), help="for runs and corpora")
    parser.add_argument("--steps", type=int, default=2_000, help="of the child")
    parser.add_argument(
        "--old-share", type=float, default=1 / 3, help="of old pairs; 0: no `mixed`"
    )
    parser.add_argument("--old-pairs", type=int, default=200_000, help="to take them from")
    parser.add_argument("--scratch-steps", type=int, help="as many as the child; 0 leaves it out")
    parser.add_argument("--slots", type=int, help="target slots a step; as the parent's")
    parser.add_argument("--peak", type=float, default=2e-4, help="learning rate of the child")
    parser.add_argument("--scratch-peak", type=float, default=1e-3)
    parser.add_argument("--scratch-override", action="append", default=[], help="a setting of it")
    parser.add_argument("--beam", type=int, default=4)
    parser.add_argument("--trainings-at-once", type=int, default=2)
    parser.add_argument("--minutes", type=float, default=600, help="to end after, and go on later")
    parser.add_argument("--home", type=Path, help="a .tar.gz to keep all small files in")
    parser.add_argument("--override", action="append", default=[], help="of the parent's config")
    return parser.parse_args()


def make_configs(
    arguments: argparse.Namespace, parent: Config, folder: Path, start: str
) -> dict[str, Config]:
    """The configs of all models on the new text."""
    texts = [str(path.resolve()) for path in arguments.texts]
    new, share = ParallelText(texts[0], texts[1], name="new"), arguments.old_share
    on_new = partial(on_new_text, arguments, parent, ParallelText(texts[2], texts[3]), folder)
    vocabulary = VocabularySettings(joint=parent.vocabulary.joint, from_run=start)
    child = replace(on_new("child", (new,), arguments.steps, arguments.peak), vocabulary=vocabulary)
    child = replace(child, training=replace(child.training, start_from=start))
    configs = {"child": child}
    if share:
        counted = sum(1 for _ in lines_of(arguments.texts[0]))
        old = cut_old(first_files({"first": parent.corpus.train[0]}), arguments.old_pairs, folder)
        pairs = sum(1 for _ in lines_of(Path(old.source)))
        weighed = replace(old, weight=share / (1 - share) * counted / pairs)
        steps = round(arguments.steps / (1 - share))
        mixed = on_new("mixed", (new, weighed), steps, arguments.peak)
        training = replace(mixed.training, start_from=start)
        configs["mixed"] = replace(mixed, vocabulary=vocabulary, training=training)
    steps = arguments.steps if arguments.scratch_steps is None else arguments.scratch_steps
    if steps:
        configs["scratch"] = on_new("scratch", (new,), steps, arguments.scratch_peak)
    return configs


def on_new_text(
    arguments: argparse.Namespace,
    parent: Config,
    validation: ParallelText,
    folder: Path,
    name: str,
    texts: tuple[ParallelText, ...],
    steps: int,
    peak: float,
) -> Config:
    """The parent's model and batches on other text, with a schedule of its own."""
    every = max(1, steps // EVALUATIONS)
    slots = arguments.slots or parent.batches.tokens_per_step
    return replace(
        parent,
        corpus=CorpusSettings(
            folder=str(folder / f"prepared-{name}"),
            source_language=parent.corpus.source_language,
            target_language=parent.corpus.target_language,
            train=texts,
            validation={"new": validation},
        ),
        schedule=ScheduleSettings(
            kind="warmup_stable_decay",
            peak=peak,
            warmup_steps=max(1, steps // 20),
            decay_steps=max(1, steps // 3),
        ),
        batches=replace(parent.batches, tokens_per_step=slots),
        training=replace(parent.training, steps=steps, epochs=None, hours=None, patience=None),
        evaluation=EvaluationSettings(
            every_steps=every, bleu_tokenize=parent.evaluation.bleu_tokenize
        ),
        checkpoints=replace(parent.checkpoints, every_steps=every),
    )


def write_config(folder: Path, name: str, config: Config) -> None:
    (folder / f"{name}.toml").write_text(dump_config(config, with_defaults=False))


def first_files(texts: Mapping[str, ParallelText]) -> ParallelText:
    """The first of some texts, which has to be two files."""
    first = next(iter(texts.values()))
    assert first.source, "a text in one file cannot be given to evaluate"
    return first


def cut_old(text: ParallelText, pairs: int, folder: Path) -> ParallelText:
    """The first pairs of the parent's text, in files of their own."""
    for name, path in (("old.source", text.source), ("old.target", text.target)):
        with open(folder / name, "wb") as file:
            file.writelines(islice(lines_of(Path(path)), pairs))
    return ParallelText(str(folder / "old.source"), str(folder / "old.target"), name="old")


def lines_of(path: Path) -> Iterator[bytes]:
    return (line for _, chunk in read_lines(path, 10_000) for line in chunk)


def table(stages: Stages, names: list[str], configs: dict[str, Config]) -> str:
    lines = ["| model | steps | BLEU, new | BLEU, old | seconds |", "|---|---|---|---|---|"]
    for name in names:
        scores = [stages.scores(f"evaluate-{name}-{domain}") for domain in ("new", "old")]
        cells = [cell(next(iter(score.values()), None)) for score in scores]
        steps = configs[name].training.steps if name in configs else ""
        seconds = stages.seconds(f"train-{name}")
        lines.append(f"| {name} | {steps} | {' | '.join(cells)} | {seconds} |")
    for name in ("child", "mixed"):
        path = Path(stages.run_of(name)) / "report/report.json"
        if stages.seconds(f"report-{name}") and path.exists():
            answers = json.loads(path.read_text())
            wanted = [one for one in answers if one["id"] in ("gained", "forgotten")]
            lines += [f"\n{name}: {one['question']} {one['answer']}" for one in wanted]
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    main()
