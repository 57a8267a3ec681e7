"""What adapting a trained model to other text brings, against training on that text alone.

    python benchmarks/adapt.py PARENT.toml TRAIN.en TRAIN.de DEV.en DEV.de --steps 2000

The parent is trained from its config first, unless it is at --parent already. Then a child starts
from it, and a model of the same size from nothing, on the new text alone. All three, and weights
halfway between parent and child, are scored on the new domain and on the parent's first
validation set. Child and scratch are scored with the checkpoint that is best on the new domain.
"""

import argparse
import json
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from dragoman.cli import main as dragoman
from dragoman.config import (
    Config,
    CorpusSettings,
    EvaluationSettings,
    ParallelText,
    ScheduleSettings,
    VocabularySettings,
)
from dragoman.config_file import dump_config, load_config
from dragoman.corpus.store import PreparedCorpus
from dragoman.inference.commands import evaluate_run
from dragoman.inference.decoder import TrainedChoice
from dragoman.inference.evaluate import score_text
from dragoman.runs.folder import RunFolder

EVALUATIONS = 6  # Of a training.
HALFWAY = 0.5


@dataclass(frozen=True)
class Domain:
    name: str
    source: Path
    reference: Path


def main() -> None:
    arguments = parse()
    folder: Path = arguments.folder
    folder.mkdir(parents=True, exist_ok=True)
    parent_config = load_config(arguments.parent_config, arguments.override)
    parent = RunFolder(arguments.parent or folder / "parent")
    if not parent.exists():
        train(parent_config, parent.path, folder)
    texts = [path.resolve() for path in arguments.texts]
    slots = arguments.slots or parent_config.batches.tokens_per_step
    steps = {"child": arguments.steps, "scratch": arguments.scratch_steps or arguments.steps}
    peaks = {"child": arguments.peak, "scratch": arguments.scratch_peak}
    child, scratch = (
        on_new_text(parent_config, texts, folder / f"prepared-{name}", steps[name], peak, slots)
        for name, peak in peaks.items()
    )
    start = str(parent.path.resolve())
    child = replace(
        child,
        vocabulary=VocabularySettings(joint=parent_config.vocabulary.joint, from_run=start),
        training=replace(child.training, start_from=start),
    )
    minutes = {
        "child": train(child, folder / "child", folder),
        "scratch": train(scratch, folder / "scratch", folder, arguments.scratch_override),
    }
    domains = [Domain("new", texts[2], texts[3]), old_domain(parent_config, folder)]
    runs = {"parent": parent.path} | {name: folder / name for name in minutes}
    choices = {name: TrainedChoice(str(path), beam=arguments.beam) for name, path in runs.items()}
    choices["halfway"] = replace(choices["child"], blend=HALFWAY)
    scores = {name: [bleu(one, domain) for domain in domains] for name, one in choices.items()}
    dragoman(["report", str(folder / "child")])
    print("\n| model | steps | BLEU, new | BLEU, old | minutes |\n|---|---|---|---|---|")
    for name, (new, old) in scores.items():
        spent = f"{minutes[name]:.1f}" if name in minutes else ""
        print(f"| {name} | {steps.get(name, '')} | {new:.2f} | {old:.2f} | {spent} |")
    answers = json.loads((folder / "child/report/report.json").read_text())
    for answer in answers:
        if answer["id"] in ("gained", "forgotten"):
            print(f"\n{answer['question']} {answer['answer']}")


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("parent_config", type=Path)
    parser.add_argument("texts", type=Path, nargs=4, metavar="TEXT")
    parser.add_argument("--parent", type=Path, help="a run that is there already")
    parser.add_argument("--folder", type=Path, default=Path("adapt"), help="for runs and corpora")
    parser.add_argument("--steps", type=int, default=2_000, help="of the child")
    parser.add_argument("--scratch-steps", type=int, help="of the model from scratch; as many")
    parser.add_argument("--slots", type=int, help="target slots a step of both; as the parent's")
    parser.add_argument("--peak", type=float, default=2e-4, help="learning rate of the child")
    parser.add_argument("--scratch-peak", type=float, default=1e-3)
    parser.add_argument("--scratch-override", action="append", default=[], help="a setting of it")
    parser.add_argument("--beam", type=int, default=4)
    parser.add_argument("--override", action="append", default=[], help="of the parent's config")
    return parser.parse_args()


def on_new_text(
    parent: Config, texts: list[Path], prepared: Path, steps: int, peak: float, slots: int
) -> Config:
    """The parent's model and batches on the new text, with a schedule of its own."""
    source, target, dev_source, dev_target = map(str, texts)
    every = max(1, steps // EVALUATIONS)
    return replace(
        parent,
        corpus=CorpusSettings(
            folder=str(prepared.resolve()),
            source_language=parent.corpus.source_language,
            target_language=parent.corpus.target_language,
            train=(ParallelText(source, target),),
            validation={"new": ParallelText(dev_source, dev_target)},
        ),
        schedule=ScheduleSettings(
            kind="warmup_stable_decay",
            peak=peak,
            warmup_steps=max(1, steps // 20),
            decay_steps=steps // 3,
        ),
        batches=replace(parent.batches, tokens_per_step=slots),
        training=replace(parent.training, steps=steps, epochs=None, hours=None, patience=None),
        evaluation=EvaluationSettings(
            every_steps=every, bleu_tokenize=parent.evaluation.bleu_tokenize
        ),
        checkpoints=replace(parent.checkpoints, every_steps=every),
    )


def train(config: Config, run: Path, folder: Path, overrides: Sequence[str] = ()) -> float:
    """Prepare and train through the command line; minutes of the training."""
    path = folder / f"{run.name}.toml"
    path.write_text(dump_config(config, with_defaults=False))
    dragoman(["prepare", str(path), *overrides])
    start = time.monotonic()
    dragoman(["train", str(path), "--run", str(run.resolve()), *overrides])
    return (time.monotonic() - start) / 60


def old_domain(parent: Config, folder: Path) -> Domain:
    """The parent's first validation set, as files."""
    first = PreparedCorpus(Path(parent.corpus.folder)).evaluation_sets("validation")[0]
    paths = [folder / f"old.{side}.txt" for side in ("source", "reference")]
    for path, lines in zip(paths, (first.source, first.target), strict=True):
        path.write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")
    return Domain("old", *paths)


def bleu(choice: TrainedChoice, domain: Domain) -> float:
    (found,) = evaluate_run(choice, domain.source, domain.reference)
    references = domain_lines(domain.reference)
    tokenize = load_config(Path(choice.run) / "config.toml").evaluation.bleu_tokenize
    return score_text(found.translations, references, tokenize).bleu


def domain_lines(path: Path) -> list[str]:
    from dragoman.corpus.text import TextFiles, read_pairs

    return [line for chunk, _ in read_pairs(TextFiles(path, path), 10_000) for line in chunk]


if __name__ == "__main__":
    main()
